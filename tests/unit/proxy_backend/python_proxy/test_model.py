"""The Python proxy as called by tritonserver's stub, with a dispatcher and workers played by the test.

Histories of a batch: answered, failed, lost before and after it was read, overdue, circular, unreadable.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from fakes.lane_worker import Hangup
from fakes.proxy_harness import ProxyHarness, echo, hang_up, once, reported, requests
from fakes.triton.fake_stub import Request, TritonError, TritonModelException, pb_utils
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.calls.call_messages import Link
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
from pytriton._protocol.lanes.request_records import id_at
from pytriton._protocol.parameters import (
    CHAIN_PARAMETER,
    PYTHON_MODEL_PARAMETER,
    STAND_IN_PARAMETER,
)
from pytriton.proxy_backend.python_proxy import chains

UNAVAILABLE, INTERNAL = TritonError.UNAVAILABLE, TritonError.INTERNAL
INVALID = TritonError.INVALID_ARG


# ── all is well ──────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_answered_by_its_worker(harness: ProxyHarness) -> None:
    worker = harness.worker()
    model = harness.load()
    assert reported(model.execute(requests("a", "b"))) == [("a", INTERNAL), ("b", INTERNAL)]
    assert reported(model.execute(requests("c"))) == [("c", INTERNAL)]
    assert [(one.id, one.alone) for one in worker.batches] == [(1, False), (2, False)]
    (attach,) = harness.heard(messages.Attach)  # one lane for both
    assert (attach.registration, attach.version, attach.lost) == ("r1", 3, None)
    assert attach.instance.startswith("m_0:")


def test_an_already_exited_worker_is_reported_as_lost(harness: ProxyHarness) -> None:
    harness.worker()
    harness.gone = {"gone"}
    harness.load()
    assert [one.lost for one in harness.heard(messages.Attach)] == [None, "gone"]


def test_a_proxy_s_exit_is_reported(harness: ProxyHarness) -> None:
    harness.worker()
    harness.load().finalize()
    harness.model = None
    (detach,) = eventually(lambda: harness.heard(messages.Detach), "nothing was told")
    assert (detach.registration, detach.instance[:4]) == ("r1", "m_0:")


def test_there_will_be_no_worker(harness: ProxyHarness) -> None:
    failure = messages.Failure(ErrorKind.UNAVAILABLE.value, "model m has reached its restart limit")
    harness.dispatcher.answers[messages.Attach] = lambda _: [failure]
    with pytest.raises(TritonModelException, match="model m has reached its restart limit"):
        harness.load()


def test_a_stand_in_refuses_everything(harness: ProxyHarness) -> None:
    model = harness.load({STAND_IN_PARAMETER: "the model is not there yet"})
    answers = reported(model.execute(requests("a", "b")))
    assert answers == [("the model is not there yet", UNAVAILABLE)] * 2
    assert harness.dispatcher.heard == []


# ── the worker is lost ───────────────────────────────────────────────────────────────────────────


def test_an_unread_batch_goes_to_the_next_worker(harness: ProxyHarness) -> None:
    """Without a retry decision: nothing was started."""
    closes = [True]

    def greet(lane: Lane) -> None:
        if closes and closes.pop():
            raise Hangup

    worker = harness.worker(greet=greet)
    assert reported(harness.load().execute(requests("a"))) == [("a", INTERNAL)]
    assert harness.heard(messages.LaneLost) == []
    assert [one.alone for one in worker.batches] == [False]
    assert len(harness.heard(messages.Attach)) == 2


def test_a_batch_that_was_read_needs_a_retry_decision(harness: ProxyHarness) -> None:
    worker = harness.worker(once(hang_up))
    harness.verdicts = [messages.Verdict("retry")]
    assert reported(harness.load().execute(requests("a"))) == [("a", INTERNAL)]
    lost = [
        (one.lost_workers, one.requests, one.consecutive_losses)
        for one in harness.heard(messages.LaneLost)
    ]
    assert lost == [(1, 1, 0)]
    assert [one.alone for one in worker.batches] == [False, True]


RETRY, KILLED = messages.Verdict("retry"), messages.Verdict("fail", "worker w0 was killed")


@pytest.mark.parametrize(
    ("batch", "verdicts", "losses"),
    [
        ("a,poison,b", [RETRY, KILLED], [(1, 3, 0, ""), (2, 1, 1, "poison")]),
        (
            "poison,poison2,poison3", [RETRY, KILLED, KILLED, KILLED],
            [(1, 3, 0, ""), (2, 1, 1, "poison"), (2, 1, 2, "poison2"), (2, 1, 3, "poison3")],
        ),
        (
            "poison,a,poison2", [RETRY, KILLED, KILLED],
            [(1, 3, 0, ""), (2, 1, 1, "poison"), (2, 1, 1, "poison2")],
        ),
        (
            "poison,a", [RETRY, RETRY, KILLED],
            [(1, 2, 0, ""), (2, 1, 1, "poison"), (3, 1, 2, "poison")],
        ),
    ],
    ids=["one kills", "all kill", "losses in a row are counted", "retried alone, twice"],
)  # fmt: skip
def test_requests_that_lost_a_worker_together_are_retried_alone(
    harness: ProxyHarness, batch: str, verdicts: list[messages.Verdict], losses: list[object]
) -> None:
    def poison(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        if any(one.request_id.startswith("poison") for one in message.requests):
            raise Hangup
        echo(lane, message)

    worker = harness.worker(poison)
    harness.verdicts = list(verdicts)
    ids = batch.split(",")
    assert reported(harness.load().execute(requests(*ids))) == [
        (f"worker w0 was killed [request id: {one}]", UNAVAILABLE)
        if one.startswith("poison")
        else (one, INTERNAL)
        for one in ids
    ]
    tried = [[one.request_id for one in batch.requests] for batch in worker.batches]
    again = [["poison"]] * (verdicts.count(RETRY) - 1)
    assert tried == [ids, *again, *([one] for one in ids)]
    assert [
        (one.lost_workers, one.requests, one.consecutive_losses, one.request_id)
        for one in harness.heard(messages.LaneLost)
    ] == losses


def test_the_decision_may_fail_the_whole_batch(harness: ProxyHarness) -> None:
    harness.worker(hang_up)
    harness.verdicts = [
        messages.Verdict("retry"),
        messages.Verdict("fail", "enough", fails_rest=True),
    ]
    answers = reported(harness.load().execute(requests("a", "b", "c")))
    assert answers == [(f"enough [request id: {one}]", UNAVAILABLE) for one in "abc"]


def test_no_worker_is_left_for_the_rest_of_the_batch(harness: ProxyHarness) -> None:
    harness.worker(hang_up)
    model = harness.load()
    harness.verdicts = [messages.Verdict("retry")]
    failure = messages.Failure(ErrorKind.UNAVAILABLE.value, "given up")
    harness.dispatcher.answers[messages.Attach] = lambda _: [failure]
    answers = reported(model.execute(requests("a", "b")))
    assert answers == [(f"given up [request id: {one}]", UNAVAILABLE) for one in "ab"]


# ── the worker hangs ─────────────────────────────────────────────────────────────────────────────


def test_a_long_batch_is_awaited_as_the_dispatcher_decides(harness: ProxyHarness) -> None:
    harness.execution_timeout_s = 0.02
    answered: list[str] = []

    def overdue_reads() -> list[messages.BatchOverdue]:
        return [one for one in harness.heard(messages.BatchOverdue) if one.was_read]

    def later(lane: Lane, message: FromProxy) -> None:
        eventually(overdue_reads, "the proxy did not report the batch as overdue")
        answered.append("now")
        echo(lane, message)

    harness.worker(later)
    harness.verdicts = [messages.Verdict("wait", wait_s=60.0)]
    assert reported(harness.load().execute(requests("a"))) == [("a", INTERNAL)]
    (overdue,) = overdue_reads()
    assert (overdue.lost_workers, overdue.read_ms) == (0, 0)
    assert answered == ["now"]


def test_a_hung_worker_is_disconnected_and_the_request_fails(harness: ProxyHarness) -> None:
    harness.execution_timeout_s = 0.02

    def hang(lane: Lane, message: FromProxy) -> None:
        lane.receive()  # the proxy goes
        raise AssertionError("it says no more on this lane")

    harness.worker(hang)
    harness.verdicts = [messages.Verdict("fail", "it hangs")]
    assert reported(harness.load().execute(requests("a"))) == [
        ("it hangs [request id: a]", UNAVAILABLE)
    ]


@pytest.mark.parametrize("verdict", [messages.Verdict("fail", "it hangs"), RETRY])
def test_an_answer_that_arrives_before_the_verdict_is_used(
    harness: ProxyHarness, verdict: messages.Verdict
) -> None:
    """Its worker is being ended all the same, so the next batch goes to another one."""
    harness.execution_timeout_s = 0.02
    asked, answered = threading.Event(), threading.Event()

    def judge(overdue: messages.AnyMessage) -> list[messages.AnyMessage]:
        assert isinstance(overdue, messages.BatchOverdue)
        if not overdue.was_read:
            return [messages.Verdict("wait", wait_s=0.02)]
        asked.set()
        assert answered.wait(60)
        return [verdict]

    def answer_late(lane: Lane, message: FromProxy) -> None:
        assert asked.wait(60)
        echo(lane, message)
        answered.set()

    harness.dispatcher.answers[messages.BatchOverdue] = judge
    late = harness.worker(answer_late)
    model = harness.load()
    assert reported(model.execute(requests("a", "b"))) == [("a", INTERNAL), ("b", INTERNAL)]
    harness.execution_timeout_s = None
    other = harness.worker()
    assert reported(model.execute(requests("c"))) == [("c", INTERNAL)]
    assert (len(late.batches), len(other.batches)) == (1, 1)


# ── what breaks the protocol, or cannot be served ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda batch: BatchDone(batch.id, []), "the worker returned 0 responses to 1 requests"),
        (
            lambda batch: BatchDone(batch.id + 1, [ResponseRef([], "x")]),
            "answered batch 1 with BatchDone(id=2",
        ),
    ],
)
def test_a_worker_that_violates_the_protocol_loses_its_lane(
    harness: ProxyHarness, answer: Callable[[Batch], BatchDone], words: str
) -> None:
    def wrong(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        lane.send(answer(message))

    harness.worker(once(wrong))
    model = harness.load()
    ((text, code),) = reported(model.execute(requests("a")))
    assert text.startswith("model m: ")
    assert words in text
    assert text.endswith("[request id: a]")
    assert code == UNAVAILABLE
    assert reported(model.execute(requests("b"))) == [("b", INTERNAL)]  # over a lane of its own
    assert len(harness.heard(messages.Attach)) == 2


def test_a_batch_that_fails_as_a_whole(harness: ProxyHarness) -> None:
    def fail(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        lane.send(BatchFailed(message.id, "ValueError: no"))

    harness.worker(fail)
    answers = reported(harness.load().execute(requests("a", "b")))
    assert answers == [(f"ValueError: no [request id: {one}]", INTERNAL) for one in "ab"]


def test_errors_of_python_models_have_tritons_wording(harness: ProxyHarness) -> None:
    def fail(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        lane.send(BatchFailed(message.id, "Failed to process"))

    harness.worker(fail)
    model = harness.load({PYTHON_MODEL_PARAMETER: "yes"})
    assert reported(model.execute(requests("a"))) == [("Failed to process", INTERNAL)]


def test_a_request_without_an_id_gets_its_workers_id(harness: ProxyHarness) -> None:
    ids: list[str] = []

    def fail(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        ids.extend(id_at(message, place) for place in range(2))
        lane.send(BatchFailed(message.id, "no"))

    harness.worker(fail)
    header = json.dumps({"X-Request-Id": "h-1"})
    answers = reported(harness.load().execute([Request(), Request(parameters=header)]))
    assert answers == [(f"no [request id: {one}]", INTERNAL) for one in ids]
    assert ids[1] == "h-1"


def test_invalid_unicode_fails_no_other_request(harness: ProxyHarness) -> None:
    worker = harness.worker()
    batch = [*requests("a"), Request(parameters=b"\xff"), *requests("b")]
    answers = reported(harness.load().execute(batch))
    assert [answers[0], answers[2]] == [("a", INTERNAL), ("b", INTERNAL)]
    text = "model m: a request parameter, its key or its value, is not valid UTF-8"
    assert answers[1] == (text, INVALID)
    assert [len(one.requests) for one in worker.batches] == [2]


def test_a_batch_that_waits_for_its_own_worker_goes_to_another(harness: ProxyHarness) -> None:
    other = harness.worker()
    circle = harness.worker()
    sealed = chains.seal_chain([Link("m", "w1"), Link("n", "w7")])
    request = Request(parameters=json.dumps({CHAIN_PARAMETER: sealed}), request_id="a")
    assert reported(harness.load().execute([request])) == [("a", INTERNAL)]
    assert (len(other.batches), circle.batches) == (1, [])
    assert harness.heard(messages.Attach)[-1].avoid == ["w1", "w7"]


def test_a_python_model_may_requeue_a_request(harness: ProxyHarness) -> None:
    def again(lane: Lane, message: FromProxy) -> None:
        assert isinstance(message, Batch)
        details = ResponseDetails(reschedule=True)
        lane.send(BatchDone(message.id, [ResponseRef([], None, details), ResponseRef([], "b")]))

    harness.worker(again)
    batch = requests("a", "b")
    responses = harness.load({PYTHON_MODEL_PARAMETER: "yes"}).execute(batch)
    assert responses is not None
    assert responses[0] is None
    assert responses[1].reported() == ("b", INTERNAL)
    reschedule = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    assert [one.release_flags for one in batch] == [reschedule, 0]
