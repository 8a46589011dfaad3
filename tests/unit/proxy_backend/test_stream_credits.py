"""What the proxy of a decoupled model gives back to its worker, and when. The worker is the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes.proxy_harness import Proxy, batch_of
from fakes.triton.fake_stub import FINAL
from support.real_daemon import eventually

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    Credit,
    ResponseDetails,
    ResponseRef,
)
from pytriton.proxy_backend import stream_watch

ANSWER = ResponseRef([])
NO_MORE = ResponseRef([], None, ResponseDetails(final=True, empty=True))


def response(worker: Lane, nbytes: int) -> ResponseRef:
    """A response whose output takes so much of the worker's memory."""
    array = np.zeros(nbytes, np.uint8)
    return ResponseRef([tensors.write(worker, "y", "UINT8", array, array.dtype)])


def begun(proxy: Proxy) -> tuple[Lane, Batch]:
    """Return a worker that has begun with the proxy's batch."""
    proxy.begin()
    worker = proxy.worker()
    worker.set_patience(20)
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    return worker, batch


def test_forwarded_responses_are_credited_in_one_message(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_watch, "TICK_S", 60.0)
    worker, batch = begun(make())
    for _ in range(17):
        worker.send(BatchPart(batch.id, [ANSWER]))
    assert [worker.receive(), worker.receive()] == [Credit(8), Credit(8)]
    worker.send(BatchDone(batch.id, []))
    assert worker.receive() == Credit(1)


def test_large_parts_are_credited_before_there_are_eight(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_watch, "TICK_S", 60.0)
    worker, batch = begun(make())
    for nbytes, parts in ((3 << 20, 1), (1 << 19, 1), (1 << 18, 2)):
        for _ in range(parts):
            worker.send(BatchPart(batch.id, [response(worker, nbytes)]))
        assert worker.receive() == Credit(parts)
        worker.arena.reset()
    worker.send(BatchDone(batch.id, []))


def test_a_worker_whose_memory_is_full_is_given_back_each_part(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until all are; as long as it is not full, small ones are given back as ever."""
    monkeypatch.setattr(stream_watch, "TICK_S", 60.0)
    worker, batch = begun(make())
    worker.arena.allocate(7 << 20)
    for _ in range(11):
        worker.send(BatchPart(batch.id, [response(worker, 64)]))
    assert worker.receive() == Credit(8)
    worker.arena.allocate((1 << 20) - worker.arena.used % (1 << 20))
    worker.send(BatchPart(batch.id, [response(worker, 64)]))
    assert worker.receive() == Credit(4)
    worker.send(BatchPart(batch.id, [None]))  # without memory of its own
    assert worker.receive() == Credit(1)
    worker.arena.reset()
    worker.send(BatchPart(batch.id, [response(worker, 64)]))
    worker.send(BatchPart(batch.id, [NO_MORE]))
    worker.send(BatchDone(batch.id, []))
    assert worker.receive() == Credit(2)


def test_a_worker_that_says_nothing_more_is_given_back_all_its_parts(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_watch, "TICK_S", 0.01)
    worker, batch = begun(make())
    worker.send(BatchPart(batch.id, [ANSWER]))
    assert worker.receive() == Credit(1)
    worker.send(BatchDone(batch.id, []))


@pytest.mark.parametrize("slow_at", [8, 9], ids=["takes no credit", "leaves the credit unread"])
def test_responses_before_a_worker_s_exit_are_forwarded(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch, slow_at: int
) -> None:
    """It may have answered to the end; and what it had not read goes to the next one without anybody being asked."""
    proxy = make()
    (sender,) = proxy.begin()
    slow, go = threading.Event(), threading.Event()
    send = sender.send

    def send_slowly(response: Any = None, flags: int = 0) -> None:
        if len(sender.sent) == slow_at - 1:
            slow.set()
            assert go.wait(30)
        send(response, flags)

    monkeypatch.setattr(sender, "send", send_slowly)
    worker = proxy.worker()
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    for _ in range(20):
        worker.send(BatchPart(batch.id, [ANSWER]))
    worker.send(BatchDone(batch.id, []))
    assert slow.wait(30)
    (next_one,) = proxy.begin()
    eventually(lambda: under_way(proxy) == 2, "the next batch is sent")
    proxy.lose(worker)
    go.set()
    worker = proxy.worker(1)
    assert sender.sent[20:] == [(None, FINAL)]
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    worker.send(BatchDone(batch.id, []))
    eventually(lambda: next_one.sent == [(None, FINAL)], "the next stream ends")


def under_way(proxy: Proxy) -> int:
    """Count the batches that have been sent and not been answered: sending holds the lock."""
    with proxy.streams._changed:
        return proxy.flights
