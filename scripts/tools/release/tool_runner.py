"""Running tools: one function, whose error holds what the tool printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: More is not shown of what a tool printed.
_SHOWN = 4000


class ReleaseError(Exception):
    """The release cannot be made; the text says what failed and holds what the tool printed."""


def run(
    what: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    given: Path | None = None,
) -> str:
    """Run a tool and return what it printed.

    Args:
        what: the tool's name in an error
        command: the program and its arguments
        environment: variables besides those of this process
        folder: where it runs; default: here
        given: a file that it reads from its standard input; default: nothing

    Raises:
        ReleaseError: it failed, or is not there.
    """
    try:
        with open(given or os.devnull, "rb") as standard_input:
            done = subprocess.run(
                command,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=standard_input,
                text=True,
                errors="replace",
                check=False,
            )
    except OSError as error:
        raise ReleaseError(f"{what} cannot be run: {error}") from error
    if done.returncode != 0:
        raise ReleaseError(f"{what} failed:\n{done.stdout.strip()[-_SHOWN:]}")
    return done.stdout
