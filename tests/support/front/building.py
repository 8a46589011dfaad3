"""Programs of tests that are built from rooms of the front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytriton.dispatcher.install.proxy_compiler import FLAGS
from support.compiling import compile_program

FRONT = Path(__file__).parents[3] / "proxy_backend" / "front"
_WARNED = ("-g", "-Wall", "-Wextra", "-Werror")
_SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


#: Of the product's flags: half the time of -O2, with the warnings that follow values.
_OPTIMISED = {"-O2": "-O1"}


def built(
    main: Path, sources: Sequence[str], folder: Path, *, sanitizers: Sequence[str] = _SANITIZED
) -> Path:
    """Compile a program of a test with files of the front.

    Args:
        main: its C source
        sources: patterns below the front's folder, such as "base/*.c"
        folder: where the program goes
        sanitizers: the flags that it is checked by
    """
    files = [path for pattern in sources for path in sorted(FRONT.glob(pattern))]
    return built_of([main, *files], folder / main.stem, sanitizers=sanitizers)


def built_of(
    sources: Sequence[Path],
    target: Path,
    *more: str,
    sanitizers: Sequence[str] = _SANITIZED,
) -> Path:
    """Compile a program of C sources. Programs with the same flags have the objects of the same sources in common."""
    left_out = ("-shared", "-fvisibility=hidden", "-Wl,-z,nodelete")
    flags = [
        _OPTIMISED.get(flag, flag)
        for flag in FLAGS
        if flag not in left_out and "FORTIFY" not in flag
    ]
    return compile_program(
        target,
        [*flags, *_WARNED, *sanitizers, f"-I{FRONT}", *more],
        sources,
        ["-ldl", "-lpthread", "-lm"],
    )
