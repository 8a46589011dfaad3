"""The command line with all its commands, which the documents, images and charts are held against."""

from __future__ import annotations

import functools
from typing import Any

from typer.main import get_command

from pytriton._cli.app import app


@functools.cache
def whole_command_line() -> Any:
    """Return it, made once: typer takes 30 ms for all commands."""
    return get_command(app)
