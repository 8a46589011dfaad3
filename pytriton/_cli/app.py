"""`pytriton-daemon`: the parser of all commands, from which documents are made, and by which they are checked."""

from __future__ import annotations

from pytriton._cli.command_table import parser

app = parser()
