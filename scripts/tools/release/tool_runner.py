"""Run external tools. An error contains what the tool printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Number of characters of a failed tool's output that the error shows.
_SHOWN = 4000


class ReleaseError(Exception):
    """The release cannot be made. The text says what failed, and contains what the tool printed."""


def run(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: Path | None = None,
    stderr: bool = True,
) -> str:
    """Run a tool and return its output.

    Args:
        name: the tool's name in an error
        command: the program and its arguments
        environment: variables in addition to those of this process
        folder: its working directory; default: the current one
        stdin: a file for its standard input; default: empty
        stderr: whether the output includes its standard error

    Raises:
        ReleaseError: it failed, or is not installed
    """
    try:
        with open(stdin or os.devnull, "rb") as standard_input:
            done = subprocess.run(
                command,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if stderr else subprocess.PIPE,
                stdin=standard_input,
                text=True,
                errors="replace",
                check=False,
            )
    except OSError as error:
        raise ReleaseError(f"cannot run {name}: {error}") from error
    if done.returncode != 0:
        output = (done.stdout + (done.stderr or "")).strip()
        raise ReleaseError(f"{name} failed:\n{output[-_SHOWN:]}")
    return done.stdout
