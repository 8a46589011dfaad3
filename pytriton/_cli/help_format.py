"""The text of `--help` and of usage errors: plain, and not truncated on narrow terminals."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

#: Default sections of parameters.
_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_NO_LIMIT = 10_000
_MAX_FIRST_COLUMN = 28


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the arguments and flags of a command, by section."""
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
    """Write the commands of a group, by section, each with the first sentence of its help."""
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
            formatter.write(
                textwrap.fill(
                    text,
                    formatter.width,
                    initial_indent=head,
                    subsequent_indent=" " * (column + 4),
                    break_on_hyphens=False,  # do not break paths and flags
                    break_long_words=False,
                ).rstrip()
                + "\n"
            )


def end_with_usage_error(error: Any) -> NoReturn:
    """Print the reason of a usage error and a hint, and exit with the code of usage errors."""
    from pytriton._cli.errors import say

    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # its text is the help itself
        error.show()
    else:
        say(f"pytriton-daemon: {error.format_message().removeprefix('Invalid value: ')}")
        if ctx is not None:
            say(f"Try '{ctx.command_path} --help'.")
    raise SystemExit(error.exit_code)
