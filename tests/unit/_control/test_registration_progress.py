"""Where a registration reports its progress."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from pytriton._control.connection import reporter
from pytriton._protocol import messages
from pytriton.exceptions import PyTritonBadParameterError


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_callback_gets_the_events() -> None:
    seen: list[messages.Progress] = []
    with reporter(seen.append, "m") as report:
        assert report is not None
        report(messages.Progress("worker", "loading"))
    assert [one.text for one in seen] == ["loading"]


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_a_terminal_shows_a_line(
    progress: bool | None, terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with reporter(progress, "m") as report:
        assert (report is not None) == shown
        if report is not None:
            report(messages.Progress("worker", "[red] 1 of 2", 1, 2))
    text = stderr.getvalue()
    assert shown or text == ""
    assert not (shown and terminal) or "[red] 1 of 2" in text, (
        "markup in a user's text is not interpreted"
    )


def test_no_progress_is_shown_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with reporter(None, "m") as report:
        assert report is None


def test_other_values_are_refused() -> None:
    wrong: Any = "yes"
    with pytest.raises(PyTritonBadParameterError, match="progress='yes'"), reporter(wrong, "m"):
        pass
