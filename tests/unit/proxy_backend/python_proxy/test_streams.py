"""Batches of a decoupled model: started, answered in parts, lost, cancelled. The test plays the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fakes.proxy_harness import ANSWER, LAST, NO_MORE, Proxy, batch_of, ended
from fakes.triton.fake_stub import FINAL, Request, Sender, TritonError
from support.real_daemon import eventually

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchLent,
    BatchPart,
    BatchParts,
    BatchReturned,
    BatchTexts,
    Cancel,
    Credit,
    FromWorker,
    PartRef,
    Room,
)
from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend.python_proxy import stream_lane

RETRY, FAIL = Verdict("retry"), Verdict("fail", "worker w1 was killed")


def error(sender: Sender) -> str | None:
    """Return the stream's error without the id of its request."""
    reported = sender.sent[-1][0]
    if not isinstance(reported, tuple):
        return None
    return str(reported[0]).partition(" [request id: ")[0]


def two_batches(proxy: Proxy) -> tuple[Lane, list[Sender], list[int]]:
    """Return a worker that has begun two batches, their response senders and their numbers."""
    senders, numbers = [], []
    for _ in range(2):
        senders += proxy.begin()
        worker = proxy.worker()
        numbers.append(batch_of(worker).id)
        worker.send(BatchBegun(numbers[-1]))
        proxy.executed()
    return worker, senders, numbers


def test_one_message_contains_parts_of_several_batches(make: Callable[..., Proxy]) -> None:
    worker, senders, (one, other) = two_batches(make())
    worker.send(BatchParts([PartRef(one, [ANSWER]), PartRef(other, [ANSWER])] * 8))
    assert worker.receive() == Credit(16)
    worker.send(BatchParts([PartRef(other, [LAST]), PartRef(one, [LAST])]))
    worker.send(BatchDone(one, []))
    worker.send(BatchDone(other, []))
    assert worker.receive() == Credit(2)
    assert [sender.sent for sender in senders] == [[({}, 0)] * 8 + [({}, FINAL)]] * 2


def test_one_message_contains_texts_of_several_batches(make: Callable[..., Proxy]) -> None:
    worker, senders, (one, other) = two_batches(make())
    worker.send(BatchTexts("y", [one, other, one], ["a", "b", "é"]))
    worker.send(BatchDone(one, []))
    worker.send(BatchDone(other, []))
    assert worker.receive() == Credit(3)
    eventually(lambda: senders[1].sent[-1:] == [(None, FINAL)], "the second batch ends")
    said = [[response and response["y"].tolist() for response, _ in one.sent] for one in senders]
    assert said == [[[b"a"], ["é".encode()], None], [[b"b"], None]]


def test_a_text_for_one_of_several_requests_is_refused(make: Callable[..., Proxy]) -> None:
    proxy = make()
    senders = proxy.begin(2)
    worker = proxy.worker()
    number = batch_of(worker).id
    worker.send(BatchBegun(number))
    worker.send(BatchTexts("y", [number], ["x"]))
    proxy.executed()
    eventually(lambda: all(map(ended, senders)), "they are answered")
    assert error(senders[0]) == "model m: the worker returned 1 response to 2 requests"


def test_the_next_batch_waits_for_room(make: Callable[..., Proxy]) -> None:
    proxy = make()
    (first,) = proxy.begin()
    worker = proxy.worker(batches=1)
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    proxy.executed()
    (second,) = proxy.begin()
    worker.send(BatchPart(batch.id, [LAST]))
    worker.send(BatchDone(batch.id, []))
    assert worker.receive() == Credit(1)  # before the second batch came
    other = batch_of(worker)
    assert other.id != batch.id
    worker.send(BatchFailed(other.id, "ValueError: no"))
    proxy.executed()
    eventually(lambda: ended(second), "it is answered")
    assert error(first) is None
    assert error(second) == "ValueError: no"


def test_an_unread_batch_goes_to_the_next_worker(make: Callable[..., Proxy]) -> None:
    proxy = make()
    (sender,) = proxy.begin()
    first = proxy.worker()
    eventually(lambda: proxy.flights, "it is sent")
    proxy.lose(first)
    worker = proxy.worker(1)
    batch = batch_of(worker)
    assert not batch.alone
    worker.send(BatchBegun(batch.id))
    worker.send(BatchPart(batch.id, [LAST]))
    worker.send(BatchDone(batch.id, []))
    eventually(lambda: ended(sender), "it is answered")
    assert error(sender) is None
    assert proxy.attachment.asked == []


def test_a_started_batch_fails_with_its_worker(make: Callable[..., Proxy]) -> None:
    proxy = make(FAIL)
    first, second = proxy.begin(2)
    worker = proxy.worker()
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    worker.send(BatchPart(batch.id, [ANSWER, LAST]))
    proxy.lose(worker)
    eventually(lambda: ended(first), "it is answered")
    assert error(first) == FAIL.text
    assert error(second) is None
    assert proxy.attachment.asked == [{"lost_workers": 1, "final": True}]


def test_its_end_does_not_wait_for_a_server_that_accepts_no_answers(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "_END_S", 0.1)
    proxy = make(FAIL)
    (sender,) = proxy.begin()
    takes = threading.Event()
    monkeypatch.setattr(sender, "send", lambda *_, **__: takes.wait())
    worker = proxy.worker()
    worker.send(BatchBegun(batch_of(worker).id))
    proxy.executed()
    try:
        proxy.streams.end()
    finally:
        takes.set()


