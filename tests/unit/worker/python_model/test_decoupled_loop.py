"""Batches of decoupled Triton Python models: the messages on the lane, and when a batch is over."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from fakes.lane_pair import Lanes

from pytriton import pb_utils
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchPart,
    BatchReturned,
    Credit,
    RequestRef,
    ResponseRef,
    Room,
)
from pytriton._protocol.messages import ModelSpec, WorkerEnvironment
from pytriton._protocol.messages import PythonModel as PythonModelSpec
from pytriton.pb_utils import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE as AGAIN
from pytriton.pb_utils import TRITONSERVER_RESPONSE_COMPLETE_FINAL as FINAL
from pytriton.worker.python_model.batches import LoadedPythonModel, WrongReturn
from pytriton.worker.python_model.decoupled_loop import DecoupledModelLoop, PythonStream
from pytriton.worker.request_log import CallLog
from pytriton.worker.streams import Outbox


class Loop:
    """The loop that serves the batch."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.over: list[PythonStream] = []
        self.responses: list[bool] = []  #: whether each was the first to its request
        self.on_event_loop = False
        self.unanswered: list[int] = []  #: requests that nobody can answer any more

    def is_event_loop(self) -> bool:
        return self.on_event_loop

    def ended(self, stream: PythonStream) -> None:
        self.over.append(stream)

    def release(self, stream: PythonStream, index: int) -> None:
        self.unanswered.append(index)

    counts_bytes = True

    def record_response(self, since_ns: int, *, first: bool) -> int:
        self.responses.append(first)
        return since_ns + 1


def begin(
    lanes: Lanes, count: int = 1, *, decoupled: bool = True
) -> tuple[PythonStream, list[pb_utils.InferenceRequest], Loop]:
    """Start a batch of this many requests; the proxy's end has read the announced room."""
    proxy, worker = lanes
    policy = {"model_transaction_policy": {"decoupled": decoupled}}
    spec = ModelSpec(
        "m",
        1,
        policy,
        WorkerEnvironment("python"),
        python_model=PythonModelSpec("{}", streams=True),
    )
    model = LoadedPythonModel(spec, object(), "m_0_0", CallLog())
    batch = Batch(5, [RequestRef([], "", ["y"]) for _ in range(count)])
    loop = Loop()
    outbox = Outbox(worker, 4)
    assert isinstance(proxy.receive(), Room)
    requests = model.incoming(batch.requests, worker)
    stream = PythonStream(cast(DecoupledModelLoop, loop), outbox, batch, requests, model)
    outbox.streams[batch.id] = stream  # type: ignore[assignment]
    return stream, requests, loop


def answer(value: int = 1) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([value], np.int32))])


def part(proxy: Lane) -> Sequence[ResponseRef | None]:
    message = proxy.receive()
    assert isinstance(message, BatchPart)
    return message.responses


def finals(responses: Sequence[ResponseRef | None]) -> list[bool | None]:
    return [
        None if one is None else one.details is not None and one.details.final for one in responses
    ]


def test_answers_are_sent_immediately_and_the_batch_ends_with_the_last(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes, 2)
    first, second = (one.get_response_sender() for one in requests)
    first.send(answer())
    stream.returned([])
    second.send(flags=FINAL)
    first.send(answer(), FINAL)
    proxy = lanes[0]
    assert finals(part(proxy)) == [False, None]
    assert proxy.receive() == BatchReturned(5)
    assert finals(part(proxy)) == [None, True]
    assert finals(part(proxy)) == [True, None]
    assert proxy.receive() == BatchDone(5, [])
    assert loop.over == [stream]
    assert stream.outbox.streams == {}
    assert loop.responses == [True, False]  # an end without a response does not count


