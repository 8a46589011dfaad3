"""Writes the output of commands: text without control characters, JSON, and progress."""

from __future__ import annotations

import sys
from typing import Any

import typer


def say(text: str) -> None:
    """Print a message on standard error, so that standard output contains only results.

    Control characters are escaped, since the text may quote callables, clients and other machines.
    """
    typer.echo(visible(text, keep="\n"), err=True)


def visible(text: str, keep: str = "") -> str:
    """Escape control characters in a text, except those in `keep` and tabs: they could control the terminal."""
    return "".join(
        char if char.isprintable() or char in keep or char == "\t" else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def print_json(value: Any) -> None:
    """Print a message, a list or a dictionary as JSON."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


class Spinner:
    """A progress line on standard error, which shows the last text and disappears at the end.

    Without a terminal, each text is printed on a line of its own.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(_plain_markup(text))

    def __enter__(self) -> Spinner:
        if self._status is not None:
            self._status.start()
        else:
            say(self._text)
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Replace the previous text with this one."""
        if self._status is not None:
            self._status.update(_plain_markup(text))
        else:
            say(f"  {text}")


def _plain_markup(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text, keep="\n"))