def test_requests_not_yet_started_are_retried_individually(make: Callable[..., Proxy]) -> None:
    proxy = make(RETRY, FAIL)
    first, second = proxy.begin(2)
    worker = proxy.worker()
    batch_of(worker)
    proxy.lose(worker)
    again = proxy.worker(1)
    batch = batch_of(again)
    assert (len(batch.requests), batch.alone) == (1, True)
    proxy.lose(again)  # the first one ends it, too
    last = proxy.worker(2)
    batch = batch_of(last)
    last.send(BatchBegun(batch.id))
    last.send(BatchPart(batch.id, [LAST]))
    last.send(BatchDone(batch.id, []))
    proxy.executed()
    eventually(lambda: ended(second), "it is answered")
    assert error(first) == FAIL.text
    assert error(second) is None
    reported = proxy.attachment.asked
    assert [
        (one["lost_workers"], one["requests"], one["consecutive_losses"]) for one in reported
    ] == [(1, 2, 0), (2, 1, 1)]
    assert reported[0]["request_id"] == ""  # of two
    assert reported[1]["request_id"]


def test_the_worker_learns_once_that_a_client_left(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "TICK_S", 0.01)
    proxy = make()
    _, second = proxy.begin(2)
    worker = proxy.worker()
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    second.cancelled = True
    assert worker.receive() == Cancel(batch.id, 1)
    worker.send(BatchPart(batch.id, [NO_MORE, NO_MORE]))
    worker.send(BatchDone(batch.id, []))
    assert worker.receive() == Credit(1)


def test_the_client_learns_that_there_is_no_worker(make: Callable[..., Proxy]) -> None:
    proxy = make()
    proxy.attachment.no_worker = "model m: all its workers were given up"
    (sender,) = proxy.begin()
    proxy.executed()
    assert error(sender) == "model m: all its workers were given up"


def test_an_overdue_batch_needs_a_decision(
    make: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lane, "TICK_S", 0.01)
    proxy = make(Verdict("wait", wait_s=0.01), Verdict("fail", "took too long"), FAIL)
    (sender,) = proxy.begin()
    worker = proxy.worker()
    batch = batch_of(worker)
    proxy.attachment.execution_timeout_s = 0.01
    worker.send(BatchBegun(batch.id))
    eventually(lambda: len(proxy.attachment.asked) >= 2, "it was asked twice")
    proxy.lose(worker)  # as the dispatcher has it end
    eventually(lambda: ended(sender), "it is answered")
    first, second, *_ = proxy.attachment.asked
    assert (first["was_read"], first["since"]) == (True, None)
    assert second["since"] is not None
    assert error(sender) == FAIL.text


BREACHES: dict[str, Callable[[int], list[FromWorker]]] = {
    "no room": lambda _: [Room(-1)],
    "another batch": lambda number: [BatchBegun(number + 1)],
    "begun twice": lambda number: [BatchBegun(number), BatchBegun(number)],
    "answered before it began": lambda number: [BatchPart(number, [ANSWER])],
    "too few responses": lambda number: [BatchBegun(number), BatchPart(number, [])],
    "not of a stream": lambda number: [BatchLent(number, [ANSWER])],
    "parts before it began": lambda number: [BatchParts([PartRef(number, [ANSWER])])],
    "parts of another batch": lambda number: [
        BatchBegun(number), BatchParts([PartRef(number, [ANSWER]), PartRef(number + 1, [ANSWER])]),
    ],
    "texts before it began": lambda number: [BatchTexts("y", [number], ["x"])],
    "texts of another batch": lambda number: [
        BatchBegun(number), BatchTexts("y", [number, number + 1], ["x", "x"]),
    ],
    "fewer texts than batches": lambda number: [
        BatchBegun(number), BatchTexts("y", [number, number], ["x"]),
    ],
    "requests that are none": lambda number: [BatchBegun(number), BatchReturned(number, [1])],
}  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES)
def test_a_protocol_violation_fails_the_batch(make: Callable[..., Proxy], breach: str) -> None:
    """Without a retry, which might repeat it forever."""
    proxy = make()
    (sender,) = proxy.begin()
    worker = proxy.worker()
    batch = batch_of(worker)
    for message in BREACHES[breach](batch.id):
        worker.send(message)
    proxy.executed()
    eventually(lambda: ended(sender), "it is answered")
    assert str(error(sender)).startswith("model m: the worker ")
    eventually(lambda: proxy.streams._lane is None, "the lane is let go")
    assert proxy.attachment.asked == []


def test_invalid_texts_fail_only_their_request(make: Callable[..., Proxy]) -> None:
    proxy = make()
    translator = proxy.streams._translator
    fine, wrong = Request(), Request()

    def refuse(requests: Any, lane: Lane) -> Any:
        if wrong in requests:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return [translator._detailed(one, lane) for one in requests]

    translator.requests = refuse  # type: ignore[method-assign]
    translator.refusals = lambda requests: [  # type: ignore[method-assign]
        "no UTF-8" if one is wrong else None for one in requests
    ]
    thread = threading.Thread(target=proxy.streams.begin, args=([fine, wrong],))
    thread.start()
    worker = proxy.worker()
    batch = batch_of(worker)
    assert len(batch.requests) == 1
    worker.send(BatchBegun(batch.id))
    thread.join(60)
    worker.send(BatchPart(batch.id, [LAST]))
    worker.send(BatchDone(batch.id, []))
    eventually(lambda: ended(fine.sender), "it is answered")
    assert wrong.sender.sent == [(("no UTF-8", TritonError.INVALID_ARG), FINAL)]
    assert error(fine.sender) is None
