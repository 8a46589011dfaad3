"""`--follow` continues after the events already shown; with none shown, it starts now rather than in the past."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import typer

from pytriton._cli import daemon_connection
from pytriton._cli.commands import explain
from pytriton._cli.errors import CliError
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.messages.client import Event


def _followed(patch: pytest.MonkeyPatch, shown: list[Event], **flags: Any) -> messages.GetEvents:
    """Return the request that follows the first answer."""
    asked: list[messages.AnyMessage] = []

    def ask(rundir: object, message: messages.AnyMessage) -> messages.AnyMessage:
        asked.append(message)
        if len(asked) > 2:
            raise CliError(ExitCode.ERROR, "the daemon has ended")
        return messages.EventList(shown if len(asked) == 1 else [])

    patch.setattr(daemon_connection, "ask", ask)
    patch.setattr(daemon_connection, "runtime_dir", lambda given: given)
    patch.setattr(explain, "_POLL_S", 0)
    with pytest.raises(typer.Exit):
        explain.events(follow=True, runtime_dir=Path("/nowhere"), **flags)
    following = asked[1]
    assert isinstance(following, messages.GetEvents)
    return following


def test_following_continues_after_the_last_shown_event(monkeypatch: pytest.MonkeyPatch) -> None:
    following = _followed(monkeypatch, [Event(7, 1.0, "ready"), Event(9, 2.0, "ready")])
    assert (following.after, following.since) == (9, 0.0)


def test_with_nothing_shown_following_starts_now(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time()
    following = _followed(monkeypatch, [], lines=0, kind=["hang"])
    assert following.after == 0
    assert before <= following.since <= time.time()
    assert following.kinds == ["hang"]


@pytest.mark.parametrize("text", ["0001-01-01", "x", "1e3s", "-5m", "5"])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(CliError, match="use a duration"):
        explain.parse_since(text, 1e9)
