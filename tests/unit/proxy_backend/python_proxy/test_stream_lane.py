"""A decoupled model's batch in flight: who is answered, and whether it may be retried."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes.proxy_harness import ANSWER, NO_MORE, Proxy, batch_of
from fakes.triton.fake_stub import FINAL, Request
from support.real_daemon import eventually

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    BatchTexts,
    Credit,
    ResponseRef,
)
from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend.python_proxy import stream_lane, translate
from pytriton.proxy_backend.python_proxy.chains import Handle
from pytriton.proxy_backend.python_proxy.stream_lane import Flight


def flight_of(count: int) -> tuple[Flight, list[Any]]:
    requests = [Request() for _ in range(count)]
    return Flight(requests), [one.sender for one in requests]


def test_the_error_of_a_stream_between_models_is_sent_by_handle() -> None:
    """Triton swallows an error after answers, and the caller would hang."""
    flight, (caller, client) = flight_of(2)
    handle = Handle()
    flight.waiting = [handle.name(), ""]
    flight.send(0, translate.failure("no more", translate.error_code("NOT_FOUND")), final=True)
    assert caller.sent == [(None, FINAL)]
    assert handle.failure() == ("no more", "NOT_FOUND")
    handle.close()
    assert flight.is_gone(1) is False
    client.cancelled = True
    assert flight.is_gone(1) is True


def test_a_closed_handle_means_a_departed_client() -> None:
    flight, _ = flight_of(1)
    handle = Handle()
    flight.waiting = [handle.name()]
    assert not flight.is_gone(0)
    handle.close()
    assert flight.is_gone(0)


def test_a_batch_is_final_once_its_requests_returned_or_a_client_was_answered() -> None:
    flight, _ = flight_of(1)
    assert not flight.is_final(until_returned=False)
    flight.mark_begun(None)
    assert flight.overdue_at is None
    assert flight.is_final(until_returned=False)
    assert not flight.is_final(until_returned=True)
    flight.answered = True
    assert flight.is_final(until_returned=True)
    flight.answered = False
    flight.mark_returned([])
    assert flight.is_final(until_returned=True)


def test_a_loss_is_counted_and_the_decision_applied() -> None:
    asked: list[dict[str, Any]] = []

    def judge(**facts: Any) -> Verdict:
        asked.append(facts)
        return Verdict("retry") if len(asked) == 1 else Verdict("fail", "it kills", fails_rest=True)

    flight, _ = flight_of(2)
    flight.mark_begun(5.0)
    assert flight.overdue_at is not None
    flight.judge_retry(judge, None)
    assert flight.failure is None
    flight.prepare_retry()
    assert not flight.begun
    assert vars(flight)["overdue_at"] is None
    one = flight.split_off(1, consecutive_losses=1)
    assert one.facts() == {
        "lost_workers": 1,
        "requests": 1,
        "consecutive_losses": 2,
        "request_id": "",
    }
    one.judge_retry(judge, None)
    assert (one.failure, one.fails_rest) == ("it kills", True)
    assert asked == [
        {"lost_workers": 1, "requests": 2, "consecutive_losses": 0, "request_id": ""},
        {"lost_workers": 2, "requests": 1, "consecutive_losses": 2, "request_id": ""},
    ]


# ── What the proxy of a decoupled model gives back to its worker, and when. The worker is the test ──


def response(worker: Lane, nbytes: int) -> ResponseRef:
    """A response whose output takes this much of the worker's memory."""
    array = np.zeros(nbytes, np.uint8)
    return ResponseRef([tensors.write(worker, "y", "UINT8", array, array.dtype)])


def begun(proxy: Proxy) -> tuple[Lane, Batch]:
    """Return a worker that has started the proxy's batch."""
    proxy.begin()
    worker = proxy.worker()
    worker.set_receive_timeout(20)
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    return worker, batch


def test_forwarded_responses_are_credited_in_one_message(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "TICK_S", 60.0)
    worker, batch = begun(make())
    for _ in range(33):
        worker.send(BatchPart(batch.id, [ANSWER]))
    assert [worker.receive(), worker.receive()] == [Credit(16), Credit(16)]
    worker.send(BatchDone(batch.id, []))
    assert worker.receive() == Credit(1)


def test_large_parts_are_credited_before_there_are_many(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "TICK_S", 60.0)
    worker, batch = begun(make())
    for nbytes, parts in ((3 << 20, 1), (1 << 19, 1), (1 << 18, 2)):
        for _ in range(parts):
            worker.send(BatchPart(batch.id, [response(worker, nbytes)]))
        assert worker.receive() == Credit(parts)
        worker.arena.reset()
    worker.send(BatchDone(batch.id, []))


def test_a_worker_with_full_memory_gets_each_part_credited(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for all of it; otherwise small parts are credited in groups as usual."""
    monkeypatch.setattr(stream_lane, "TICK_S", 60.0)
    worker, batch = begun(make())
    worker.arena.allocate(7 << 20)
    for _ in range(19):
        worker.send(BatchPart(batch.id, [response(worker, 64)]))
    assert worker.receive() == Credit(16)
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


def test_texts_are_credited_in_groups_again_after_the_memory_was_full(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "TICK_S", 60.0)
    worker, batch = begun(make())
    worker.arena.allocate(8 << 20)
    worker.send(BatchPart(batch.id, [response(worker, 64)]))
    assert worker.receive() == Credit(1)
    for _ in range(64):  # some of them may have been sent before the worker waited
        worker.send(BatchTexts("y", [batch.id], ["x"]))
        assert worker.receive() == Credit(1)
    for _ in range(17):
        worker.send(BatchTexts("y", [batch.id], ["x"]))
    assert worker.receive() == Credit(16)
    worker.send(BatchDone(batch.id, []))
    assert worker.receive() == Credit(1)


def test_a_silent_worker_gets_all_parts_credited(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "TICK_S", 0.01)
    worker, batch = begun(make())
    worker.send(BatchPart(batch.id, [ANSWER]))
    assert worker.receive() == Credit(1)
    worker.send(BatchDone(batch.id, []))


@pytest.mark.parametrize("slow_at", [16, 17], ids=["takes no credit", "leaves the credit unread"])
def test_responses_before_a_workers_exit_are_forwarded(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch, slow_at: int
) -> None:
    """It may have answered everything; an unread batch goes to the next worker without a decision."""
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
    """Return the number of sent and unanswered batches; sending holds the lock."""
    with proxy.streams._changed:
        return proxy.flights
