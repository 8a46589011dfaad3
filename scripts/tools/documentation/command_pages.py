"""Generate the page of commands from the parser, with all arguments, flags and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from pytriton._cli.app import app
from pytriton._host.settings.declarations import options

_HEAD = """\
# Commands and flags

All commands with their arguments and flags. [Command line](cli.md) has an overview, exit codes and log files;
[Configuration](configuration.md) has the flags of settings.
"""


def pages() -> dict[str, str]:
    """Return the page by its path in the site."""
    command = typer.main.get_command(app)
    parts = [_section(name, one) for name, one in _commands(command, "pytriton-daemon")]
    return {"reference/commands.md": "\n".join([_HEAD, *parts])}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands except groups, with their full names."""
    subs = getattr(command, "commands", None)
    if subs is None:
        yield name, command
        return
    for sub in subs:
        yield from _commands(command.get_command(None, sub), f"{name} {sub}")


def _section(name: str, command: Any) -> str:
    params = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = " ".join(_usage(one) for one in params if one.param_type_name == "argument")
    lines = [f"## {name.partition(' ')[2]}", "", f"`{name}{' ' if arguments else ''}{arguments}`"]
    lines += ["", " ".join((command.help or "").split()), ""]
    flags = [one for one in params if one.param_type_name == "option" and one.name != "help"]
    settings = [one for one in flags if one.name in options()]
    if len(settings) > 10:  # `start` and similar commands
        flags = [one for one in flags if one not in settings]
    if flags:
        lines += ["| flag | does |", "|---|---|", *map(_row, flags), ""]
    if len(settings) > 10:
        lines += ["Also takes a flag for each setting: [Configuration](configuration.md).", ""]
    return "\n".join(lines)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _row(option: Any) -> str:
    names = ", ".join(f"`{one}`" for one in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    default = "" if option.default in (None, False, [], ()) or option.is_flag else option.default
    help_text = " ".join((option.help or "").split()).replace("|", "\\|")
    return f"| {names}{value} | {help_text}{f' Default: `{default}`.' if default != '' else ''} |"
