"""The ring of records: the dispatcher reads what a worker writes, whatever the memory contains, without blocking."""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from pytriton._protocol.lanes import request_records
from pytriton._protocol.lanes.request_records import (
    NEVER,
    RING,
    SIZE,
    UNBOUNDED,
    RequestRecord,
    RequestRecords,
    decoded,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage

Ends = tuple[RequestRecords, RequestRecords]


@pytest.fixture(params=[0, 4032])
def memory(request: pytest.FixtureRequest) -> bytearray:
    """Memory of this size; a plain mapping would be rounded up to a page."""
    return bytearray(SIZE + int(request.param))


@pytest.fixture
def ends(memory: bytearray) -> Ends:
    """The worker's end and the dispatcher's."""
    worker, dispatcher = (RequestRecords(memoryview(memory)) for _ in range(2))
    dispatcher.want(0, UNBOUNDED)
    return worker, dispatcher


def record(name: str) -> RequestRecord:
    return RequestRecord(name, "ok", 5, 1, 2, 1, 1, 8, 4)


def taken(dispatcher: RequestRecords) -> list[str]:
    return [one.id for message in dispatcher.take().messages for one in decoded(message) or ()]


def test_records_are_taken_once_and_in_order_around_the_ring(ends: Ends) -> None:
    worker, dispatcher = ends
    seed = random.Random(7)
    written: list[str] = []
    got: list[str] = []
    for number in range(3000):  # some MB: many times round
        names = [
            f"{number}-{one}-{'x' * seed.randrange(200)}" for one in range(seed.randrange(1, 9))
        ]
        worker.write([record(name) for name in names])
        written += names
        if seed.random() < 0.2:
            got += taken(dispatcher)
    got += taken(dispatcher)
    assert got == written
    assert dispatcher.take() == ((), 0) or dispatcher.take() == ([], 0)


def test_records_without_space_are_dropped_and_counted(ends: Ends) -> None:
    worker, dispatcher = ends
    for number in range(100):
        worker.write([record(f"{number}" + "x" * (RING // 50))] * 2)
    first = dispatcher.take()
    assert len(first.messages) == 24
    assert first.left_out == 2 * 76
    worker.write([record("x" * RING)])  # larger than a message may be
    assert dispatcher.take() == ([], 1)
    worker.write([record("again")])
    assert taken(dispatcher) == ["again"]


def test_the_dispatcher_controls_how_many_records_are_written(
    ends: Ends, memory: bytearray
) -> None:
    worker, dispatcher = ends
    words = memoryview(memory)[:64].cast("Q")
    dispatcher.want(1000, 3)
    assert (words[request_records.THRESHOLD], worker.budget, worker.all_wanted) == (1000, 3, False)
    worker.write([record("a"), record("b")])
    assert (words[request_records.THRESHOLD], worker.budget) == (1000, 1)
    worker.call_failed()
    assert words[request_records.THRESHOLD] == 0
    worker.write([record("c")])
    assert (words[request_records.THRESHOLD], worker.budget) == (NEVER, 0)
    dispatcher.want(1000, 3)
    assert words[request_records.THRESHOLD] == 1000
    dispatcher.want(0, UNBOUNDED)
    assert worker.all_wanted
    dispatcher.want(NEVER, 0)
    worker.call_failed()
    assert words[request_records.THRESHOLD] == NEVER


@pytest.mark.parametrize("seed", range(20))
def test_any_memory_contents_yield_only_valid_records(
    ends: Ends, memory: bytearray, seed: int
) -> None:
    worker, dispatcher = ends
    noise = random.Random(seed)
    worker.write([record("before")])
    for at in range(0, 24, 8):
        memory[at : at + 8] = noise.choice(
            [noise.randbytes(8), noise.randrange(2 * RING).to_bytes(8, "little"), b"\xff" * 8]
        )
    memory[64 : 64 + 4096] = noise.randbytes(4096)
    for message in dispatcher.take().messages:
        found = decoded(message)
        assert found is None or all(isinstance(one, RequestRecord) for one in found)
    assert dispatcher.take().messages == []


def test_dropped_record_counts_saturate_at_the_field_s_maximum(
    ends: Ends, memory: bytearray
) -> None:
    _, dispatcher = ends
    words = memoryview(memory)[:64].cast("Q")
    total = 0
    for _ in range(100):
        for said in (0, NEVER):
            words[2] = said
            total += dispatcher.take().left_out
    assert 0 < total <= 200 * RING


def test_empty_messages_yield_no_records(ends: Ends, memory: bytearray) -> None:
    _, dispatcher = ends
    memoryview(memory)[:64].cast("Q")[0] = RING
    assert dispatcher.take().messages == []


def test_all_requests_of_a_large_call_have_a_record(ends: Ends) -> None:
    worker, dispatcher = ends
    names = [f"{number:03}" + "\U0001f600" * 197 for number in range(200)]  # the longest ids
    worker.write([record(name) for name in names])
    assert taken(dispatcher) == names
    assert dispatcher.take().left_out == 0


def test_invalid_bytes_yield_no_records() -> None:
    assert decoded(b"\xc1") is None
    assert decoded(msgspec.msgpack.encode([["id", "ok", "no number", 1, 1, 1, 1, 1, 1]])) is None


def test_a_gauge_calls_for_records_of_calls_that_are_wanted() -> None:
    seen: list[object] = []
    dispatcher, descriptor = WorkerStatsPage.create()
    worker = WorkerStatsPage(
        descriptor, lambda begun_ns, ended_ns, parts, answers: seen.append(answers)
    )
    worker.end(worker.begin(1), [], "nobody asked")
    worker.failed("callable", 1)
    worker.end(worker.begin(1), [], "nobody asked, though it failed")
    dispatcher.records.want(10**12, 5)
    worker.end(worker.begin(1), [], "too short")
    worker.end(worker.begin(1) - 2 * 10**12, [], "long")
    worker.failed("callable", 1)
    worker.end(worker.begin(1), [], "failed")
    assert seen == ["long", "failed"]
    for one in (dispatcher, worker):
        one.close()


def test_dropped_records_are_reported_once_across_a_takeover() -> None:
    former, descriptor = WorkerStatsPage.create()
    worker = WorkerStatsPage(os.dup(descriptor))
    former.records.want(0, UNBOUNDED)
    worker.records.write([RequestRecord("x" * RING, "ok", 1, 1, 1, 1, 1, 1, 1)])
    assert former.records.take().left_out == 1
    following = WorkerStatsPage.adopt(descriptor)
    assert following.records.take().left_out == 0
    worker.records.write([RequestRecord("x" * RING, "ok", 1, 1, 1, 1, 1, 1, 1)])
    assert following.records.take().left_out == 1
    for one in (former, worker, following):
        one.close()
