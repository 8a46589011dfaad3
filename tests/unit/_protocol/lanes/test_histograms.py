"""Exemplars: the last traced call of each bucket, whatever the memory contains."""

from __future__ import annotations

import random
import time

from pytriton._protocol.lanes.histograms import SIZE, Exemplars
from pytriton._protocol.lanes.stats_page import WorkerStatsPage

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_the_last_call_of_each_bucket_is_reported() -> None:
    memory = bytearray(SIZE)
    worker, dispatcher = (Exemplars(memoryview(memory)) for _ in range(2))
    assert dispatcher.read() == []
    for trace, took_ns in [("a" * 32, 1_000_000), (TRACE, 1_010_000), ("b" * 32, 5_000_000_000)]:
        worker.note(trace, took_ns)
    reported = dispatcher.read()
    assert [(one.trace, one.seconds) for one in reported] == [(TRACE, 0.00101), ("b" * 32, 5.0)]
    assert all(abs(time.time() - one.at) < 60 for one in reported)


def test_untraced_calls_leave_no_exemplar() -> None:
    worker = Exemplars(memoryview(bytearray(SIZE)))
    for trace in ("", "x", "-1", "0" * 32, "f" * 33, "1", f"-{'1' * 31}"):
        worker.note(trace, 5)
    worker.note(TRACE, -1)
    assert worker.read() == []


def test_any_memory_contents_can_be_read() -> None:
    memory = bytearray(SIZE)
    exemplars = Exemplars(memoryview(memory))
    seed = random.Random(1)
    for _ in range(50):
        memory[:] = seed.randbytes(SIZE)
        for one in exemplars.read():
            assert len(one.trace) == 32
    memory[:] = b"\xff" * SIZE
    assert exemplars.read() == []


def test_a_worker_records_the_current_call() -> None:
    near, descriptor = WorkerStatsPage.create()
    far = WorkerStatsPage(descriptor)
    far.begin(1)
    far.traced(TRACE)
    (reported,) = near.exemplars.read()
    assert (reported.trace, 0 <= reported.seconds < 60) == (TRACE, True)
    near.close()
    far.close()
