"""The commands of `pytriton-daemon`, in the order of --help, and the parsers for them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from pytriton._cli.flags import print_version_and_exit
from pytriton._cli.typer_adapter import PlainFlags, resolved_parameters, show_parameters

#: Section of --help -> command or group -> its module in `pytriton._cli.commands`, and its name there.
_SECTIONS = {
    "Every day": {
        "serve": "serve:serve",
        "call": "call:call",
        "start": "daemon:start",
        "register": "models:register",
        "status": "status:status",
        "logs": "status:logs",
        "top": "status:show_top",
        "stop": "daemon:stop",
    },
    "Models": {
        "models": "models:models",
        "scale": "models:scale",
        "rollback": "models:rollback",
        "tune": "tune:tune",
        "unregister": "models:unregister",
        "repository": "repository:repository",
    },
    "When something is wrong": {
        "explain": "explain:explain",
        "events": "explain:events",
        "requests": "requests:requests",
        "access-log": "requests:access_log",
        "profile": "requests:profile",
        "doctor": "install:doctor",
    },
    "The daemon": {
        "restart": "daemon:restart",
        "reload": "daemon:reload",
        "upgrade": "daemon:upgrade",
        "drain": "daemon:drain",
        "service": "service:service",
        "install-server": "install:install_server",
        "cache": "install:cache",
        "version": "status:version",
    },
    "Access and several machines": {
        "access-token": "status:access_token",
        "keys": "keys:keys",
        "fleet": "fleet:fleet",
    },
}
_COMMANDS = {
    name: (section, where) for section, part in _SECTIONS.items() for name, where in part.items()
}


def parser(words: Sequence[str] = ()) -> typer.Typer:
    """Return a parser for the command at the start of `words`; for all commands if `words` starts with none.

    The parser has only one command because typer builds the parameters of every command, which takes longer than most
    commands take to run.
    """
    app = typer.Typer(
        cls=PlainFlags, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback()(_pytriton_daemon)
    for name in [words[0]] if words and words[0] in _COMMANDS else _COMMANDS:
        section, where = _COMMANDS[name]
        module, _, attribute = where.partition(":")
        command = getattr(import_module(f"pytriton._cli.commands.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=section)
        else:
            app.command(name, rich_help_panel=section)(command)
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


# In Python 3.9, typer ignores the flags in annotations that are text.
show_parameters(_pytriton_daemon, resolved_parameters(_pytriton_daemon))
