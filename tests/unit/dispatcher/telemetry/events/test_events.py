"""One call emits an event: its requester, its model, and a log record; it never fails."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog

from pytriton._protocol import messages
from pytriton._protocol.messages.client import Event
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import (
    MAX_REASON_LENGTH,
    Events,
    acting_for,
    emit_reload,
)


@pytest.fixture
def reported() -> list[Event]:
    return []


@pytest.fixture
def events(reported: list[Event]) -> Events:
    return Events([reported.append])


def test_an_event_is_about_the_model_of_its_emitter(events: Events, reported: list[Event]) -> None:
    one = events.about("m", 3, 1)
    one.emit(kinds.CRASHED, worker="w7", reason="killed", numbers={"batches": 4})
    assert (reported[0].model, reported[0].version, reported[0].instance) == ("m", 3, 1)
    assert (reported[0].kind, reported[0].worker, reported[0].reason) == ("crashed", "w7", "killed")
    assert reported[0].numbers == {"batches": 4}


def test_serial_numbers_grow_across_emitters(events: Events, reported: list[Event]) -> None:
    for emitter in (events, events.about("m"), events):
        emitter.emit(kinds.READY_AGAIN)
    assert [event.serial for event in reported] == [1, 2, 3]


def test_the_requester_is_named_only_for_requested_events(
    events: Events, reported: list[Event]
) -> None:
    """Nobody requested the crash of a worker, even in a task that began with a registration."""

    async def crash() -> None:
        events.emit(kinds.CRASHED, model="m")

    async def register() -> None:
        with acting_for("user 7, process 8"):
            events.emit(kinds.REGISTERED, model="m")
            await asyncio.create_task(crash())
        events.emit(kinds.SCALED, model="m")
        events.emit(kinds.SCALED, model="m", who="autoscaling")

    asyncio.run(register())
    assert [(event.kind, event.who) for event in reported] == [
        ("registered", "user 7, process 8"),
        ("crashed", ""),
        ("scaled", ""),
        ("scaled", "autoscaling"),
    ]


def test_an_event_is_logged(events: Events) -> None:
    with structlog.testing.capture_logs() as logs:
        events.emit(kinds.SCALED, model="m", who="autoscaling", numbers={"instances": 4})
    assert logs == [
        {
            "event": "model scaled",
            "log_level": "info",
            "kind": "scaled",
            "model": "m",
            "who": "autoscaling",
            "instances": 4,
        }
    ]


def test_long_texts_are_truncated(events: Events, reported: list[Event]) -> None:
    events.emit(kinds.CRASHED, model="m", reason="x" * 100_000, who="y" * 100_000)
    assert len(reported[0].reason) == MAX_REASON_LENGTH
    assert reported[0].reason.endswith("x…")
    assert len(reported[0].who) == 200


def test_a_failing_sink_does_not_affect_others(reported: list[Event]) -> None:
    def fail(event: Event) -> None:
        raise ValueError("no room")

    events = Events([fail, reported.append])
    with structlog.testing.capture_logs() as logs:
        events.emit(kinds.STOPPING)
    assert [event.kind for event in reported] == ["stopping"]
    assert [log["event"] for log in logs] == ["daemon stopping", "internal error in the event log"]


def test_unencodable_texts_are_escaped(events: Events, reported: list[Event]) -> None:
    """A file name need not be valid UTF-8, and may appear in an error."""
    events.emit(
        kinds.REPOSITORY_LOAD_FAILED, model="m\udcff", reason="no \udcff: " + "\udcff" * 3000
    )
    (one,) = reported
    assert (one.model, one.reason[:12]) == ("m\\udcff", "no \\udcff: \\")
    assert len(one.reason) == MAX_REASON_LENGTH
    msgspec.msgpack.encode(one)


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
def test_a_reload_reports_its_changes(
    answer: tuple[list[str], list[str], str], kind: str, reason: str, numbers: dict[str, int]
) -> None:
    reported: list[Event] = []
    emit_reload(Events([reported.append]), messages.Reloaded(*answer))
    (event,) = reported
    assert (event.kind, event.reason, event.numbers) == (kind, reason, numbers)
