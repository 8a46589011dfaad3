"""Builds the compiled proxy: a backend written in C that tritonserver loads.

With the compiled proxy, a model needs no process inside Triton, and its batches pass through one process less. A wheel
contains the library; in a checkout, it is built once per machine with a C compiler. A machine without a compiler uses
the Python proxy (docs/decisions/compiled-proxy.md has the differences).

>>> build(cache_dir(), progress=print)                                     # doctest: +SKIP
PosixPath('.../native-proxy/3f2a…')
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

from pytriton._host.bounded_run import run_bounded
from pytriton._host.install.cache import Progress, ServerRuntimeError, publish
from pytriton._host.install.proxy_compiler import (
    INTERPOSER,
    PROXY,
    BuildError,
    compile_program,
    source_key,
)
from pytriton._host.install.server_tree import ServerTree, find_core

#: Loading tritonserver's library takes less than a second.
_LOAD_S = 60.0


def source_root() -> Path:
    """Return the directory `proxy_backend` of this installation, which contains the C sources."""
    package = importlib.util.find_spec("pytriton.proxy_backend")
    if package is None or not package.submodule_search_locations:
        raise ServerRuntimeError(
            "this installation of pytriton-daemon lacks pytriton.proxy_backend"
        )
    return Path(next(iter(package.submodule_search_locations)))


def build(cache: Path, progress: Progress) -> Path:
    """Return the directory with the compiled proxy's library. Build it if necessary.

    Raises:
        ServerRuntimeError: the library cannot be built or loaded; the text contains the compiler's output.
    """
    root = source_root()
    included = root / PROXY.folders[0]
    if _loads(included / PROXY.file):
        return included
    target = cache / "native-proxy" / source_key(PROXY, root)

    def make(draft: Path) -> None:
        progress("building the compiled proxy")
        try:
            compile_program(PROXY, root, draft / PROXY.file)
        except BuildError as error:
            raise ServerRuntimeError(f"the compiled proxy cannot be built: {error}") from error

    publish(target, make, lambda there: (there / PROXY.file).is_file(), progress)
    flaw = _flaw(target / PROXY.file)
    if flaw:
        raise ServerRuntimeError(f"the compiled proxy cannot be loaded: {flaw}")
    return target


def build_interposer(cache: Path, progress: Progress) -> Path:
    """Return the library that is preloaded into tritonserver. Build it if necessary.

    Raises:
        ServerRuntimeError: the library cannot be built or loaded; the text contains the compiler's output.
    """
    root = source_root()
    included = root / INTERPOSER.folders[0] / INTERPOSER.file
    if _loads(included):
        return included
    target = cache / "interposer" / source_key(INTERPOSER, root)

    def make(draft: Path) -> None:
        try:
            compile_program(INTERPOSER, root, draft / INTERPOSER.file)
        except BuildError as error:
            raise ServerRuntimeError(str(error)) from error

    publish(target, make, lambda there: (there / INTERPOSER.file).is_file(), progress)
    flaw = _flaw(target / INTERPOSER.file)
    if flaw:
        raise ServerRuntimeError(flaw)
    return target / INTERPOSER.file


def is_built(cache: Path) -> bool:
    """Return True if the library exists and `build` need not compile it."""
    root = source_root()
    built = cache / "native-proxy" / source_key(PROXY, root) / PROXY.file
    return built.is_file() or _loads(root / PROXY.folders[0] / PROXY.file)


#: Exits with an error if the library of Triton's core and the proxy, its arguments, do not fit.
_CHECK_FIT = """
import ctypes, os, sys
core, proxy = [ctypes.CDLL(name, os.RTLD_NOW | os.RTLD_GLOBAL) for name in sys.argv[1:]]
proxy.TRITONBACKEND_Initialize.restype = ctypes.c_void_p
core.TRITONSERVER_ErrorMessage.restype = ctypes.c_char_p
if error := proxy.TRITONBACKEND_Initialize(None):
    sys.exit(core.TRITONSERVER_ErrorMessage(ctypes.c_void_p(error)).decode())
"""


def misfit(native: Path, tree: ServerTree) -> str | None:
    """Return why a user's own tritonserver cannot use the compiled proxy; None if it can.

    It may be a version without some of the functions that the proxy calls, or with an older API. To find out, a
    separate process loads both libraries and calls the proxy's check of the version.
    """
    core = find_core(tree)
    if core is None:
        return f"{tree.root}/lib has no libtritonserver.so"
    paths = ":".join(map(str, tree.libraries))
    try:
        done = run_bounded(
            [sys.executable, "-I", "-S", "-c", _CHECK_FIT, core, native / PROXY.file],
            timeout_s=_LOAD_S,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": f"{paths}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            },
        )
    except subprocess.TimeoutExpired:
        return f"{core} and the proxy could not be loaded within {_LOAD_S:g} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        name = signal.strsignal(-done.returncode)
        return f"the process that checked it was killed by signal {-done.returncode} ({name})"
    return (
        done.stderr.strip().rpartition("\n")[2]
        or f"the process that checked it exited with code {done.returncode}"
    )


def _loads(library: Path) -> bool:
    """Return True if the library exists and can be loaded on this machine."""
    return library.is_file() and _flaw(library) is None


def _flaw(library: Path) -> str | None:
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_LAZY)  # lazy: tritonserver provides the functions
    except OSError as error:
        # It was built for another machine or libc, or is on a file system mounted noexec.
        return str(error)
    return None
