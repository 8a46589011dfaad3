"""Errors on standard error: they quote other programs' texts, which must not control the terminal."""

from __future__ import annotations

import pytest
import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.output import Spinner
from pytriton._protocol.exit_codes import ExitCode

#: Clears the screen, sets a color with a one-byte control character, and moves to the start of the line.
HOSTILE = "\x1b[2J\x9b31m\r"
VISIBLE = "\\x1b[2J\\x9b31m\\r"


def test_control_sequences_in_an_error_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    @command
    def fails() -> None:
        raise CliError(ExitCode.REGISTRATION_FAILED, f"the callable said: {HOSTILE}é\nand more")

    with pytest.raises(typer.Exit):
        fails()
    said = f"pytriton-daemon: the callable said: {VISIBLE}é\nand more\n"
    assert capsys.readouterr().err == said


def test_control_sequences_in_an_internal_error_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @command
    def fails() -> None:
        raise KeyError(HOSTILE) from ValueError(HOSTILE)

    with pytest.raises(typer.Exit):
        fails()
    said = capsys.readouterr().err
    assert f"ValueError: {VISIBLE}\n" in said
    assert "\x1b" not in said
    assert said.endswith("internal error; please report it\n")


def test_control_sequences_in_progress_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with Spinner("loading") as spinner:
        spinner.say(HOSTILE)
    assert capsys.readouterr().err == f"loading\n  {VISIBLE}\n"
