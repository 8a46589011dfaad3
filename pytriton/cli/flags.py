"""The help of flags: a flag takes no value, so it shows none; and `--version`, which every program has."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["PlainFlags", "print_version_and_exit"]


class PlainFlags(TyperGroup):
    """A group whose help, and that of its commands, shows flags without `<bool>`."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, PlainFlags):
            params = type(command).get_params
            command.get_params = lambda context: _plain(params(command, context))
        return command


def print_version_and_exit(wanted: bool) -> None:
    """Do what `version` does, when `--version` is given."""
    if wanted:
        from pytriton.cli.version import print_version

        raise typer.Exit(print_version())


def _plain(params: Any) -> Any:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
