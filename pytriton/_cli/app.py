"""The parser of all `pytriton-daemon` commands, for generating and checking the documentation."""

from __future__ import annotations

from pytriton._cli.command_table import parser

app = parser()
