"""Flags shared by several commands, their help (without value types), and the output of `--json` and `--version`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from pytriton._cli.help_format import end_with_usage_error, write_commands, write_parameters
from pytriton._cli.plain_values import take_plainly

__all__ = [
    "ConfigFlag",
    "JsonFlag",
    "ModelArgument",
    "PlainFlags",
    "RuntimeDirFlag",
    "print_json",
    "print_version_and_exit",
    "served_models",
]

#: Common words of other programs -> the commands with that meaning here.
_MEANT = {
    "ls": ("list", "models", "status"),
    "list": ("models", "status"),
    "ps": ("status", "top"),
    "info": ("status", "models"),
    "describe": ("explain", "status"),
    "rm": ("remove", "unregister"),
    "remove": ("unregister",),
    "delete": ("remove", "unregister"),
    "add": ("register",),
    "deploy": ("register",),
    "load": ("register",),
    "serve": ("register", "start"),
    "run": ("register", "start"),
    "up": ("start",),
    "down": ("stop",),
    "kill": ("stop",),
    "init": ("start",),
    "log": ("logs",),
    "check": ("doctor",),
}


def served_models(incomplete: str) -> list[str]:
    """Return the models for shell completion: those of the daemon that is found without a flag."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.errors import CliError

    try:
        models = daemon_connection.ask_models(daemon_connection.runtime_dir(None))
    except CliError:  # no daemon runs: nothing to complete
        return []
    return [one.name for one in models if one.name.startswith(incomplete)]


RuntimeDirFlag = Annotated[
    Optional[Path],
    typer.Option("--runtime-dir", metavar="PATH", help="Runtime directory of the daemon."),
]
ConfigFlag = Annotated[
    Optional[str], typer.Option("--config", metavar="FILE", help="Settings file to read.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=served_models)]


class PlainFlags(TyperGroup):
    """A group with plain help texts: nothing is truncated, and flags are shown without `<bool>`.

    For an unknown command that is a common word of other programs, the error suggests the matching command.
    """

    def main(
        self,
        args: Any = None,
        prog_name: Optional[str] = None,
        complete_var: Optional[str] = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run it; print the reason for a wrong command line first."""
        run = partial(
            super().main, args, prog_name, complete_var, False, windows_expand_args, **extra
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            end_with_usage_error(error)
        sys.exit(code if isinstance(code, int) else 0)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_parameters(self, ctx, formatter)
        write_commands(self, ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands:
            if word == "help":
                ctx.fail(f"No such command 'help'. Use '{ctx.command_path} --help'.")
            meant = [one for one in _MEANT.get(word, ()) if one in self.commands]
            if meant:
                ctx.fail(f"No such command {word!r}. Did you mean {' or '.join(map(repr, meant))}?")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, PlainFlags):
            params = type(command).get_params
            command.get_params = lambda context: _plain(params(command, context))
            command.format_options = partial(write_parameters, command)
        return command


def print_json(value: Any) -> None:
    """Print a message, or a list or dict of plain values, as JSON."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def print_version_and_exit(wanted: bool) -> None:
    """Do the same as `version` if `--version` is given."""
    if wanted:
        from pytriton._cli.version import print_version

        raise typer.Exit(print_version())


def _plain(params: Any) -> Any:
    for param in params:
        take_plainly(param)
        if param.param_type_name == "option" and param.metavar is None:
            param.metavar = "" if param.is_flag else param.name.upper().replace("_", "-")
    return params
