"""The Python proxy as tritonserver's stub calls it, with a dispatcher and workers that the test plays.

Histories of a batch: answered, failed, lost before and after it was read, overdue, in a circle, unreadable.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.fakes.lane_worker import Hangup
from support.fakes.proxy_stage import Stage, echo, hang_up, once, requests, told
from support.fakes.triton.fake_stub import Request, TritonError, TritonModelException, pb_utils
from support.running import eventually

from pytriton._protocol import messages
from pytriton._protocol.calls.call_chain import Link
from pytriton._protocol.errors import ErrorKind
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    FromProxy,
    ResponseDetails,
    ResponseRef,
)
from pytriton._protocol.lanes.request_names import id_at
from pytriton._protocol.parameters import (
    CHAIN_PARAMETER,
    PYTHON_MODEL_PARAMETER,
    STAND_IN_PARAMETER,
)
from pytriton.proxy_backend import chains

UNAVAILABLE, INTERNAL = TritonError.UNAVAILABLE, TritonError.INTERNAL
INVALID = TritonError.INVALID_ARG


# ── all is well ──────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_answered_by_its_worker(stage: Stage) -> None:
    worker = stage.worker()
    model = stage.load()
    assert told(model.execute(requests("a", "b"))) == [("a", INTERNAL), ("b", INTERNAL)]
    assert told(model.execute(requests("c"))) == [("c", INTERNAL)]
    assert [(one.id, one.alone) for one in worker.batches] == [(1, False), (2, False)]
    (attach,) = stage.heard(messages.Attach)  # one lane for both
    assert (attach.registration, attach.version, attach.lost) == ("r1", 3, None)
    assert attach.instance.startswith("m_0:")


def test_a_worker_that_is_gone_already_is_said_to_be_lost(stage: Stage) -> None:
    stage.worker()
    stage.gone = {"gone"}
    stage.load()
    assert [one.lost for one in stage.heard(messages.Attach)] == [None, "gone"]


def test_the_end_of_a_proxy_is_told(stage: Stage) -> None:
    stage.worker()
    stage.load().finalize()
    stage.model = None
    (detach,) = eventually(lambda: stage.heard(messages.Detach), "nothing was told")
    assert (detach.registration, detach.instance[:4]) == ("r1", "m_0:")


def test_no_worker_will_come(stage: Stage) -> None:
    failure = messages.Failure(ErrorKind.UNAVAILABLE.value, "model m has been given up")
    stage.dispatcher.answers[messages.Attach] = lambda _: [failure]
    with pytest.raises(TritonModelException, match="model m has been given up"):
        stage.load()


def test_a_stand_in_refuses_everything(stage: Stage) -> None:
    model = stage.load({STAND_IN_PARAMETER: "the model is not there yet"})
    answers = told(model.execute(requests("a", "b")))
    assert answers == [("the model is not there yet", UNAVAILABLE)] * 2
    assert stage.dispatcher.heard == []


# ── the worker is lost ───────────────────────────────────────────────────────────────────────────


def test_a_batch_that_was_not_read_goes_to_the_next_worker(stage: Stage) -> None:
    """Nobody is asked about it: nothing was begun."""
    closes = [True]

    def greet(lane: Lane) -> None:
        if closes and closes.pop():
            raise Hangup

    worker = stage.worker(greet=greet)
    assert told(stage.load().execute(requests("a"))) == [("a", INTERNAL)]
    assert stage.heard(messages.LaneLost) == []
    assert [one.alone for one in worker.batches] == [False]
    assert len(stage.heard(messages.Attach)) == 2


def test_a_batch_that_was_read_is_asked_about(stage: Stage) -> None:
    worker = stage.worker(once(hang_up))
    stage.verdicts = [messages.Verdict("retry")]
    assert told(stage.load().execute(requests("a"))) == [("a", INTERNAL)]
    lost = [(one.losses, one.requests, one.in_row) for one in stage.heard(messages.LaneLost)]
    assert lost == [(1, 1, 0)]
    assert [one.alone for one in worker.batches] == [False, True]


def test_requests_that_lost_a_worker_together_are_tried_each_by_itself(stage: Stage) -> None:
    def poison(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        if any(one.request_id == "poison" for one in message.requests):
            raise Hangup
        echo(lane, message)

    worker = stage.worker(poison)
    stage.verdicts = [messages.Verdict("retry"), messages.Verdict("fail", "worker w0 was killed")]
    answers = told(stage.load().execute(requests("a", "poison", "b")))
    assert answers == [
        ("a", INTERNAL),
        ("worker w0 was killed [request id: poison]", UNAVAILABLE),
        ("b", INTERNAL),
    ]
    ids = [[one.request_id for one in batch.requests] for batch in worker.batches]
    assert ids == [["a", "poison", "b"], ["a"], ["poison"], ["b"]]
    lost = [(one.losses, one.requests, one.in_row) for one in stage.heard(messages.LaneLost)]
    assert lost == [(1, 3, 0), (2, 1, 1)]
    assert [one.request_id for one in stage.heard(messages.LaneLost)] == ["", "poison"]


def test_the_verdict_may_end_the_whole_batch(stage: Stage) -> None:
    stage.worker(hang_up)
    stage.verdicts = [messages.Verdict("retry"), messages.Verdict("fail", "enough", whole=True)]
    answers = told(stage.load().execute(requests("a", "b", "c")))
    assert answers == [(f"enough [request id: {one}]", UNAVAILABLE) for one in "abc"]


def test_no_worker_comes_for_what_is_left(stage: Stage) -> None:
    stage.worker(hang_up)
    model = stage.load()
    stage.verdicts = [messages.Verdict("retry")]
    failure = messages.Failure(ErrorKind.UNAVAILABLE.value, "given up")
    stage.dispatcher.answers[messages.Attach] = lambda _: [failure]
    answers = told(model.execute(requests("a", "b")))
    assert answers == [(f"given up [request id: {one}]", UNAVAILABLE) for one in "ab"]


# ── the worker hangs ─────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_takes_long_is_waited_for_as_the_dispatcher_says(stage: Stage) -> None:
    stage.execution_timeout_s = 0.02
    answered: list[str] = []

    def later(lane: Lane, message: FromProxy) -> None:
        eventually(lambda: stage.heard(messages.BatchOverdue), "nobody asked about the batch")
        answered.append("now")
        echo(lane, message)

    stage.worker(later)
    stage.verdicts = [messages.Verdict("wait", wait_s=60.0)]
    assert told(stage.load().execute(requests("a"))) == [("a", INTERNAL)]
    (overdue,) = stage.heard(messages.BatchOverdue)
    assert (overdue.taken, overdue.losses, overdue.taken_ms) == (True, 0, 0)
    assert answered == ["now"]


def test_a_worker_that_hangs_is_left_and_the_request_fails(stage: Stage) -> None:
    stage.execution_timeout_s = 0.02

    def hang(lane: Lane, message: FromProxy) -> None:
        lane.receive()  # the proxy goes
        raise AssertionError("it says no more on this lane")

    stage.worker(hang)
    stage.verdicts = [messages.Verdict("fail", "it hangs")]
    assert told(stage.load().execute(requests("a"))) == [("it hangs [request id: a]", UNAVAILABLE)]


# ── what breaks the protocol, or cannot be served ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda batch: BatchDone(batch.id, []), "the worker gave 0 responses to 1 requests"),
        (
            lambda batch: BatchDone(batch.id + 1, [ResponseRef([], "x")]),
            "answered batch 1 with BatchDone(id=2",
        ),
    ],
)
def test_a_worker_that_breaks_the_protocol_loses_its_lane(
    stage: Stage, answer: Callable[[Batch], BatchDone], words: str
) -> None:
    def wrong(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        lane.send(answer(message))

    stage.worker(once(wrong))
    model = stage.load()
    ((text, code),) = told(model.execute(requests("a")))
    assert text.startswith("model m: ")
    assert words in text
    assert text.endswith("[request id: a]")
    assert code == UNAVAILABLE
    assert told(model.execute(requests("b"))) == [("b", INTERNAL)]  # over a lane of its own
    assert len(stage.heard(messages.Attach)) == 2


def test_a_batch_that_fails_as_a_whole(stage: Stage) -> None:
    def fail(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        lane.send(BatchFailed(message.id, "ValueError: no"))

    stage.worker(fail)
    answers = told(stage.load().execute(requests("a", "b")))
    assert answers == [(f"ValueError: no [request id: {one}]", INTERNAL) for one in "ab"]


def test_what_a_model_py_fails_with_is_as_triton_words_it(stage: Stage) -> None:
    def fail(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        lane.send(BatchFailed(message.id, "Failed to process"))

    stage.worker(fail)
    model = stage.load({PYTHON_MODEL_PARAMETER: "yes"})
    assert told(model.execute(requests("a"))) == [("Failed to process", INTERNAL)]


def test_a_request_without_an_id_has_the_one_that_its_worker_knows(stage: Stage) -> None:
    ids: list[str] = []

    def fail(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        ids.extend(id_at(message, place) for place in range(2))
        lane.send(BatchFailed(message.id, "no"))

    stage.worker(fail)
    header = json.dumps({"X-Request-Id": "h-1"})
    answers = told(stage.load().execute([Request(), Request(parameters=header)]))
    assert answers == [(f"no [request id: {one}]", INTERNAL) for one in ids]
    assert ids[1] == "h-1"


def test_texts_that_are_no_unicode_cost_no_other_request(stage: Stage) -> None:
    worker = stage.worker()
    batch = [*requests("a"), Request(parameters=b"\xff"), *requests("b")]
    answers = told(stage.load().execute(batch))
    assert [answers[0], answers[2]] == [("a", INTERNAL), ("b", INTERNAL)]
    text = "model m: a request parameter, its key or its value, is not valid UTF-8"
    assert answers[1] == (text, INVALID)
    assert [len(one.requests) for one in worker.batches] == [2]


def test_a_batch_that_waits_for_its_own_worker_goes_to_another(stage: Stage) -> None:
    other = stage.worker()
    circle = stage.worker()
    sealed = chains.sealed([Link("m", "w1"), Link("n", "w7")])
    request = Request(parameters=json.dumps({CHAIN_PARAMETER: sealed}), request_id="a")
    assert told(stage.load().execute([request])) == [("a", INTERNAL)]
    assert (len(other.batches), circle.batches) == (1, [])
    assert stage.heard(messages.Attach)[-1].avoid == ["w1", "w7"]


def test_a_model_py_may_have_a_request_queued_again(stage: Stage) -> None:
    def again(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        details = ResponseDetails(reschedule=True)
        lane.send(BatchDone(message.id, [ResponseRef([], None, details), ResponseRef([], "b")]))

    stage.worker(again)
    batch = requests("a", "b")
    responses = stage.load({PYTHON_MODEL_PARAMETER: "yes"}).execute(batch)
    assert responses is not None
    assert responses[0] is None
    assert responses[1].told() == ("b", INTERNAL)
    reschedule = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    assert [one.release_flags for one in batch] == [reschedule, 0]
