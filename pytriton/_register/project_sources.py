"""The source of modules that a callable refers to by name, stored with the registration.

Files change: the project evolves, a folder is removed, another machine has another checkout. Workers started
later, and `rollback`, must run the code that was registered. So the files of the registrant's own modules are sent; a
worker imports them (`pytriton.worker.project_modules`). Installed packages are not included.
"""

from __future__ import annotations

import ast
import dis
import functools
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from pytriton._protocol.payload import Source
from pytriton._register.env_usage import first_outside
from pytriton._register.worker_imports import find_spec, in_every_worker, is_installed

#: Maximum per callable. A larger project is most likely a framework under development.
MAX_BYTES = 2 << 20
MAX_FILES = 500


def sources_of(
    roots: Iterable[str],
    search: Sequence[str],
    model_name: str,
    *,
    further: Iterable[str] = (),
) -> list[Source]:
    """Return the sources of modules and, recursively, of their imports; nearest first, then by name.

    Args:
        roots: names of modules
        search: where the worker looks for modules that this process has not imported; []: unknown
        model_name: for the warning about too many sources
        further: modules that the callable itself does not use: included as far as there is room
    """
    packages = _folders_of_packages(search)
    found: dict[str, Source] = {}
    is_whole, name = _collect(roots, search, packages, found)
    if not is_whole:
        _warn(name, model_name)
    else:
        _collect(further, search, packages, found)
    return list(found.values())


def _collect(
    roots: Iterable[str], search: Sequence[str], packages: Sequence[str], found: dict[str, Source]
) -> tuple[bool, str]:
    """Add sources to `found`; return whether all fit, and the name of the first that did not."""
    waiting = deque(one for root in sorted(set(roots)) for one in _with_parents(root))
    seen = {*waiting, *found}
    size = sum(len(source.text) for source in found.values())
    name = ""
    while waiting:
        name = waiting.popleft()
        if name in found:
            continue
        source = _source(name, search, packages)
        if source is None:
            continue
        size += len(source.text)
        if size > MAX_BYTES or len(found) == MAX_FILES:
            return False, name
        found[name] = source
        for more in _imports_of(source):
            for one in _with_parents(more):
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
    return True, name


def imported_by(code: CodeType) -> Iterator[str]:
    """Yield possible names of modules that code imports at run time, except relative ones."""
    base = ""
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            base = str(one.argval)
            yield base
        elif one.opname == "IMPORT_FROM":
            yield f"{base}.{one.argval}"


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folders_of_packages(search: Sequence[str]) -> list[str]:
    """Return the folders of installed packages: this interpreter's, the worker's, and those of `pip install --target`."""
    folders = {one for one in (*sys.path, *search) if isinstance(one, str) and one}
    return [os.path.realpath(one) + os.sep for one in folders if _holds_packages(Path(one))]


def _holds_packages(folder: Path) -> bool:
    if folder.name in ("site-packages", "dist-packages"):
        return True
    return (folder / "os.py").exists() or any(folder.glob("*.dist-info"))  # the standard library


def _source(name: str, search: Sequence[str], packages: Sequence[str]) -> Source | None:
    """Return a module's source; None if it is installed, does not exist, or has no Python source file."""
    if in_every_worker(name) or name == "__main__":
        return None
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        file = getattr(module, "__file__", None)
    else:
        spec = find_spec(name, search) if search else None
        file = spec.origin if spec is not None and spec.has_location else None
    if not isinstance(file, str) or not file.endswith(".py") or is_installed(file):
        return None
    if os.path.realpath(file).startswith(tuple(packages)):
        return None
    path = os.path.abspath(file)
    try:
        with open(path, "rb") as opened:
            return Source(name, path, opened.read(MAX_BYTES + 1))
    except OSError:
        return None  # in an archive, or removed: the worker finds it, or reports that it cannot


@functools.lru_cache(maxsize=MAX_FILES)
def _imports_of(source: Source) -> list[str]:
    return sorted(set(_imported(source)))


def _imported(source: Source) -> Iterator[str]:
    """Yield possible names of modules that a module imports anywhere in its source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown when it was imported
            tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # written for another Python version
    is_package = os.path.basename(source.file) == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = source.name.split(".")
            package = package[: len(package) - node.level + is_package] if node.level else []
            base = ".".join([*package, *filter(None, [node.module])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _warn(name: str, model_name: str) -> None:
    warnings.warn(
        f"Model {model_name!r}: its modules exceed the limits of a registration ({MAX_FILES} files, "
        f"{MAX_BYTES >> 20} MiB). Workers import {name!r} and the rest from their current files when a worker "
        "starts, even after a rollback. Do not change these files, or install them.",
        stacklevel=first_outside(),
    )
