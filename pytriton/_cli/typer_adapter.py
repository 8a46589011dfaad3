"""Changes to typer's behavior: plain help texts, no conversion of values, resolved annotations."""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

from typer.core import TyperGroup

from pytriton._cli.output import say

#: Names of commands in other programs -> the commands with that meaning here.
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
#: Default sections of parameters.
_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_NO_LIMIT = 10_000
_MAX_FIRST_COLUMN = 28
_BY_TYPER = object()
#: typer's options for checks and conversions of values, with the values that mean that they are not used.
_NOTHING_MORE = {
    "parser": None, "path_type": None, "exists": False, "file_okay": True, "dir_okay": True, "writable": False,
    "readable": True, "resolve_path": False, "allow_dash": False,
}  # fmt: skip


class PlainFlags(TyperGroup):
    """A group of commands with plain help texts: nothing is truncated, and flags are shown without `<bool>`.

    If an unknown command has a common name in other programs, the error suggests the matching command.
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
        """Run the command line. If it is invalid, print the reason before the hint."""
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


def _plain(params: Any) -> Any:
    for param in params:
        skip_conversion(param)
        if param.param_type_name == "option" and param.metavar is None:
            param.metavar = "" if param.is_flag else param.name.upper().replace("_", "-")
    return params


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help texts of a command's arguments and flags, by section."""
    records = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            usual = _ARGUMENTS if param.param_type_name == "argument" else _OPTIONS
            name = re.sub(r" <[^>]*>$", "", record[0])  # newer versions of typer add the type
            section = getattr(param, "rich_help_panel", None) or usual
            records.append((section, (name, record[1])))
    _write_sections(formatter, records)


def write_commands(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the commands of a group by section, each with the first sentence of its help text."""
    records = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        text = command.get_short_help_str(_NO_LIMIT)
        records.append((getattr(command, "rich_help_panel", None) or "Commands", (name, text)))
    _write_sections(formatter, records)


def _write_sections(formatter: Any, records: Iterable[tuple[str, tuple[str, str]]]) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for section, record in records:
        sections.setdefault(section, []).append(record)
    for section, rows in sections.items():
        formatter.write(f"\n{section}:\n")
        column = min(_MAX_FIRST_COLUMN, max(len(name) for name, _ in rows))
        for name, text in rows:
            head = f"  {name.ljust(column)}  "
            if len(name) > column:  # its text starts on the next line
                formatter.write(f"  {name}\n")
                head = " " * (column + 4)
            lines = textwrap.fill(
                text,
                formatter.width,
                initial_indent=head,
                subsequent_indent=" " * (column + 4),
                break_on_hyphens=False,  # do not break paths and flags
                break_long_words=False,
            )
            formatter.write(f"{(lines or head).rstrip()}\n")  # no lines: no text, only a name


def end_with_usage_error(error: Any) -> NoReturn:
    """Print the reason for a usage error and a hint, and exit with the error's exit code."""
    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # its text is the help itself
        error.show()
    else:
        say(f"pytriton-daemon: {error.format_message().removeprefix('Invalid value: ')}")
        if ctx is not None:
            say(f"Try '{ctx.command_path} --help'.")
    raise SystemExit(error.exit_code)


def skip_conversion(param: Any) -> None:
    """Let a parameter accept text, paths, defaults and missing values without conversion by pydantic.

    typer still converts and checks all other values, and all values in versions of typer that do not use pydantic.
    """
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None or "process_value" in vars(param):
        return
    by_typer = param.process_value

    def process_value(context: Any, value: Any) -> Any:
        taken = _unconverted(param, descriptor, value)
        if taken is _BY_TYPER or (param.required and not taken):
            return by_typer(context, value)
        return taken if param.callback is None else param.callback(context, param, taken)

    param.process_value = process_value


def _unconverted(param: Any, descriptor: Any, value: Any) -> Any:
    """Return a value as typer would convert it; `_BY_TYPER` if typer itself must convert it."""
    kind, wanted = descriptor.annotation, descriptor.parameter_info
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    if any(getattr(wanted, name, _BY_TYPER) is not usual for name, usual in _NOTHING_MORE.items()):
        return _BY_TYPER
    if several:
        is_text = kind == list[str] and type(value) is tuple and {*map(type, value)} <= {str}
        return [*value] if is_text else _BY_TYPER
    if kind is str and type(value) is str:
        return value
    if kind is Path and type(value) is str:
        # typer reports a path that exists but cannot be read.
        return Path(value) if os.access(value, os.R_OK) or not os.path.lexists(value) else _BY_TYPER
    if kind in (int, float) and type(value) is kind and value == param.default:
        return value
    return _BY_TYPER


def resolved_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with string annotations resolved to objects."""
    hints = typing.get_type_hints(function, include_extras=True)
    return [
        parameter.replace(annotation=_explicit(hints.get(name, parameter.annotation)))
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def show_parameters(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Make typer see these parameters as those of `function`."""
    function.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}


def _explicit(hint: Any) -> Any:
    """Undo the Optional[Annotated[...]] that Python below 3.11 creates for a default of None."""
    for part in typing.get_args(hint):
        if typing.get_origin(part) is Annotated:
            return part
    return hint
