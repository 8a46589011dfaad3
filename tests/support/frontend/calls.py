"""Programs that call a fake core, each built with the requested sanitizer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from support.compile_cache import compile_program
from support.frontend.c_programs import built, include_flags, sanitized_flags

_HERE = Path(__file__).parents[2] / "native" / "frontend" / "calls"
_ROOMS = (
    "memory/*.c", "base/*.c", "thread_pool/*.c", "json/*.c", "core/*.c", "tracing/*.c", "calls/*.c", "net/limits.c",
    "admin/*.c",
)  # fmt: skip

#: Runs a program with a core, and returns its output.
Run = Callable[..., str]


def build_core(folder: Path, sanitizers: Sequence[str]) -> Path:
    """Build the core that programs load instead of Triton's."""
    sources = sorted((_HERE / "fake_core").glob("*.c"))
    flags = [*sanitized_flags(sanitizers), *include_flags("frontend")]
    return compile_program(folder / "libfakecore.so", flags, sources, ["-shared"])


def program(main: str, folder: Path, sanitizers: Sequence[str]) -> Run:
    """Build a program of this folder and the core that it loads."""
    core = build_core(folder, sanitizers)
    target = built(_HERE / f"{main}.c", _ROOMS, folder, sanitizers=sanitizers)

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [target, core, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout

    return run
