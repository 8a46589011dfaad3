"""Calls of the C compiler, which builds the compiled proxy, the interposer and the native frontend.

The daemon builds them at its first start; setup.py builds them for a wheel. This module imports only the standard
library, since setup.py can import nothing else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: The name of the compiled proxy's backend in model configurations, and of its library, which Triton derives from it.
NATIVE_BACKEND = "pytriton_native"
LIBRARY = f"libtriton_{NATIVE_BACKEND}.so"
#: Warnings are errors in the tests (tests/native/backend, tests/unit/test_packaging.py), not for users.
#: nodelete: the library stays loaded after its last model is unloaded, because a call may not have returned. It runs
#: inside tritonserver, so all run-time checks of the compiler are enabled. `-z lazy`, because some linkers default to
#: `now`, which would resolve tritonserver's functions when the daemon only checks that the library can be loaded.
FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wl,-z,nodelete",
    "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection",
    "-Wl,-z,relro", "-Wl,-z,lazy", "-Wl,-z,noexecstack",
)  # fmt: skip
#: The library that passes clients' requests to load and unload models to the dispatcher.
INTERPOSER = "libpytriton_interposer.so"
#: The native frontend, a program that loads Triton's core.
FRONTEND = "pytriton-frontend"
FRONTEND_FLAGS = (
    "-std=gnu11", "-O2", "-fPIE", "-pie", "-pthread", "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection",
    "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack",
)  # fmt: skip
_LIBRARIES = ("-lm", "-ldl")
_COMPILERS = ("cc", "gcc", "clang")
#: A compiler that runs longer counts as hung.
_COMPILE_S = 300.0


class BuildError(Exception):
    """Compilation failed; the text contains the compiler's output."""


def compiler() -> str | None:
    """Return the path of the C compiler: that of $CC if it is set, else cc, gcc or clang; None if there is none."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else _COMPILERS
    return next((os.path.abspath(path) for path in map(shutil.which, wanted) if path), None)


def compile_library(folder: Path, library: Path) -> None:
    """Compile the proxy or the interposer from the C sources below `folder`, the root of their includes.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    _compile(folder, library, FLAGS)


def compile_frontend(folder: Path, program: Path) -> None:
    """Compile the native frontend from the C sources below `folder`, the root of their includes.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    _compile(folder, program, FRONTEND_FLAGS)


def source_key(folder: Path, flags: Sequence[str]) -> str:
    """Return a hash of everything that the result depends on: the sources, the flags, and the kind of machine."""
    digest = hashlib.sha256(repr((flags, platform.machine(), platform.libc_ver())).encode())
    for name in sorted(_names(str(folder), ""), key=lambda name: name.split("/")):
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            digest.update(name.encode() + b"\0" + file.read())
    return digest.hexdigest()[:16]


def _names(folder: str, below: str) -> Iterator[str]:
    """Yield the relative paths of all sources. Do not use pathlib, which takes three times as long: this runs at each start."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _names(entry.path, f"{below}{entry.name}/")
            elif entry.name.endswith((".c", ".h")):
                yield below + entry.name


def _compile(folder: Path, result: Path, flags: Sequence[str]) -> None:
    """Compile the files, as many at a time as there are processors, and link them.

    The compiler runs in the directory of the sources and gets relative names, which it includes in its output. So the same
    sources produce the same bytes, regardless of their location.
    """
    command = compiler()
    if command is None:
        raise BuildError("no C compiler is on PATH ($CC, cc, gcc, clang)")
    files = [file.relative_to(folder) for file in sorted(folder.rglob("*.c"))]
    with tempfile.TemporaryDirectory(prefix=".parts", dir=result.absolute().parent) as parts:
        objects = [f"{parts}/{number}.o" for number in range(len(files))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiling = [
                pool.submit(_run, [command, *flags, "-I.", "-c", "-o", part, str(file)], folder)
                for part, file in zip(objects, files)
            ]
            for one in compiling:
                one.result()
        _run([command, *flags, "-o", str(result.absolute()), *objects, *_LIBRARIES], folder)


def _run(argv: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if done.returncode != 0:
        raise BuildError(f"{argv[0]} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
