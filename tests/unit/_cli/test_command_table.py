"""The parser of one command is that command of the parser of all; and it takes plain values as typer does."""

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
    """Yield the parameters of a command, and of those of a group, by the names of both."""
    for param in command.get_params(typer.Context(command)):
        yield f"{before}{param.name}", param
    for name in getattr(command, "commands", ()):
        yield from params_of(command.get_command(None, name), f"{before}{name} ")


def shown(command: Any) -> list[tuple[Any, ...]]:
    """Return what there is to see of a command's parameters."""
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
def test_where_no_command_is_named_all_are_there(words: list[str]) -> None:
    one: Any = typer.main.get_command(parser(words))
    assert [*one.commands] == [*ALL.commands]


def taken(by: Any, context: Any, value: Any) -> Any:
    """Return what becomes of a value: its type, too, or what is said of it."""
    try:
        value = by(context, value)
    except typer.BadParameter as error:
        return error.format_message()
    return type(value), value


@pytest.mark.skipif(
    not hasattr(ALL.params[0], "type_descriptor"), reason="this typer has no use for pydantic"
)
def test_unconverted_values_equal_those_that_typer_converts(tmp_path: Path) -> None:
    """Each parameter of each command, with what needs no conversion, what does, and what is wrong."""
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
