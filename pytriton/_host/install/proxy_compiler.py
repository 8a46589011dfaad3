"""Runs the C compiler to build the compiled proxy, the interposer and the native frontend.

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
from typing import NamedTuple

#: The name of the compiled proxy's backend in model configurations, and of its library, which Triton derives from it.
NATIVE_BACKEND = "pytriton_native"
#: Warnings are errors in the tests (tests/native/backend, tests/unit/test_packaging.py), not for users.
#: nodelete: the library stays loaded after its last model is unloaded, because a call may not have returned. It runs
#: inside tritonserver, so all run-time checks of the compiler are enabled. `-z lazy`, because some linkers default to
#: `now`, which would resolve tritonserver's functions when the daemon only checks that the library can be loaded.
FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wl,-z,nodelete",
    "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection",
    "-Wl,-z,relro", "-Wl,-z,lazy", "-Wl,-z,noexecstack",
)  # fmt: skip
FRONTEND_FLAGS = (
    "-std=gnu11", "-O2", "-fPIE", "-pie", "-pthread", "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection",
    "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack",
)  # fmt: skip


class CProgram(NamedTuple):
    """A library or executable, and the C sources that it is compiled from."""

    file: str
    #: Folders of `proxy_backend`. The first is the program's own; a wheel includes the compiled file there.
    folders: tuple[str, ...]
    flags: tuple[str, ...]


PROXY = CProgram(f"libtriton_{NATIVE_BACKEND}.so", ("backend", "common"), FLAGS)
#: The library that is preloaded into tritonserver. It passes clients' requests to load and unload models to the dispatcher,
#: and lets idle schedulers sleep longer.
INTERPOSER = CProgram("libpytriton_interposer.so", ("interposer",), FLAGS)
#: The native frontend, an executable that loads Triton's core.
FRONTEND = CProgram("pytriton-frontend", ("frontend", "common"), FRONTEND_FLAGS)

_LIBRARIES = ("-lm", "-ldl")
_COMPILERS = ("cc", "gcc", "clang")
#: A compiler that runs longer counts as hung.
_COMPILE_S = 300.0


class BuildError(Exception):
    """Compilation failed; the text contains the compiler's output."""


def compiler() -> str | None:
    """Return the path of the C compiler: $CC if it is set, else cc, gcc or clang; None if there is none."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else _COMPILERS
    return next((os.path.abspath(path) for path in map(shutil.which, wanted) if path), None)


def compile_program(program: CProgram, root: Path, target: Path) -> None:
    """Compile a program from its sources in folders of `root`.

    As many files are compiled at a time as there are processors. The compiler runs in `root` and gets relative names,
    which it includes in its output. So the same sources produce the same bytes, regardless of their location.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    command = compiler()
    if command is None:
        raise BuildError("no C compiler is on PATH ($CC, cc, gcc, clang)")
    files = [
        str(file.relative_to(root))
        for folder in program.folders
        for file in sorted((root / folder).rglob("*.c"))
    ]
    compile_one = [command, *program.flags, f"-I{program.folders[0]}", "-I.", "-c"]
    with tempfile.TemporaryDirectory(prefix=".parts", dir=target.absolute().parent) as parts:
        objects = [f"{parts}/{number}.o" for number in range(len(files))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiling = [
                pool.submit(_run, [*compile_one, "-o", part, file], root)
                for part, file in zip(objects, files)
            ]
            for one in compiling:
                one.result()
        link = [command, *program.flags, "-o", str(target.absolute()), *objects, *_LIBRARIES]
        _run(link, root)


def source_key(program: CProgram, root: Path) -> str:
    """Return a hash of everything that the result depends on: the sources, the flags, and the kind of machine."""
    digest = hashlib.sha256(repr((program.flags, platform.machine(), platform.libc_ver())).encode())
    names = [
        name for folder in program.folders for name in _names(str(root / folder), f"{folder}/")
    ]
    for name in sorted(names, key=lambda name: name.split("/")):
        with open(os.path.join(root, name), "rb", buffering=0) as file:
            digest.update(name.encode() + b"\0" + file.read())
    return digest.hexdigest()[:16]


def _names(folder: str, below: str) -> Iterator[str]:
    """Yield the relative paths of all sources. This runs at each start, so it avoids the slower pathlib."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _names(entry.path, f"{below}{entry.name}/")
            elif entry.name.endswith((".c", ".h")):
                yield below + entry.name


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
