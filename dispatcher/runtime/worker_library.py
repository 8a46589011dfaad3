"""The package `pytriton` for workers: always the daemon's own, whatever their environment contains."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from pytriton._protocol.files.private_files import remove
from pytriton._protocol.files.rundir import OTHER_LIBRARIES, RuntimeDir


def lay_out_library(rundir: RuntimeDir) -> Path:
    """Create the directory that workers put first on sys.path; return its path. It contains only `pytriton`.

    An existing directory is replaced, since workers would import anything else in it, such as a stray `numpy.py`.
    """
    remove(rundir.library)
    rundir.library.mkdir(mode=0o700)
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None  # this module is part of it
    assert spec.submodule_search_locations
    ours = Path(next(iter(spec.submodule_search_locations))).absolute()
    (rundir.library / "pytriton").symlink_to(ours)
    return rundir.library


@functools.lru_cache(maxsize=256)
def library_of(library: Path, python: str) -> Path:
    """Return the directory that contains `pytriton` for workers that run with an interpreter.

    For this process's own interpreter, that is `library`. Other interpreters would write their bytecode into this
    environment's site-packages. Instead, they get a directory with links to the sources, and their bytecode is stored
    there.
    """
    program = os.path.realpath(python)
    if program == os.path.realpath(sys.executable):
        return library
    digest = hashlib.sha256(os.fsencode(program)).hexdigest()[:16]
    links = library.with_name(OTHER_LIBRARIES) / digest
    for folder in (links.parent, links):
        folder.mkdir(mode=0o700, exist_ok=True)
    _link_sources(library / "pytriton", links / "pytriton")
    return links


#: Packages that workers do not import.
_NOT_FOR_WORKERS = frozenset({"__pycache__", "_cli", "_host", "dispatcher", "proxy_backend"})


def _link_sources(package: Path, target: Path) -> None:
    """Mirror a package as directories with links to its modules. Existing links are kept."""
    for place, folders, files in os.walk(package, followlinks=True):
        folders[:] = [name for name in folders if name not in _NOT_FOR_WORKERS]
        folder = target / Path(place).relative_to(package)
        folder.mkdir(exist_ok=True)
        for name in files:
            if name.endswith(".py"):
                with contextlib.suppress(FileExistsError):
                    (folder / name).symlink_to(Path(place, name))
