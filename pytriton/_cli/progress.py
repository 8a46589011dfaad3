"""Progress on the command line: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from pytriton._cli.errors import say
from pytriton._cli.log_lines import visible


class Spinner:
    """A line on standard error that shows the newest text and disappears at the end.

    Without a terminal, each text is printed as a line.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(_plain(text))

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
            self._status.update(_plain(text))
        else:
            say(f"  {text}")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text, keep="\n"))
