"""Test programs built from directories of the frontend's sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytriton._host.install.proxy_compiler import FLAGS
from support.compile_cache import compile_program

PROXY_BACKEND = Path(__file__).parents[3] / "proxy_backend"
FRONT = PROXY_BACKEND / "frontend"
ADDRESSES = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread", "-fno-sanitize-recover=all")
#: Instead of -O2: takes half the time, and keeps the warnings that need data flow.
_OPTIMISED = {"-O2": "-O1"}
#: Line numbers for sanitizer reports; full debug information would be slower.
_WARNED = ("-g1", "-Wall", "-Wextra", "-Wshadow", "-Werror")


def sanitized_flags(sanitizers: Sequence[str] = ADDRESSES) -> list[str]:
    """Return the compiler flags of all C tests. Sources with the same flags are compiled once.

    FORTIFY is off, because sanitizers do not see its functions.
    """
    left_out = ("-shared", "-fvisibility=hidden", "-Wl,-z,nodelete")
    flags = [
        _OPTIMISED.get(flag, flag)
        for flag in FLAGS
        if flag not in left_out and "FORTIFY" not in flag
    ]
    return [*flags, *_WARNED, *sanitizers]


def include_flags(program: str) -> list[str]:
    """Return the include flags of "frontend" or "backend"."""
    return [f"-I{PROXY_BACKEND / program}", f"-I{PROXY_BACKEND}"]


def common_sources() -> list[Path]:
    """Return the C sources that the frontend and the backend share."""
    return sorted((PROXY_BACKEND / "common").glob("*.c"))


def built(
    main: Path, sources: Sequence[str], folder: Path, *, sanitizers: Sequence[str] = ADDRESSES
) -> Path:
    """Compile a test program with sources of the frontend.

    Args:
        main: its C source
        sources: patterns below the frontend's folder, such as "base/*.c"
        folder: where the program goes
        sanitizers: the flags of the sanitizers
    """
    files = [path for pattern in sources for path in sorted(FRONT.glob(pattern))]
    return built_of([main, *files], folder / main.stem, sanitizers=sanitizers)


def built_of(
    sources: Sequence[Path],
    target: Path,
    *more: str,
    sanitizers: Sequence[str] = ADDRESSES,
) -> Path:
    """Compile a program from C sources and proxy_backend/common. Programs with the same flags share objects."""
    flags = [*sanitized_flags(sanitizers), *include_flags("frontend"), *more]
    return compile_program(
        target, flags, [*sources, *common_sources()], ["-ldl", "-lpthread", "-lm"]
    )
