"""Reloads of the settings as events."""

from __future__ import annotations

import pytest

from pytriton._protocol import messages
from pytriton._protocol.messages.events import Event
from pytriton.dispatcher.telemetry.events.events import Events, emit_reload


@pytest.mark.parametrize(
    ("answer", "kind", "reason", "numbers"),
    [
        (([], [], "it is starting"), "reload_failed", "it is starting", {}),
        (([], [], ""), "reloaded", "no changes", {"applied": 0, "waiting": 0}),
        (
            (["log_level", "webhooks"], [], ""),
            "reloaded",
            "now: log_level, webhooks",
            {"applied": 2, "waiting": 0},
        ),
        (
            (["log_level"], ["http_port"], ""),
            "reloaded",
            "now: log_level; after a restart of the daemon: http_port",
            {"applied": 1, "waiting": 1},
        ),
    ],
    ids=["a problem", "nothing", "at once", "both"],
)
def test_a_reload_s_changes_are_reported(
    answer: tuple[list[str], list[str], str], kind: str, reason: str, numbers: dict[str, int]
) -> None:
    reported: list[Event] = []
    emit_reload(Events([reported.append]), messages.Reloaded(*answer))
    (event,) = reported
    assert (event.kind, event.reason, event.numbers) == (kind, reason, numbers)
