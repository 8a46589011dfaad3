"""Imported by the process that forks commands of pytriton-daemon, to do typer's work for each command in advance.

It builds the parsers of all commands, for which pydantic searches all installed packages for plugins.
"""

from __future__ import annotations

from typing import Any

import typer.main

# What each command imports, and where one that finds no daemon looks.
from pytriton._cli.app import app

_commands: Any = typer.main.get_command(app)
_commands.commands["status"].make_context("status", [])
