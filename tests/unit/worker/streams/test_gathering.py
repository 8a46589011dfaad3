"""Parts of several streams in one message: in turns of the event loop that are short, and in no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytriton.ipc.lanes.arena import ArenaError
from pytriton.ipc.lanes.lane import Lane, LaneClosed
from pytriton.ipc.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    BatchParts,
    Credit,
    FromProxy,
    FromWorker,
    PartRef,
    ResponseRef,
    Room,
)
from pytriton.worker.streams.gathering import GatheringOutbox, Use

SHORT_NS, LONG_NS = 1_000, 5_000_000


def part(number: int) -> BatchPart:
    return BatchPart(number, [ResponseRef([], str(number))])


class Loop:
    """Turns of an event loop, on a clock of its own."""

    def __init__(self, lanes: tuple[Lane, Lane]) -> None:
        self.proxy = lanes[0]
        self.now_ns = 1
        self.used = Use(0, 0)
        self.faults: list[Exception] = []
        self._soon: list[Callable[[], None]] = []
        self.outbox = GatheringOutbox(
            lanes[1], 100, self._soon.append, lambda _, error: self.faults.append(error),
            lambda: self.now_ns, lambda: self.used,
        )  # fmt: skip
        self.outbox.streams = dict.fromkeys(range(64))  # type: ignore[assignment]
        assert self.proxy.receive() == Room(100)

    def turn(self, *numbers: int, each_ns: int = SHORT_NS) -> None:
        """Have streams answer in one turn."""
        for number in numbers:
            self.outbox.put(part(number))
            self.compute(each_ns)
        self.end()

    def compute(self, time_ns: int) -> None:
        self.now_ns += time_ns
        self.used = self.used._replace(cpu_ns=self.used.cpu_ns + time_ns)

    def wait(self, time_ns: int) -> None:
        """Have a callable wait for something, and block its thread."""
        self.now_ns += time_ns
        self.used = self.used._replace(waits=self.used.waits + 1)

    def end(self) -> None:
        due, self._soon[:] = self._soon[:], []
        for one in due:
            one()

    def said(self, count: int) -> list[FromProxy | FromWorker]:
        """Return the messages that have come, which are so many."""
        found = [self.proxy.receive() for _ in range(count)]
        self.outbox.lane.send(BatchDone(99, []))
        assert self.proxy.receive() == BatchDone(99, [])
        return found


@pytest.fixture
def loop(lanes: tuple[Lane, Lane]) -> Loop:
    return Loop(lanes)


def together(*numbers: int) -> BatchParts:
    return BatchParts([PartRef(number, part(number).responses) for number in numbers])


def test_a_turn_behind_a_short_one_with_several_sends_one_message(loop: Loop) -> None:
    loop.turn(1, 2)
    assert loop.said(2) == [part(1), part(2)]
    loop.turn(1, 2, 3)
    assert loop.said(1) == [together(1, 2, 3)]
    loop.turn(1)
    assert loop.said(1) == [part(1)]
    loop.turn(1, 2)  # the turn before had one
    assert loop.said(2) == [part(1), part(2)]


def test_nothing_waits_behind_a_turn_that_took_long(loop: Loop) -> None:
    loop.turn(1, 2, each_ns=LONG_NS)
    loop.turn(1, 2, each_ns=LONG_NS)
    assert loop.said(4) == [part(1), part(2)] * 2


def test_nothing_waits_behind_a_turn_that_waited_for_something(loop: Loop) -> None:
    for _ in range(2):
        loop.outbox.put(part(1))
        loop.wait(LONG_NS)
        loop.turn(2)
    assert loop.said(4) == [part(1), part(2)] * 2


def test_a_turn_is_as_short_as_its_steps_whatever_others_did_meanwhile(loop: Loop) -> None:
    """Other processes had the processor; and there are many streams."""
    loop.turn(1, 2)
    loop.said(2)
    loop.outbox.put(part(1))
    loop.now_ns += 1_000_000
    loop.turn(2)
    assert loop.said(1) == [together(1, 2)]
    loop.turn(*range(20), each_ns=90_000)
    loop.turn(1, 2)
    assert loop.said(2) == [together(*range(20)), together(1, 2)]


def test_no_part_waits_longer_than_two_milliseconds_for_others(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.said(2)
    loop.turn(*range(30), each_ns=90_000)
    assert loop.said(2) == [together(*range(24)), together(*range(24, 30))]


def test_what_waits_in_a_turn_that_takes_long_goes_out_with_the_next_part(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.said(2)
    loop.outbox.put(part(1))
    loop.compute(LONG_NS)
    loop.outbox.put(part(2))
    assert loop.said(1) == [together(1, 2)]
    loop.end()
    loop.turn(1, 2)
    assert loop.said(2) == [part(1), part(2)]


def test_an_only_stream_waits_for_nobody(loop: Loop) -> None:
    loop.outbox.streams = {1: None}  # type: ignore[dict-item]
    loop.turn(1, 1)
    loop.turn(1, 1)
    assert loop.said(4) == [part(1)] * 4


def test_no_more_than_32_parts_are_in_a_message(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.turn(*range(40), each_ns=0)
    assert loop.said(4)[2:] == [together(*range(32)), together(*range(32, 40))]


def test_other_messages_stay_behind_the_parts_before_them(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.said(2)
    loop.outbox.put(part(1))
    loop.outbox.put(part(2))
    loop.outbox.send(BatchDone(1, []))
    loop.outbox.send(BatchBegun(5))
    loop.end()
    assert loop.said(3) == [together(1, 2), BatchDone(1, []), BatchBegun(5)]


def test_parts_that_wait_count_as_unread(loop: Loop) -> None:
    loop.turn(1, 2)
    for number in range(30):
        loop.outbox.put(part(number))
    assert loop.outbox.full
    loop.end()
    loop.outbox.heard(Credit(32))
    assert not loop.outbox.full


def test_a_lane_that_is_gone_is_sent_nothing(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.outbox.put(part(1))
    loop.outbox.forget()
    loop.end()
    assert loop.faults == []
    assert loop.said(2) == [part(1), part(2)]  # of the turn before


def test_a_proxy_that_has_gone_is_nobodys_fault_and_one_that_does_not_read_is(loop: Loop) -> None:
    loop.turn(1, 2)
    while not loop.faults:
        loop.turn(1, 2, each_ns=0)
    assert "does not read" in str(loop.faults[0])
    loop.faults.clear()
    loop.proxy.hang_up()
    loop.turn(1, 2)
    assert loop.faults == []


@pytest.mark.parametrize("flushes", ["part", "end", "turn"])
def test_parts_of_several_streams_that_cannot_be_sent_end_them_all(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, flushes: str
) -> None:
    """Whoever sends them: each of the streams has lost a part, and would go on as if it had not."""
    long = ResponseRef([], "x" * 3000)
    loop.turn(1, 2)
    for number in range(31):
        loop.outbox.put(BatchPart(number, [long]))
    monkeypatch.setattr("pytriton.ipc.linux.available_memory", lambda: 0)
    if flushes == "part":
        with pytest.raises(LaneClosed, match="could not be sent: cannot get"):
            loop.outbox.put(BatchPart(31, [long]))
    elif flushes == "end":
        with pytest.raises(LaneClosed, match="could not be sent: cannot get"):
            loop.outbox.send(BatchDone(1, []))
    loop.end()
    assert [type(fault) for fault in loop.faults] == [ArenaError]
    assert loop.said(2) == [part(1), part(2)]  # of the turn before


def test_a_batch_is_heard_as_ever(loop: Loop) -> None:
    batch = Batch(70, [])
    assert loop.outbox.heard(batch) is batch
