"""The compiled proxy: a backend that tritonserver loads, from the C sources of the proxy.

A model whose proxy is compiled has no process of its own inside Triton, and its batches make one way less
between processes. A wheel brings the library along; from a checkout, it is built once per machine with a C
compiler. A machine without one is served by the Python proxy (docs/architecture.md has how they differ).

>>> build(cache_dir(), progress=print)                                     # doctest: +SKIP
PosixPath('.../native-proxy/3f2a…')
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
from pathlib import Path

from pytriton.dispatcher.cache import Progress, ServerRuntimeError, publish
from pytriton.dispatcher.native_build import FLAGS, LIBRARY, BuildError, compile_library


def sources() -> Path:
    """Return the folder of the C sources in this installation."""
    package = importlib.util.find_spec("pytriton.proxy_backend")
    if package is None or not package.submodule_search_locations:
        raise ServerRuntimeError(
            "this installation of pytriton-daemon lacks pytriton.proxy_backend"
        )
    return Path(next(iter(package.submodule_search_locations))) / "native"


def build(cache: Path, progress: Progress) -> Path:
    """Return the folder that holds the backend's library; build it if it is not there yet.

    Raises:
        ServerRuntimeError: it cannot be built; the text holds what the compiler said.
    """
    folder = sources()
    if _loads(folder / LIBRARY):
        return folder
    target = cache / "native-proxy" / _key(folder)

    def make(draft: Path) -> None:
        progress("building the compiled proxy")
        try:
            compile_library(folder, draft / LIBRARY)
        except BuildError as error:
            raise ServerRuntimeError(f"the compiled proxy cannot be built: {error}") from error

    publish(target, make, lambda there: (there / LIBRARY).is_file(), progress)
    return target


def _loads(library: Path) -> bool:
    """Whether a library was brought along that is for this kind of machine and this libc."""
    if not library.is_file():
        return False
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_LAZY)  # lazy: tritonserver has what it calls
    except OSError:
        return False
    return True


def _key(folder: Path) -> str:
    """Name what the library depends on: its sources, the flags, and the kind of machine."""
    digest = hashlib.sha256(repr((FLAGS, platform.machine(), platform.libc_ver())).encode())
    for path in sorted(folder.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
