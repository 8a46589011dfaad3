"""The commands of `pytriton-daemon`, in the order in which --help tells them, and the parser of one or of all."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from pytriton.cli.flags import PlainFlags, print_version_and_exit

#: Command, or group of commands -> its module in `pytriton.cli.commands`, and what it is called there.
_COMMANDS = {
    "explain": "explaining:explain",
    "events": "explaining:events",
    "slowest": "requests:slowest",
    "access-log": "requests:access_log",
    "profile": "requests:profile",
    "start": "daemon_life:start",
    "stop": "daemon_life:stop",
    "drain": "daemon_life:drain",
    "upgrade": "daemon_life:upgrade",
    "reload": "daemon_life:reload",
    "restart": "daemon_life:restart",
    "status": "looking:status",
    "top": "looking:show_top",
    "token": "looking:token",
    "models": "models:models",
    "register": "models:register",
    "unregister": "models:unregister",
    "scale": "models:scale",
    "rollback": "models:rollback",
    "logs": "looking:logs",
    "doctor": "setup:doctor",
    "install-server": "setup:install_server",
    "version": "looking:version",
    "service": "service:service",
    "repository": "repository:repository",
    "keys": "keys:keys",
    "fleet": "fleet:fleet",
}


def parser(words: Sequence[str] = ()) -> typer.Typer:
    """Return the parser of the command that `words` begin with; where they begin with none, that of all commands.

    typer makes all parameters of what it is given: for all commands that takes longer than most commands do.
    """
    app = typer.Typer(cls=PlainFlags, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_pytriton_daemon)
    for name in [words[0]] if words and words[0] in _COMMANDS else _COMMANDS:
        module, _, attribute = _COMMANDS[name].partition(":")
        command = getattr(import_module(f"pytriton.cli.commands.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _pytriton_daemon(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version_and_exit, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve Python callables through NVIDIA Triton Inference Server."""
