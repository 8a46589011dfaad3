"""Programs that make calls, and a core for them, each with the sanitizer that is asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from pytriton.dispatcher.install.proxy_compiler import compiler
from support.fronts import FRONT, built

_HERE = Path(__file__).parents[1] / "unit" / "front" / "calls"
_ROOMS = ("base/*.c", "json/*.c", "core/*.c", "tracing/*.c", "calls/*.c", "admin/*.c")
ADDRESSES = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread",)

#: Runs a program with a core, and returns what it says.
Run = Callable[..., str]


def program(main: str, folder: Path, sanitizers: tuple[str, ...]) -> Run:
    """Build a program of this folder and the core that it loads."""
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    core = folder / "libfakecore.so"
    sources = [_HERE / "fake_core.c", _HERE / "fake_stubs.c"]
    subprocess.run(
        [
            *(command, "-std=gnu11", "-g", "-O1", "-fPIC", "-shared"),
            *("-Wall", "-Wextra", "-Werror", *sanitizers, f"-I{FRONT}"),
            *("-o", str(core), *map(str, sources)),
        ],
        check=True,
    )
    target = built(_HERE / f"{main}.c", _ROOMS, folder, sanitizers=sanitizers)

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [target, core, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout

    return run
