"""Imported by the process that forks commands of pytriton-daemon: has done once what typer does for each of them.

It makes the parsers of all commands, for which pydantic looks for plugins in all packages that are installed.
"""

from __future__ import annotations

from typing import Any

import typer.main

# What each command imports, and where one that finds no daemon looks.
from pytriton._cli.app import app

_commands: Any = typer.main.get_command(app)
_commands.commands["status"].make_context("status", [])
