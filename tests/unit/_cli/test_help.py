"""`--help` on a terminal of 80 columns, and the errors of wrong command lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from pytriton._cli.app import app
from pytriton._cli.command_table import parser

ALL: Any = typer.main.get_command(app)


def _commands(group: Any, *before: str) -> Iterator[tuple[list[str], Any]]:
    for name in group.commands:
        command = group.get_command(None, name)
        yield [*before, name], command
        if hasattr(command, "commands"):
            yield from _commands(command, *before, name)


def _said(*words: str) -> str:
    done = CliRunner().invoke(parser(words), words, prog_name="pytriton-daemon", terminal_width=80)
    return done.output


def test_the_flag_version_takes_precedence_over_a_command() -> None:
    assert re.fullmatch(
        r"pytriton-daemon \d+\.\d+\.\d+ \(Python .*\)\n", _said("--version", "status")
    )


def test_commands_are_listed_by_frequency_of_use() -> None:
    listed = re.findall(r"^  ([a-z-]+)  ", _said("--help").partition("Every day:")[2], re.MULTILINE)
    assert listed[:6] == ["serve", "call", "start", "register", "status", "logs"]
    assert sorted(listed) == sorted(ALL.commands)


@pytest.mark.parametrize(
    ("words", "command"),
    [pytest.param(words, command, id=" ".join(words)) for words, command in _commands(ALL)],
)
def test_help_fits_into_80_columns_without_truncation(words: list[str], command: Any) -> None:
    text = _said(*words, "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "docs/" not in text  # pip installations have no such folder
    shown = set(text.split())
    context = typer.Context(command)
    for param in command.get_params(context):
        record = param.get_help_record(context)
        name, text_of_it = record or ("", "")
        missing = {*name.split()[:1], *text_of_it.split()} - shown
        assert not missing, param.name


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["start", "--htp-port", "1"], "No such option:? '?--htp-port"),  # depends on click
        (["statsu"], "No such command 'statsu'. Did you mean 'status'"),
        (["scale"], "Missing argument"),
        (["register"], "use either MODULE:ATTRIBUTE, a model file, or --model-dir FOLDER"),
    ],
)
def test_a_wrong_command_line_gets_the_reason_first_and_once(words: list[str], reason: str) -> None:
    done = CliRunner().invoke(parser(words), words, prog_name="pytriton-daemon")
    first, *others = done.output.splitlines()
    assert re.match(f"pytriton-daemon: {reason}", first)
    asked = ["pytriton-daemon", *(word for word in words[:1] if word in ALL.commands), "--help"]
    assert others == [f"Try '{' '.join(asked)}'."]
    assert done.exit_code == 2
