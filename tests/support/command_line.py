"""The command line with all commands, against which documents, images and charts are checked."""

from __future__ import annotations

import functools
from typing import Any

from typer.main import get_command

from pytriton._cli.app import app


@functools.cache
def whole_command_line() -> Any:
    """Return the parser, built once: typer needs 30 ms for all commands."""
    return get_command(app)
