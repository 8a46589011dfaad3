"""The compiled proxy: a backend that tritonserver loads, from the C sources of the proxy.

A model with the compiled proxy has no process of its own inside Triton, and its batches take one hop less between
processes. A wheel includes the library; in a checkout, it is built once per machine with a C compiler. A machine
without one uses the Python proxy (docs/decisions/compiled-proxy.md has the differences).

>>> build(cache_dir(), progress=print)                                     # doctest: +SKIP
PosixPath('.../native-proxy/3f2a…')
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from pytriton._host.install.cache import Progress, ServerRuntimeError, publish
from pytriton._host.install.proxy_compiler import (
    FLAGS,
    INTERPOSER,
    LIBRARY,
    BuildError,
    compile_library,
    source_key,
)
from pytriton._host.install.server_tree import ServerTree, find_core

#: Loading tritonserver's library takes less than a second.
_LOAD_S = 60.0


def sources(program: str = "backend") -> Path:
    """Return the directory of the C sources in this installation: of the proxy, the "frontend", or the "interposer"."""
    package = importlib.util.find_spec("pytriton.proxy_backend")
    if package is None or not package.submodule_search_locations:
        raise ServerRuntimeError(
            "this installation of pytriton-daemon lacks pytriton.proxy_backend"
        )
    return Path(next(iter(package.submodule_search_locations))) / program


def build(cache: Path, progress: Progress) -> Path:
    """Return the directory with the backend's library; build it if it does not exist yet.

    Raises:
        ServerRuntimeError: it cannot be built; the text contains the compiler's output.
    """
    folder = sources()
    if _loads(folder / LIBRARY):
        return folder
    target = cache / "native-proxy" / source_key(folder, FLAGS)

    def make(draft: Path) -> None:
        progress("building the compiled proxy")
        try:
            compile_library(folder, draft / LIBRARY)
        except BuildError as error:
            raise ServerRuntimeError(f"the compiled proxy cannot be built: {error}") from error

    publish(target, make, lambda there: (there / LIBRARY).is_file(), progress)
    flaw = _flaw(target / LIBRARY)
    if flaw:
        raise ServerRuntimeError(f"the compiled proxy cannot be loaded: {flaw}")
    return target


def build_interposer(cache: Path, progress: Progress) -> Path:
    """Return the library that is preloaded into tritonserver; build it if it does not exist yet.

    Raises:
        ServerRuntimeError: it cannot be built; the text contains the compiler's output.
    """
    folder = sources("interposer")
    if _loads(folder / INTERPOSER):
        return folder / INTERPOSER
    target = cache / "interposer" / source_key(folder, FLAGS)

    def make(draft: Path) -> None:
        try:
            compile_library(folder, draft / INTERPOSER)
        except BuildError as error:
            raise ServerRuntimeError(str(error)) from error

    publish(target, make, lambda there: (there / INTERPOSER).is_file(), progress)
    flaw = _flaw(target / INTERPOSER)
    if flaw:
        raise ServerRuntimeError(flaw)
    return target / INTERPOSER


def is_built(cache: Path) -> bool:
    """Return whether `build` would find the library: an included one that fits, or one built here."""
    folder = sources()
    built = cache / "native-proxy" / source_key(folder, FLAGS) / LIBRARY
    return built.is_file() or _loads(folder / LIBRARY)


def misfit(native: Path, tree: ServerTree) -> str | None:
    """Return why a user's own tritonserver cannot use the compiled proxy; None if it can.

    Its version may lack some of the functions that the proxy calls. The loader reports them in a separate process
    that runs nothing else.
    """
    core = find_core(tree)
    if core is None:
        return f"{tree.root}/lib has no libtritonserver.so"
    script = "import ctypes, os, sys; [ctypes.CDLL(name, os.RTLD_NOW | os.RTLD_GLOBAL) for name in sys.argv[1:]]"
    paths = ":".join(map(str, tree.libraries))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(core), str(native / LIBRARY)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_LOAD_S,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": f"{paths}:{os.environ.get('LD_LIBRARY_PATH', '')}"},
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else None


def _loads(library: Path) -> bool:
    """Return whether a library is included that fits this machine and libc."""
    return library.is_file() and _flaw(library) is None


def _flaw(library: Path) -> str | None:
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_LAZY)  # lazy: tritonserver provides the functions
    except OSError as error:
        # It is for another machine or libc, or lies on a disk mounted noexec.
        return str(error)
    return None
