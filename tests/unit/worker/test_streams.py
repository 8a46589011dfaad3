"""The answers of decoupled models: what may be in flight on a lane, and when a generator must wait."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, cast

import pytest
from fakes.lane_pair import Lanes
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchPart,
    Cancel,
    Credit,
    Go,
    Hold,
    RequestRef,
    ResponseRef,
    Room,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.event_loops import within_limit
from pytriton.worker.fault_reports import ExecutionTimeout
from pytriton.worker.results import ResultWriter
from pytriton.worker.streams import BatchStream, Outbox, parts_of


class Writer:
    """Accepts every result as the response to send."""

    def check(self, results: Any, count: int) -> Any:
        assert len(results) == count
        return results

    def text_output(self, requests: Any) -> None:
        return None

    def write(self, results: Any, requests: Any, lane: Lane) -> list[ResponseRef]:
        return [ResponseRef([], result) for result in results]


def batch(number: int, requests: int = 1) -> Batch:
    return Batch(number, [RequestRef([], "", [])] * requests)


@pytest.fixture
def outbox(lanes: Lanes) -> Outbox:
    """A lane's outbox with room for two batches, whose announcement has been read."""
    box = Outbox(lanes[1], 2)
    assert lanes[0].receive() == Room(2)
    return box


def stream(outbox: Outbox, number: int, requests: int = 1) -> BatchStream:
    stats, descriptor = WorkerStatsPage.create()
    os.close(descriptor)
    return BatchStream(outbox, batch(number, requests), cast(ResultWriter, Writer()), stats=stats)


def test_a_stream_sends_its_start_its_parts_and_its_end(lanes: Lanes, outbox: Outbox) -> None:
    one = stream(outbox, 7, requests=2)
    one.send_begun()
    one.put(["a", None])
    one.put([None, None])  # without a recipient nothing is sent
    one.put(["b", "c"])
    one.end()
    said = [lanes[0].receive() for _ in range(4)]
    a, b, c = (ResponseRef([], text) for text in "abc")
    assert said == [BatchBegun(7), BatchPart(7, [a, None]), BatchPart(7, [b, c]), BatchDone(7, [])]
    assert outbox.streams == {}


def test_an_exception_in_place_of_a_response_ends_its_request(lanes: Lanes, outbox: Outbox) -> None:
    one = stream(outbox, 7, requests=2)
    one.send_begun()
    one.put(["a", ValueError("negative")])
    one.put(["b", "c"])
    assert not one.abandoned
    one.put([LookupError("gone"), None])
    assert one.abandoned  # no generator waits for credit
    one.end()
    said = [lanes[0].receive() for _ in range(5)]
    a, b = (ResponseRef([], text) for text in "ab")
    refused = [
        ResponseRef([], f"{text} [request id: 0-7-{place}]")
        for text, place in (("ValueError: negative", 1), ("LookupError: gone", 0))
    ]
    assert said[1:4] == [
        BatchPart(7, [a, refused[0]]),
        BatchPart(7, [b, None]),
        BatchPart(7, [refused[1], None]),
    ]
    assert one._stats.outcomes()[1] == (2, 0, 0, 0, 0)


def test_an_error_ends_the_stream_with_a_text_for_the_client(lanes: Lanes, outbox: Outbox) -> None:
    stream(outbox, 7).end(ValueError("no such word"))
    end = lanes[0].receive()
    assert isinstance(end, BatchFailed)
    assert "no such word" in end.text


@pytest.mark.parametrize(
    "text", ["x" * (1 << 20), "\N{SNOWMAN}" * (1 << 18)], ids=["ascii", "wide"]
)
def test_an_error_never_takes_memory_that_a_credit_could_free(
    lanes: Lanes, outbox: Outbox, text: str
) -> None:
    """A credit for earlier parts frees the arena, perhaps before the proxy has read the error."""
    failing, other = stream(outbox, 7), stream(outbox, 8)
    other.put(["a"])
    failing.end(ValueError(text))
    assert outbox.lane.arena.used == 0
    assert lanes[0].receive() == BatchPart(8, [ResponseRef([], "a")])
    end = lanes[0].receive()
    assert isinstance(end, BatchFailed)
    assert end.text.startswith(f"ValueError: {text[:100]}")


def test_a_disconnected_client_gets_nothing_more(lanes: Lanes, outbox: Outbox) -> None:
    one = stream(outbox, 7, requests=2)
    assert outbox.heard(Cancel(7, 0)) is None
    assert (one.is_cancelled(0), one.is_cancelled(1), one.abandoned) == (True, False, False)
    one.put(["a", "b"])
    assert lanes[0].receive() == BatchPart(7, [None, ResponseRef([], "b")])
    outbox.heard(Cancel(7, 1))
    assert one.abandoned
    outbox.heard(Cancel(99, 0))  # of a batch that has ended


def test_a_generator_waits_until_parts_are_credited(lanes: Lanes, outbox: Outbox) -> None:
    one = stream(outbox, 7)
    count = 0
    while not outbox.full:
        one.put([str(count)])
        count += 1
    assert count == 32
    lanes[0].send(Credit(1))
    outbox.listen(wait=True)
    assert not outbox.full


