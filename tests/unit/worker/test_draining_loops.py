"""Workers with streams that were asked to exit finish their streams, and accept no more."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from fakes.serving_worker import ServingWorker, python_model_worker, spec_of, worker_of
from support.real_daemon import eventually

from pytriton import pb_utils
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchPart,
    BatchParts,
    Credit,
    PartRef,
    RequestRef,
    Room,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage

ANSWER = [{"y": np.ones(1, np.float32)}]


class Reported:
    """Counts how often a worker was notified that it should exit."""

    def __init__(self) -> None:
        self.times = 0
        self.event = threading.Event()

    def hear(self, stats: WorkerStatsPage) -> None:
        self.times += 1
        self.event.set()


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Reported:
    reported = Reported()
    monkeypatch.setattr(WorkerStatsPage, "mark_ending", lambda stats: reported.hear(stats))
    return reported


def batch(number: int) -> Batch:
    return Batch(number, [RequestRef([], "", [])])


def ends(lane: Lane, count: int) -> set[int]:
    """Return which batches were answered to their ends, once this many have ended."""
    ended: set[int] = set()
    while len(ended) < count:
        message = lane.receive()
        assert not isinstance(message, BatchFailed)
        if isinstance(message, BatchDone):
            ended.add(message.id)
    return ended


def test_the_exit_request_is_read_once(dispatcher: FakeDispatcher, reported: Reported) -> None:
    """Otherwise the loop would spin on it, on a whole core, while streams run."""

    async def infer(requests: Any) -> AsyncIterator[Any]:
        yield ANSWER
        while not reported.event.is_set():
            await asyncio.sleep(0.005)
        for _ in range(20):  # turns of the event loop
            await asyncio.sleep(0)
        yield ANSWER

    served = worker_of(infer, spec_of(decoupled=True), dispatcher)
    with served as worker, contextlib.closing(worker.proxy(streams=True)) as lane:
        lane.send(batch(1))
        worker.end()
        assert ends(lane, 1) == {1}
    assert reported.times == 1


class Gate:
    """Streams continue while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()

    async def infer(self, requests: Any) -> AsyncIterator[Any]:
        yield ANSWER
        while not self.open.is_set():
            await asyncio.sleep(0.005)
        yield ANSWER

    async def execute(self, requests: Any) -> None:
        """As a Triton Python model."""
        senders = [request.get_response_sender() for request in requests]
        for sender in senders:
            sender.send(pb_answer())
        while not self.open.is_set():
            await asyncio.sleep(0.005)
        for sender in senders:
            sender.send(pb_answer(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def pb_answer() -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones(1, np.float32))])


def serving(
    kind: str, gate: Gate, dispatcher: FakeDispatcher
) -> AbstractContextManager[ServingWorker]:
    """Have either served."""
    if kind == "a callable":
        return worker_of(gate.infer, spec_of(decoupled=True, max_concurrency=400), dispatcher)
    return python_model_worker(gate, dispatcher, streams=True, decoupled=True)


KINDS = pytest.mark.parametrize("kind", ["a callable", "a Triton Python model"])


@KINDS
def test_batches_already_sent_by_the_proxy_are_served(
    dispatcher: FakeDispatcher, kind: str
) -> None:
    """Otherwise all streams of the lane would end with it."""
    gate = Gate()
    with serving(kind, gate, dispatcher) as worker:
        with contextlib.closing(worker.proxy(streams=True)) as lane:
            lane.send(batch(1))
            while not isinstance(lane.receive(), BatchPart):
                pass
            worker.end()
            while lane.receive() != Room(0):
                pass
            lane.send(batch(2))
            while lane.receive() != BatchBegun(2):
                pass
            gate.open.set()
            assert ends(lane, 2) == {1, 2}
            with pytest.raises(LaneClosed):
                lane.receive()
        eventually(lambda: not worker.is_alive(), "it ends")


@KINDS
def test_lanes_without_streams_close_and_no_other_opens(
    dispatcher: FakeDispatcher, kind: str
) -> None:
    gate = Gate()
    with serving(kind, gate, dispatcher) as worker:
        busy, idle = worker.proxy(streams=True), worker.proxy(streams=True)
        busy.send(batch(1))
        while not isinstance(busy.receive(), BatchPart):
            pass
        worker.end()
        with pytest.raises(LaneClosed):
            idle.receive()
        late = Lane.connect(worker.path, peer_trusted=False)
        late.set_receive_timeout(20)
        with pytest.raises(LaneClosed):
            late.receive()
        gate.open.set()
        assert ends(busy, 1) == {1}
        for lane in (busy, idle, late):
            lane.close()


def send(lane: Lane, message: Batch | Credit) -> None:
    """Send a message as soon as the socket has room."""
    lane.send(message)
    while not lane.flush():
        lane.wait_until_writable()


def receive(lane: Lane) -> Any:
    """Return the next message, even if the worker has exited with messages unread, which the lane reports once."""
    try:
        return lane.receive()
    except LaneClosed as end:
        if not end.unread:
            raise
        return lane.receive()


@KINDS
@pytest.mark.parametrize("stops", [False, True], ids=["serving", "stopping"])
def test_a_proxy_that_reads_late_still_gets_everything(
    dispatcher: FakeDispatcher, kind: str, stops: bool
) -> None:
    """The start messages alone exceed what the socket holds (278 short messages)."""
    gate = Gate()
    gate.open.set()
    with serving(kind, gate, dispatcher) as worker:
        with contextlib.closing(worker.proxy(streams=True)) as lane:
            lane.queue_when_full(lambda: None)
            for number in range(400):
                send(lane, batch(number))
            eventually(lane.all_read, "the worker has read all batches")
            if stops:
                worker.end()
            parts, ended = Counter[int](), Counter[int]()
            while len(ended) < 400:
                message = receive(lane)
                assert not isinstance(message, BatchFailed)
                if isinstance(message, BatchDone):
                    ended[message.id] += 1
                received = message.parts if isinstance(message, BatchParts) else [message]
                sent = [one.id for one in received if isinstance(one, (BatchPart, PartRef))]
                parts.update(sent)
                if sent:
                    with contextlib.suppress(LaneClosed):  # it has ended: read what it has sent
                        send(lane, Credit(len(sent)))
            assert parts == dict.fromkeys(range(400), 2)
            assert ended == dict.fromkeys(range(400), 1)
        if stops:
            eventually(lambda: not worker.is_alive(), "it ends")
