"""The parser of all `pytriton-daemon` commands, from which documentation is generated and against which it is checked."""

from __future__ import annotations

from pytriton._cli.command_table import parser

app = parser()
