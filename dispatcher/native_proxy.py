"""The compiled proxy: a backend that tritonserver loads, built once per machine from the C sources of the proxy.

A model whose proxy is compiled has no process of its own inside Triton, and its batches make one way less
between processes. It needs nothing but a C compiler, once; a machine without one, or with a tritonserver that
does not take the library, is served by the Python proxy (docs/architecture.md has how they differ).

>>> build(cache_dir(), progress=print)                                     # doctest: +SKIP
PosixPath('.../native-proxy/3f2a…')
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
from pathlib import Path

from pytriton.dispatcher.cache import Progress, ServerRuntimeError, publish

#: The backend that models of the compiled proxy name, and its library, whose name Triton derives from it.
NATIVE_BACKEND = "pytriton_native"
LIBRARY = f"libtriton_{NATIVE_BACKEND}.so"
#: Also warnings are errors where it is tested (tests/unit/test_native.py), not where it is used.
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
_LIBRARIES = ("-lm", "-ldl")
_COMPILERS = ("cc", "gcc", "clang")
#: A compiler that has not ended by then hangs.
_COMPILE_S = 300.0


def sources() -> Path:
    """Return the folder of the C sources in this installation."""
    package = importlib.util.find_spec("pytriton.proxy_backend")
    if package is None or not package.submodule_search_locations:
        raise ServerRuntimeError(
            "this installation of pytriton-daemon lacks pytriton.proxy_backend"
        )
    return Path(next(iter(package.submodule_search_locations))) / "native"


def compiler() -> str | None:
    """Return the C compiler that would be used: $CC, cc, gcc or clang; None if this machine has none."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else _COMPILERS
    return next((path for path in map(shutil.which, wanted) if path), None)


def build(cache: Path, progress: Progress) -> Path:
    """Return the folder that holds the backend's library; build it if it is not there yet.

    Raises:
        ServerRuntimeError: it cannot be built; the text holds what the compiler said.
    """
    folder = sources()
    target = cache / "native-proxy" / _key(folder)

    def make(draft: Path) -> None:
        command = compiler()
        if command is None:
            raise ServerRuntimeError(
                "no C compiler is on PATH ($CC, cc, gcc, clang), with which the compiled proxy is built once"
            )
        progress("building the compiled proxy")
        compile_library(command, folder, draft / LIBRARY)

    publish(target, make, lambda there: (there / LIBRARY).is_file(), progress)
    return target


def compile_library(command: str, folder: Path, library: Path, *more: str) -> None:
    """Compile the sources in `folder` with the compiler `command`; `more`: further flags.

    Raises:
        ServerRuntimeError: it failed; the text holds what it said.
    """
    files = sorted(str(path) for path in folder.glob("*.c"))
    argv = [command, *FLAGS, *more, "-o", str(library), *files, *_LIBRARIES]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_COMPILE_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerRuntimeError(f"the compiled proxy cannot be built: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ServerRuntimeError(f"the compiled proxy cannot be built: {command} said:\n{said}")


def _key(folder: Path) -> str:
    """Name what the library depends on: its sources, the flags, and the kind of machine."""
    digest = hashlib.sha256(repr((FLAGS, platform.machine(), platform.libc_ver())).encode())
    for path in sorted(folder.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
