"""One call makes an event: who asked for it, what it is about, a record of the log; it never fails."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog

from pytriton._protocol.messages.events import Event
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.actor import acting_for
from pytriton.dispatcher.telemetry.events.events import LONGEST_REASON, Events


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def events(told: list[Event]) -> Events:
    return Events([told.append])


def test_it_is_about_what_its_taker_is_about(events: Events, told: list[Event]) -> None:
    one = events.about("m", 3, 1)
    one.tell(kinds.CRASHED, worker="w7", reason="killed", numbers={"batches": 4})
    assert (told[0].model, told[0].version, told[0].instance) == ("m", 3, 1)
    assert (told[0].kind, told[0].worker, told[0].reason) == ("crashed", "w7", "killed")
    assert told[0].numbers == {"batches": 4}


def test_serials_grow_whoever_tells(events: Events, told: list[Event]) -> None:
    for taker in (events, events.about("m"), events):
        taker.tell(kinds.READY_AGAIN)
    assert [event.serial for event in told] == [1, 2, 3]


def test_who_asked_is_told_of_what_is_asked_for_only(events: Events, told: list[Event]) -> None:
    """A worker that crashes in a task that began with a registration is nobody's wish."""

    async def crash() -> None:
        events.tell(kinds.CRASHED, model="m")

    async def register() -> None:
        with acting_for("user 7, process 8"):
            events.tell(kinds.REGISTERED, model="m")
            await asyncio.create_task(crash())
        events.tell(kinds.SCALED, model="m")
        events.tell(kinds.SCALED, model="m", who="autoscaling")

    asyncio.run(register())
    assert [(event.kind, event.who) for event in told] == [
        ("registered", "user 7, process 8"),
        ("crashed", ""),
        ("scaled", ""),
        ("scaled", "autoscaling"),
    ]


def test_a_record_of_the_log(events: Events) -> None:
    with structlog.testing.capture_logs() as logs:
        events.tell(kinds.SCALED, model="m", who="autoscaling", numbers={"instances": 4})
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


def test_long_texts_are_cut(events: Events, told: list[Event]) -> None:
    events.tell(kinds.CRASHED, model="m", reason="x" * 100_000, who="y" * 100_000)
    assert len(told[0].reason) == LONGEST_REASON
    assert told[0].reason.endswith("x…")
    assert len(told[0].who) == 200


def test_a_sink_that_fails_harms_nobody(told: list[Event]) -> None:
    def fail(event: Event) -> None:
        raise ValueError("no room")

    events = Events([fail, told.append])
    with structlog.testing.capture_logs() as logs:
        events.tell(kinds.STOPPING)
    assert [event.kind for event in told] == ["stopping"]
    assert [log["event"] for log in logs] == ["daemon stopping", "internal error in the event log"]


def test_texts_that_no_file_or_message_can_have_are_escaped(
    events: Events, told: list[Event]
) -> None:
    """The name of a file need not be UTF-8, and stands in the error that it causes."""
    events.tell(kinds.NOT_LOADED, model="m\udcff", reason="no \udcff: " + "\udcff" * 3000)
    (one,) = told
    assert (one.model, one.reason[:12]) == ("m\\udcff", "no \\udcff: \\")
    assert len(one.reason) == LONGEST_REASON
    msgspec.msgpack.encode(one)
