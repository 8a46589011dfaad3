"""Programs of tests that are built from rooms of the front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytriton.dispatcher.install.proxy_compiler import FLAGS
from support.compiling import compile_program

FRONT = Path(__file__).parents[3] / "proxy_backend" / "front"
_WARNED = ("-g", "-Wall", "-Wextra", "-Werror")
_SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


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
    left_out = ("-shared", "-fvisibility=hidden", "-Wl,-z,nodelete")
    flags = [flag for flag in FLAGS if flag not in left_out and "FORTIFY" not in flag]
    return compile_program(
        folder / main.stem,
        [*flags, *_WARNED, *sanitizers, f"-I{FRONT}"],
        [main, *files],
        ["-ldl", "-lpthread", "-lm"],
    )