def test_a_batch_is_not_over_before_execute_has_returned(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    requests[0].get_response_sender().send(answer(), FINAL)
    assert loop.over == []
    stream.finish(None)
    assert loop.over == [stream]


def test_returned_responses_are_sent(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes, 2, decoupled=False)
    sender = requests[1].get_response_sender()
    stream.finish([answer(), None])
    assert finals(part(lanes[0])) == [True, None]
    assert loop.over == []
    sender.send(answer(), FINAL)
    assert loop.over == [stream]


@pytest.mark.parametrize(
    ("decoupled", "returned", "said"),
    [
        (True, lambda: [answer()], "must return None"),
        (False, lambda: [None], "returned no response to a request"),
        (False, lambda: [], "Number of InferenceResponse|expected|Expected"),
    ],
)
def test_invalid_return_values_of_execute(
    lanes: Lanes, decoupled: bool, returned: Any, said: str
) -> None:
    stream, _, _ = begin(lanes, decoupled=decoupled)
    with pytest.raises(WrongReturn, match=said):
        stream.finish(returned())


def test_a_requeued_request_is_reported_and_finished(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes, 2)
    requests[0].set_release_flags(AGAIN)
    requests[1].get_response_sender().send(flags=FINAL)
    stream.finish(None)
    part(lanes[0])
    assert lanes[0].receive() == BatchReturned(5, [0])
    assert loop.over == [stream]


def test_an_answered_request_cannot_be_requeued(lanes: Lanes) -> None:
    stream, requests, _ = begin(lanes)
    requests[0].set_release_flags(AGAIN)
    requests[0].get_response_sender().send(answer(), FINAL)
    with pytest.raises(WrongReturn):
        stream.finish(None)


def test_a_failure_is_reported_once(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    stream.fail("ValueError: no")
    stream.fail("again")
    requests[0].get_response_sender().send(answer())  # nobody waits for it
    assert lanes[0].receive() == BatchFailed(5, "ValueError: no")
    assert loop.over == [stream]
    lanes[0].set_receive_timeout(0.01)
    with pytest.raises(LaneSilent):
        lanes[0].receive()


def test_a_disconnected_client_gets_only_the_end(lanes: Lanes) -> None:
    stream, requests, _ = begin(lanes)
    sender = requests[0].get_response_sender()
    assert not sender.is_cancelled()
    stream.cancel(0)
    assert sender.is_cancelled()
    assert requests[0].is_cancelled()
    sender.send(answer())
    sender.send(answer(), FINAL)
    (end,) = part(lanes[0])
    assert end is not None
    assert end.details is not None
    assert end.details.empty


def test_a_sender_waits_while_its_caller_has_unread_answers(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    stream.hold(0)
    sending = threading.Thread(target=requests[0].get_response_sender().send, args=(answer(),))
    sending.start()
    sending.join(0.05)
    assert sending.is_alive()
    with loop.changed:
        stream.go(0)
        loop.changed.notify_all()
    sending.join(60)
    assert not sending.is_alive()
    assert finals(part(lanes[0])) == [False]


def test_on_the_event_loop_nothing_waits_for_one_caller(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    loop.on_event_loop = True
    stream.hold(0)
    requests[0].get_response_sender().send(answer())
    assert finals(part(lanes[0])) == [False]


def test_a_sender_waits_while_the_proxy_has_a_backlog(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    sender = requests[0].get_response_sender()
    while not stream.outbox.full:
        sender.send(answer())
    sending = threading.Thread(target=sender.send, args=(answer(),))
    sending.start()
    sending.join(0.05)
    assert sending.is_alive()
    with loop.changed:
        stream.outbox.heard(Credit(8))
        loop.changed.notify_all()
    sending.join(60)
    assert not sending.is_alive()


def test_without_a_proxy_nothing_is_sent_and_nobody_waits(
    lanes: Lanes, capfd: pytest.CaptureFixture[str]
) -> None:
    stream, requests, _ = begin(lanes)
    lanes[0].hang_up()
    sender = requests[0].get_response_sender()
    sender.send(answer())
    assert stream.lost
    assert sender.is_cancelled()
    sender.send(answer())
    stream.returned([])
    stream.fail("no")
    assert capfd.readouterr().err == ""


def test_an_unsendable_answer_closes_the_lane(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The proxy must notice, or the client would hang."""
    stream, requests, _ = begin(lanes)

    def refuse(message: object) -> None:
        raise LaneError("the proxy has read nothing for a while")

    monkeypatch.setattr(lanes[1], "send", refuse)
    requests[0].get_response_sender().send(answer())
    assert stream.lost
    assert "an answer could not be sent: the proxy has read nothing" in capfd.readouterr().err
    with pytest.raises(LaneClosed):
        lanes[0].receive()


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_sender_dropped_without_its_last_answer(lanes: Lanes, decoupled: bool) -> None:
    """The client would hang, so the loop is notified wherever the last reference is dropped, and ends the request."""
    stream, requests, loop = begin(lanes, 3, decoupled=decoupled)
    kept, lost, sent = (one.get_response_sender() for one in requests)
    sent.send(answer(), FINAL)
    del requests, sent
    stream.finish(None)
    assert loop.unanswered == []
    del lost
    assert loop.unanswered == [1]  # immediately, without garbage collection
    assert stream.end_unanswered(1)
    assert not stream.end_unanswered(1)
    assert loop.over == []
    kept.send(answer(), FINAL)
    del kept
    assert loop.unanswered == [1]
    assert loop.over == [stream]
    proxy = lanes[0]
    assert finals(part(proxy)) == [None, None, True]
    assert proxy.receive() == BatchReturned(5)
    (_, failed, _) = part(proxy)
    assert failed is not None
    assert failed.details is not None
    assert failed.details.final
    missing = "TRITONSERVER_RESPONSE_COMPLETE_FINAL" if decoupled else "a response"
    assert str(failed.error).endswith(f"without {missing}.")
    assert finals(part(proxy)) == [True, None, None]
    assert proxy.receive() == BatchDone(5, [])


def test_a_held_request_can_still_be_answered(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    requests[0].get_response_sender().send(answer())  # and nothing holds the sender
    stream.finish(None)
    assert loop.unanswered == []
    requests[0].get_response_sender().send(answer(2), FINAL)
    del requests
    assert loop.unanswered == []
    assert loop.over == [stream]


def test_a_request_without_a_sender_is_released(lanes: Lanes) -> None:
    """A decoupled model may return without an answer."""
    stream, requests, loop = begin(lanes)
    del requests
    stream.finish(None)
    assert loop.unanswered == [0]


def test_a_requeued_request_needs_no_answer(lanes: Lanes) -> None:
    stream, requests, loop = begin(lanes)
    requests[0].set_release_flags(AGAIN)
    del requests
    stream.finish(None)
    assert not any(stream.end_unanswered(index) for index in loop.unanswered)
    assert loop.over == [stream]
