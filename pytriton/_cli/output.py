"""What commands print: text without control characters, JSON, progress."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import typer


def say(text: str) -> None:
    """Print a message for people on standard error, so that standard output stays clean for programs.

    The text may quote callables, clients and other machines, so control characters are escaped.
    """
    typer.echo(visible(text, keep="\n"), err=True)


def visible(text: str, keep: str = "") -> str:
    """Return a text with control characters, which could control the terminal, escaped."""
    return "".join(
        char if char.isprintable() or char in keep or char == "\t" else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def print_json(value: Any) -> None:
    """Print a message, or a list or dict of plain values, as JSON."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


class Spinner:
    """A line on standard error that shows the newest text and disappears at the end.

    Without a terminal, each text is printed as a line.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Show a new text."""
        if self._status is not None:
            self._status.update(_plain_markup(text))
        else:
            say(f"  {text}")


def _plain_markup(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text, keep="\n"))
