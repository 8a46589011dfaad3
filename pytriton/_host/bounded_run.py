"""Runs a program for a limited time, even if the kernel cannot kill it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: How long a killed program may take to exit, in seconds.
_EXIT_TIMEOUT_S = 5.0


def run_bounded(
    argv: Sequence[str | Path],
    *,
    timeout_s: float | None,
    text: str | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its output and exit status, or kill it after `timeout_s` seconds.

    Unlike subprocess.run, this gives up on a killed program that does not exit: a driver (`nvidia-smi` on a broken GPU),
    a network file system or a debugger may hold it indefinitely.

    Args:
        argv: the program and its arguments
        timeout_s: time limit in seconds; None: unlimited
        text: its standard input; None: empty
        options: options of subprocess.Popen

    Raises:
        OSError: the program cannot be started
        subprocess.TimeoutExpired: it did not exit in time
    """
    settings: dict[str, Any] = {
        "stdin": subprocess.DEVNULL if text is None else subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "errors": "replace",
        **options,
    }
    process = subprocess.Popen(argv, encoding="utf-8", **settings)
    try:
        stdout, stderr = process.communicate(text, timeout=timeout_s)
    except BaseException:  # also KeyboardInterrupt
        process.kill()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with contextlib.suppress(OSError):  # it has not read all of its input
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
