"""Workers with streams that are told to end: what is under way goes on to its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from support.fakes.fake_dispatcher import FakeDispatcher
from support.fakes.serving_worker import spec_of, worker_of

from pytriton.ipc.lanes.gauge import Gauge
from pytriton.ipc.lanes.lane import Lane
from pytriton.ipc.lanes.lane_messages import Batch, BatchDone, BatchFailed, RequestRef

ANSWER = [{"y": np.ones(1, np.float32)}]


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    made = FakeDispatcher()
    yield made
    made.close()


class Told:
    """How often a worker has heard that it is to end."""

    def __init__(self) -> None:
        self.times = 0
        self.event = threading.Event()

    def hear(self, gauge: Gauge) -> None:
        self.times += 1
        self.event.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(Gauge, "told_to_end", lambda gauge: told.hear(gauge))
    return told


def batch(number: int) -> Batch:
    return Batch(number, [RequestRef([], "", [])])


def ends(lane: Lane, count: int) -> set[int]:
    """Return which batches were answered to their ends, once so many have ended."""
    ended: set[int] = set()
    while len(ended) < count:
        message = lane.receive()
        assert not isinstance(message, BatchFailed)
        if isinstance(message, BatchDone):
            ended.add(message.id)
    return ended


def test_it_hears_once_that_it_is_to_end(dispatcher: FakeDispatcher, told: Told) -> None:
    """Else it would hear nothing else, on a whole core, as long as streams run."""

    async def infer(requests: Any) -> AsyncIterator[Any]:
        yield ANSWER
        while not told.event.is_set():
            await asyncio.sleep(0.005)
        for _ in range(20):  # turns of the event loop
            await asyncio.sleep(0)
        yield ANSWER

    serving = worker_of(infer, spec_of(decoupled=True), dispatcher)
    with serving as worker, contextlib.closing(worker.proxy(streams=True)) as lane:
        lane.send(batch(1))
        worker.end()
        assert ends(lane, 1) == {1}
    assert told.times == 1
