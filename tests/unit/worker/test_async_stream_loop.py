"""Grouping of several streams' parts into one message: in short iterations of the event loop, and in no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fakes.lane_pair import Lanes, lane_pair

from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    BatchBegun,
    BatchDone,
    BatchPart,
    BatchParts,
    BatchTexts,
    Credit,
    FromProxy,
    FromWorker,
    PartRef,
    ResponseRef,
    Room,
)
from pytriton.worker.async_stream_loop import GatheringOutbox, Turns, Use

SHORT_NS, LONG_NS = 1_000, 5_000_000


def part(number: int) -> BatchPart:
    return BatchPart(number, [ResponseRef([], str(number))])


class Loop:
    """Iterations of an event loop on a fake clock."""

    def __init__(self, lanes: Lanes) -> None:
        self.proxy = lanes[0]
        self.now_ns = 1
        self.used = Use(0, 0)
        self.faults: list[Exception] = []
        self._soon: list[Callable[[], None]] = []
        self._turns = Turns(self._soon.append, lambda: self.now_ns, lambda: self.used)
        self.outbox = self.add(lanes)

    def add(self, lanes: Lanes) -> GatheringOutbox:
        """Return the outbox of a lane with streams."""
        fault = self.faults.append
        outbox = GatheringOutbox(
            lanes[1], 100, self._turns, lambda _, error: fault(error), lambda: None
        )
        outbox.streams = dict.fromkeys(range(64))  # type: ignore[assignment]
        assert lanes[0].receive() == Room(100)
        return outbox

    def turn(self, *numbers: int, each_ns: int = SHORT_NS) -> None:
        """Let streams answer in one iteration."""
        for number in numbers:
            self.outbox.put(part(number))
            self.compute(each_ns)
        self.end()

    def compute(self, time_ns: int) -> None:
        self.now_ns += time_ns
        self.used = self.used._replace(cpu_ns=self.used.cpu_ns + time_ns)

    def wait(self, time_ns: int) -> None:
        """Let a callable wait for something and block its thread."""
        self.now_ns += time_ns
        self.used = self.used._replace(waits=self.used.waits + 1)

    def end(self) -> None:
        due, self._soon[:] = self._soon[:], []
        for one in due:
            one()

    def said(self, count: int) -> list[FromProxy | FromWorker]:
        """Return the messages received, whose number must match."""
        found = [self.proxy.receive() for _ in range(count)]
        self.outbox.lane.send(BatchDone(99, []))
        assert self.proxy.receive() == BatchDone(99, [])
        return found


@pytest.fixture
def loop(lanes: Lanes) -> Loop:
    return Loop(lanes)


@pytest.fixture
def more_lanes() -> Iterator[Lanes]:
    with lane_pair() as ends:
        yield ends


def together(*numbers: int) -> BatchParts:
    return BatchParts([PartRef(number, part(number).responses) for number in numbers])


def test_after_a_short_turn_with_several_parts_the_next_sends_one_message(loop: Loop) -> None:
    loop.turn(1, 2)
    assert loop.said(2) == [part(1), part(2)]
    loop.turn(1, 2, 3)
    assert loop.said(1) == [together(1, 2, 3)]
    loop.turn(1)
    assert loop.said(1) == [part(1)]
    loop.turn(1, 2)  # only the previous turn had one
    assert loop.said(1) == [together(1, 2)]


def test_after_two_turns_with_one_part_parts_are_sent_immediately(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.turn(1)
    loop.turn(2)
    assert loop.said(4) == [part(1), part(2), part(1), part(2)]
    loop.outbox.put(part(1))  # not at the end of the turn
    assert loop.said(1) == [part(1)]
    loop.turn(2)
    assert loop.said(1) == [part(2)]


def test_after_a_long_turn_with_one_part_parts_are_sent_immediately(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.turn(1, each_ns=LONG_NS)
    loop.turn(1, 2)
    assert loop.said(5) == [part(1), part(2), part(1), part(1), part(2)]


def test_after_a_long_turn_parts_are_sent_immediately(loop: Loop) -> None:
    loop.turn(1, 2, each_ns=LONG_NS)
    loop.turn(1, 2, each_ns=LONG_NS)
    assert loop.said(4) == [part(1), part(2)] * 2


def test_after_a_turn_that_waited_parts_are_sent_immediately(loop: Loop) -> None:
    for _ in range(2):
        loop.outbox.put(part(1))
        loop.wait(LONG_NS)
        loop.turn(2)
    assert loop.said(4) == [part(1), part(2)] * 2


def test_a_turns_duration_is_that_of_its_own_steps(loop: Loop) -> None:
    """Other processes may have had the CPU, and there are many streams."""
    loop.turn(1, 2)
    loop.said(2)
    loop.outbox.put(part(1))
    loop.now_ns += 1_000_000
    loop.turn(2)
    assert loop.said(1) == [together(1, 2)]
    loop.turn(*range(20), each_ns=90_000)
    loop.turn(1, 2)
    assert loop.said(2) == [together(*range(20)), together(1, 2)]


def test_no_part_waits_longer_than_ten_milliseconds_for_others(loop: Loop) -> None:
    """However long other processes have the CPU."""
    loop.turn(1, 2)
    loop.said(2)
    for number in range(5):
        loop.outbox.put(part(number))
        loop.now_ns += 4_000_000
    loop.end()
    assert loop.said(2) == [together(*range(4)), part(4)]


def test_each_decision_covers_the_steps_since_the_last_one(loop: Loop) -> None:
    """Otherwise a long step would be averaged with many short ones before it."""
    loop.turn(1, 2)
    loop.said(2)
    for number in range(20):
        loop.outbox.put(part(number))
    loop.now_ns += 1_000_000  # other processes had the CPU, so it decides again
    loop.outbox.put(part(20))
    loop.compute(700_000)
    loop.outbox.put(part(21))
    assert loop.said(1) == [together(*range(22))]
    loop.end()


def test_parts_are_grouped_on_each_of_several_lanes(loop: Loop, more_lanes: Lanes) -> None:
    """One part on each lane: that is a turn with several, and the next one sends a message on each."""
    other, proxy = loop.add(more_lanes), more_lanes[0]
    loop.outbox.put(part(1))
    other.put(part(2))
    loop.end()
    assert (loop.said(1), proxy.receive()) == ([part(1)], part(2))
    loop.outbox.put(part(1))
    other.put(part(2))
    loop.outbox.put(part(3))
    other.put(part(4))
    assert loop.said(0) == []
    loop.end()
    assert (loop.said(1), proxy.receive()) == ([together(1, 3)], together(2, 4))


def test_pending_parts_of_a_long_turn_are_sent_with_the_next(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.said(2)
    loop.outbox.put(part(1))
    loop.compute(LONG_NS)
    loop.outbox.put(part(2))
    assert loop.said(1) == [together(1, 2)]
    loop.end()
    loop.turn(1, 2)
    assert loop.said(2) == [part(1), part(2)]


def test_a_single_stream_is_sent_immediately(loop: Loop) -> None:
    loop.outbox.streams = {1: None}  # type: ignore[dict-item]
    loop.turn(1, 1)
    loop.turn(1, 1)
    assert loop.said(4) == [part(1)] * 4


def test_a_message_has_at_most_32_parts(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.turn(*range(40), each_ns=0)
    assert loop.said(4)[2:] == [together(*range(32)), together(*range(32, 40))]


def test_other_messages_stay_in_order_with_parts(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.said(2)
    loop.outbox.put(part(1))
    loop.outbox.put(part(2))
    loop.outbox.send(BatchDone(1, []))
    loop.outbox.send(BatchBegun(5))
    loop.end()
    assert loop.said(3) == [together(1, 2), BatchDone(1, []), BatchBegun(5)]


def test_waiting_parts_count_as_unread(loop: Loop) -> None:
    loop.turn(1, 2)
    for number in range(30):
        loop.outbox.put(part(number))
    loop.outbox.streams = dict.fromkeys(range(4))  # type: ignore[assignment]
    assert loop.outbox.full
    loop.end()
    loop.outbox.heard(Credit(1))
    assert not loop.outbox.full


def test_many_streams_have_room_for_some_parts_each(loop: Loop) -> None:
    """A stream that waits for room is woken by each credit, together with all others that wait."""
    for number in range(64):
        for _ in range(7):
            loop.outbox.put(part(number))
        loop.end()
    assert not loop.outbox.full


def test_texts_are_grouped_in_one_message_in_order_with_other_parts(loop: Loop) -> None:
    def texts(*numbers: int) -> BatchTexts:
        return BatchTexts("y", list(numbers), [f"text {number}" for number in numbers])

    def turn(*numbers: int) -> None:
        for number in numbers:
            assert loop.outbox.put_text(number, "y", f"text {number}")
        loop.end()

    turn(1, 2)
    assert loop.said(2) == [texts(1), texts(2)]
    turn(1, 2, 3)
    assert loop.said(1) == [texts(1, 2, 3)]
    loop.outbox.put_text(1, "y", "text 1")
    loop.outbox.put(part(1))
    loop.outbox.put_text(1, "y", "text 1")
    loop.outbox.put_text(2, "z", "other")
    loop.outbox.send(BatchDone(2, []))
    loop.end()
    assert loop.said(5) == [
        texts(1),
        part(1),
        texts(1),
        BatchTexts("z", [2], ["other"]),
        BatchDone(2, []),
    ]
    turn(*range(40))
    assert loop.said(2) == [texts(*range(32)), texts(*range(32, 40))]


def test_unread_texts_fit_into_the_socket(loop: Loop) -> None:
    """Beyond that, they are sent in shared memory."""
    taken = [loop.outbox.put_text(number, "y", "😀" * 128) for number in range(70)]
    assert taken == [True] * 64 + [False] * 6
    loop.end()
    assert loop.faults == []
    loop.said(64)


def test_a_closed_lane_is_sent_nothing(loop: Loop) -> None:
    loop.turn(1, 2)
    loop.outbox.put(part(1))
    loop.outbox.forget()
    loop.outbox.put_text(1, "y", "text")
    loop.outbox.forget()
    loop.end()
    assert loop.faults == []
    assert loop.said(2) == [part(1), part(2)]  # from the previous turn


def test_neither_a_departed_proxy_nor_one_that_does_not_read_is_a_failure(loop: Loop) -> None:
    loop.turn(1, 2)
    while loop.outbox.lane.is_flushed:
        loop.turn(1, 2, each_ns=0)
    assert loop.outbox.full
    loop.proxy.hang_up()
    loop.turn(1, 2)
    assert loop.faults == []


@pytest.mark.parametrize("flushes", ["part", "end", "turn"])
def test_a_failed_send_ends_all_streams_of_the_message(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, flushes: str
) -> None:
    """Each of them has lost a part, and must not continue as if it had not."""
    long = ResponseRef([], "x" * 3000)
    loop.turn(1, 2)
    for number in range(31):
        loop.outbox.put(BatchPart(number, [long]))
    monkeypatch.setattr("pytriton._protocol.linux.available_memory", lambda: 0)
    if flushes == "part":
        with pytest.raises(LaneClosed, match="could not be sent: cannot allocate"):
            loop.outbox.put(BatchPart(31, [long]))
    elif flushes == "end":
        with pytest.raises(LaneClosed, match="could not be sent: cannot allocate"):
            loop.outbox.send(BatchDone(1, []))
    loop.end()
    assert [type(fault) for fault in loop.faults] == [ArenaError]
    assert loop.said(2) == [part(1), part(2)]  # from the previous turn
