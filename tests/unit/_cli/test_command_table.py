"""The parser of one command equals its part of the full parser, and converts plain values as typer does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pytriton._cli.app import app
from pytriton._cli.command_table import parser

ALL: Any = typer.main.get_command(app)


def params_of(command: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a command, and of a group's commands, by the names of both."""
    for param in command.get_params(typer.Context(command)):
        yield f"{before}{param.name}", param
    for name in getattr(command, "commands", ()):
        yield from params_of(command.get_command(None, name), f"{before}{name} ")


def shown(command: Any) -> list[tuple[Any, ...]]:
    """Return what is visible of a command's parameters."""
    fields = ("opts", "secondary_opts", "help", "metavar", "default", "required", "nargs", "hidden")
    return [
        (name, *(getattr(param, one, None) for one in fields)) for name, param in params_of(command)
    ]


@pytest.mark.parametrize("name", ALL.commands)
def test_the_parser_of_one_command_is_that_command_alone(name: str) -> None:
    one: Any = typer.main.get_command(parser([name, "--anything"]))
    assert [*one.commands] == [name]
    assert shown(one.get_command(None, name)) == shown(ALL.get_command(None, name))
    assert [param.name for param in one.params] == [param.name for param in ALL.params]


@pytest.mark.parametrize("words", [[], ["--help"], ["statu"], ["--version", "status"]])
def test_without_a_command_name_all_commands_are_listed(words: list[str]) -> None:
    one: Any = typer.main.get_command(parser(words))
    assert [*one.commands] == [*ALL.commands]


def taken(by: Any, context: Any, value: Any) -> Any:
    """Return the converted value with its type, or the error."""
    try:
        value = by(context, value)
    except typer.BadParameter as error:
        return error.format_message()
    return type(value), value


@pytest.mark.skipif(
    not hasattr(ALL.params[0], "type_descriptor"), reason="this typer has no use for pydantic"
)
def test_plain_conversion_equals_typers(tmp_path: Path) -> None:
    """Test each parameter of each command with values that need no conversion, that need one, and that are invalid."""
    file = tmp_path / "file"
    file.touch()
    texts = ["", "text", "7", "-1", "1e9", str(file), str(tmp_path), str(tmp_path / "none"), "-"]
    context, compared = typer.Context(ALL), 0
    for name, param in params_of(ALL):
        if param.callback is not None:  # it prints, and ends the command
            continue
        for value in [None, param.default, (), *texts, ("a",), ("a", "b")]:
            by_typer = taken(type(param).process_value.__get__(param), context, value)
            assert taken(param.process_value, context, value) == by_typer, (name, value)
            compared += 1
    assert compared > 1000