def test_messages_wait_in_order_while_the_socket_has_no_room(lanes: Lanes, outbox: Outbox) -> None:
    """Otherwise, a proxy that reads late would lose all streams of the lane."""
    one = stream(outbox, 7)
    count = 0
    while not outbox.full:
        one.put(["x" * 60_000])
        count += 1
    assert count < 32
    one.end()
    assert not outbox.is_idle
    assert outbox.retire()
    assert [type(lanes[0].receive()) for _ in range(count - 1)] == [BatchPart] * (count - 1)
    lanes[0].send(Credit(count - 1))
    outbox.listen(wait=True)
    said = [lanes[0].receive() for _ in range(3)]
    assert said == [BatchPart(7, [ResponseRef([], "x" * 60_000)]), BatchDone(7, []), Room(0)]
    assert outbox.is_idle


def test_a_worker_that_waits_for_room_notices_that_the_proxy_is_gone(
    lanes: Lanes, outbox: Outbox
) -> None:
    one = stream(outbox, 7)
    while not outbox.full:
        one.put(["x" * 60_000])
    lanes[0].hang_up()
    with pytest.raises(LaneClosed):
        outbox.drain()


def test_a_generator_waits_until_its_caller_has_read(lanes: Lanes, outbox: Outbox) -> None:
    one, other = stream(outbox, 7, requests=2), stream(outbox, 8)
    assert (one.must_wait, one.held_s) == (False, 0.0)
    lanes[0].send(Hold(7, 0))
    lanes[0].send(Hold(7, 1))
    for message in (Hold(99, 0), Go(99, 0)):  # of a batch that has ended
        lanes[0].send(message)
    outbox.listen(wait=True)
    assert (one.must_wait, other.must_wait) == (True, False)
    outbox.heard(Go(7, 0))
    assert one.must_wait
    outbox.heard(Cancel(7, 1))  # it has no reader any more
    assert not one.must_wait
    assert one.held_s > 0
    outbox.heard(Hold(7, 1))  # it crossed the end of the request in transit
    assert not one.must_wait


@pytest.mark.parametrize("held", [True, False])
def test_the_callers_reading_time_is_not_counted(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    loop = VirtualLoop()
    monkeypatch.setattr(time, "monotonic", loop.time)
    one = stream(outbox, 7)
    pauses: list[int] = []

    async def produce() -> None:
        for message in (Hold(7, 0), Go(7, 0)):
            await asyncio.sleep(1)
            if held:
                outbox.heard(message)
                await asyncio.sleep(100 if isinstance(message, Hold) else 0)
            pauses.append(1)
        await asyncio.sleep(0.5 if held else 2)
        pauses.append(2)

    if held:
        loop.run(within_limit(produce(), 3.0, lambda: one.held_s))
    else:
        with pytest.raises(ExecutionTimeout, match="after 3 s"):
            loop.run(within_limit(produce(), 3.0, lambda: one.held_s))
    assert pauses == ([1, 1, 2] if held else [1, 1])
    assert one.held_s == pytest.approx(101 if held else 0)
    loop.close()


def test_large_parts_fill_the_outbox_sooner(outbox: Outbox) -> None:
    one = stream(outbox, 7)
    outbox.lane.arena.allocate(9 << 20)
    assert not outbox.full  # there is no part to credit
    one.put(["large"])
    assert outbox.full
    outbox.heard(Credit(1))
    assert outbox.lane.arena.used == 0


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (batch(1), "batch 1 is already in flight"),
        (batch(3), "no room for another batch"),
        (Credit(1), "1 parts were acknowledged, more than were sent"),
        (BatchDone(1, []), "unexpected message from the proxy: BatchDone"),
    ],
    ids=["twice", "a third", "too much credit", "a worker's message"],
)
def test_a_protocol_violation_closes_the_lane(outbox: Outbox, message: Any, words: str) -> None:
    stream(outbox, 1), stream(outbox, 2)
    with pytest.raises(LaneError, match=words):
        outbox.heard(message)


def test_batches_are_accepted_while_there_is_room(outbox: Outbox) -> None:
    assert outbox.heard(batch(1)) == batch(1)
    stream(outbox, 1)
    assert outbox.heard(batch(2)) == batch(2)


def test_a_batch_that_arrives_during_a_wait_for_credit_has_no_room(
    lanes: Lanes, outbox: Outbox
) -> None:
    stream(outbox, 1)
    lanes[0].send(batch(2))
    with pytest.raises(LaneError, match="no room"):
        outbox.listen(wait=True)


def test_a_result_is_one_part_or_many() -> None:
    assert list(parts_of([{"y": 1}])) == [[{"y": 1}]]
    assert list(parts_of(iter([[1], [2]]))) == [[1], [2]]
    forgotten = print  # the result of a factory, instead of parts
    assert list(parts_of(forgotten)) == [forgotten]
