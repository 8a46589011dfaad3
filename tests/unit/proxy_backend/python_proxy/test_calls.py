"""Calls that a proxy makes for its worker: the test plays the worker and the called model."""

from __future__ import annotations

import json
import queue
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.triton.fake_stub import InferenceRequest, InferenceResponse, Logger, Tensor, TritonError
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.calls.call_connection import CallConnection, Slots, socket_path
from pytriton._protocol.calls.call_messages import (
    MOVED,
    Answer,
    AnswerRead,
    Call,
    CallDropped,
    Link,
    Retiring,
    decode_chain,
)
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import LaneClosed, LaneSilent
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.proxy_backend.python_proxy import calls as calls_module
from pytriton.proxy_backend.python_proxy import stub
from pytriton.proxy_backend.python_proxy.calls import (
    CallInFlight,
    Executor,
    ProxyCalls,
    describe_error,
)
from pytriton.proxy_backend.python_proxy.chains import has_closed, write_failure
from pytriton.proxy_backend.python_proxy.translate import Translator


def call(number: int, *chain: Link) -> Call:
    return Call(
        number, "other", -1, [], [], "{}", "", 0, 0, 0, False, list(chain or (Link("m", "w1"),))
    )


class Model:
    """Answers calls as the test says: `answers` has the next call's, which waits for them."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[list[Answer]] = queue.SimpleQueue()
        self.begun: list[int] = []
        self.released: list[int] = []

    def __call__(self, call: Call, state: Any) -> Iterator[tuple[Answer, Callable[[], None]]]:
        self.begun.append(call.id)
        for answer in self.answers.get():
            state.wait_for_room()
            if state.dropped:
                return
            yield answer, lambda: self.released.append(call.id)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, model: Model) -> Iterator[ProxyCalls]:
    made = ProxyCalls(Translator("m", {}), "ipc://nowhere")

    class FakeExecutor:
        answers = staticmethod(model)

    monkeypatch.setattr(calls_module, "Executor", lambda *arguments: FakeExecutor())
    yield made
    for _ in range(30):
        model.answers.put([])
    monkeypatch.setattr(calls_module, "_END_S", 0.0)
    made.end()


@pytest.fixture
def connect(calls: ProxyCalls) -> Iterator[Callable[[], CallConnection]]:
    """Let the proxy serve a worker's calls; return the worker's end."""
    made: list[CallConnection] = []
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as folder:

        def connected() -> CallConnection:
            lane = f"{folder}/w{len(made)}.sock"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(socket_path(lane))
                listener.listen()
                calls.serve(lane)
                made.append(CallConnection(listener.accept()[0], peer_trusted=True))
            return made[-1]

        yield connected
        for one in made:
            one.close()


def test_calls_run_concurrently_and_are_answered_in_any_order(
    connect: Callable[[], CallConnection], model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    eventually(lambda: model.begun == [1], "it is made")
    worker.send(call(2))
    eventually(lambda: model.begun == [1, 2], "so is the other")
    model.answers.put([Answer(1, [], True)])  # the first waiter gets the first call
    assert worker.receive() == Answer(1, [], True)
    model.answers.put([Answer(2, [], False), Answer(2, [], True)])
    assert [worker.receive(), worker.receive()] == [Answer(2, [], False), Answer(2, [], True)]
    assert model.released == []
    for number in (1, 2, 2):
        worker.send(AnswerRead(number))
    eventually(lambda: model.released == [1, 2, 2], "what was read is given back")


def test_a_stream_is_limited_by_its_unread_answers(
    connect: Callable[[], CallConnection], model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    model.answers.put([Answer(1, [], number == 9) for number in range(10)])
    for _ in range(8):
        worker.receive()
    worker.set_receive_timeout(0.05)
    with pytest.raises(LaneSilent):
        worker.receive()
    worker.set_receive_timeout(None)
    worker.send(AnswerRead(1))
    assert worker.receive() == Answer(1, [], False)
    worker.send(AnswerRead(1))
    assert worker.receive() == Answer(1, [], True)


def test_a_dropped_call_ends_immediately(
    connect: Callable[[], CallConnection], model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    eventually(lambda: model.begun == [1], "it is made")
    worker.send(CallDropped(1))
    assert worker.receive() == Answer(1, [], True)
    model.answers.put([Answer(1, [], True)])
    eventually(model.answers.empty, "the first call takes it, and not the second one")
    worker.send(AnswerRead(1))
    worker.send(CallDropped(1))  # it has ended: nothing more is sent
    worker.send(call(2))
    model.answers.put([Answer(2, [], True)])
    assert worker.receive() == Answer(2, [], True)


def test_an_exception_is_the_calls_answer(
    connect: Callable[[], CallConnection], calls: ProxyCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        @staticmethod
        def answers(call: Call, state: Any) -> Any:
            raise ValueError("no such thing")

    monkeypatch.setattr(calls_module, "Executor", lambda *arguments: Failing())
    worker = connect()
    worker.send(call(1))
    assert worker.receive() == Answer(1, [], True, "ValueError: no such thing", "INTERNAL")


def test_a_retiring_proxy_answers_pending_calls_and_no_new_ones(
    connect: Callable[[], CallConnection], calls: ProxyCalls, model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    eventually(lambda: model.begun == [1], "it is made")
    calls.retire()
    assert worker.receive() == Retiring()
    worker.send(call(2))
    moved = worker.receive()
    assert isinstance(moved, Answer)
    assert (moved.id, moved.code) == (2, MOVED)
    model.answers.put([Answer(1, [], True)])
    assert worker.receive() == Answer(1, [], True)
    assert model.begun == [1]


def test_a_retiring_proxy_without_calls_just_disconnects(
    connect: Callable[[], CallConnection], calls: ProxyCalls
) -> None:
    worker = connect()
    calls.retire()
    with pytest.raises(LaneClosed):
        worker.send(call(1))


def test_a_missing_socket_for_calls_means_the_worker_is_exiting(
    calls: ProxyCalls, tmp_path: Path
) -> None:
    calls.serve(str(tmp_path / "gone.sock"))
    calls.retire()


def test_chained_calls_do_not_wait_behind_many_others(
    connect: Callable[[], CallConnection], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those may be waiting for them."""
    monkeypatch.setattr(calls_module, "_AT_ONCE", 2)
    worker = connect()
    for number in (1, 2, 3):
        worker.send(call(number))
    eventually(lambda: sorted(model.begun) == [1, 2], "two are made, the third one waits")
    worker.send(call(4, Link("a", "w0"), Link("m", "w1")))
    refused = worker.receive()
    assert isinstance(refused, Answer)
    assert (refused.id, refused.code) == (4, "UNAVAILABLE")
    assert "2 calls are already in flight" in (refused.error or "")
    model.answers.put([])
    eventually(lambda: sorted(model.begun) == [1, 2, 3], "now it is made")


def test_deadlocked_calls_fail_with_a_reason(
    connect: Callable[[], CallConnection], calls: ProxyCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def stuck(worker: str, models: list[str], endpoint: str) -> messages.StuckCalls:
        asked.append((worker, models))
        return messages.StuckCalls(models, "they wait for each other")

    monkeypatch.setattr("pytriton.proxy_backend.python_proxy.chains.report_waiting", stuck)
    monkeypatch.setattr(calls_module, "_TICK_S", 0.01)
    worker = connect()
    worker.send(call(1))
    assert worker.receive() == Answer(1, [], True, "they wait for each other", "UNAVAILABLE")
    assert asked[0] == ("w1", ["other"])  # perhaps again, before the answer has ended the wait


@pytest.mark.parametrize("nonsense", [AnswerRead(1), Answer(1, [], True), Retiring()])
def test_a_worker_that_violates_the_protocol_is_disconnected(
    connect: Callable[[], CallConnection], nonsense: Any
) -> None:
    worker = connect()
    worker.send(nonsense)
    with pytest.raises(LaneClosed):
        worker.receive()
    assert "broke the protocol" in Logger.errors[0]


def test_an_ending_worker_returns_unread_batches(
    connect: Callable[[], CallConnection], model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    model.answers.put([Answer(1, [], False)] * 2)
    worker.receive()
    worker.receive()
    worker.hang_up()
    eventually(lambda: model.released == [1, 1], "its answers are given back")


# ── One call to another model through the stub: its errors in words of ours, its answers where the worker reads them ──


def other_call(*, stream: bool = False, version: int = -1) -> Call:
    return Call(
        7, "other", version, [], ["y"], '{"a": 1}', "id", 5, 1, 9, stream, [Link("m", "w1")]
    )


def response(*tensors: Tensor, error: str | None = None) -> InferenceResponse:
    return InferenceResponse(tensors, TritonError(error) if error else None)


class Request:
    """What the stub was asked, and the model's answer."""

    made: list[dict[str, Any]]
    answers: list[InferenceResponse]

    @classmethod
    def answer(cls, asked: dict[str, Any]) -> Any:
        decoupled = asked.pop("decoupled")
        cls.made.append(asked)
        return iter(cls.answers) if decoupled else cls.answers[0]


class State(CallInFlight):
    """A pending call that always has room, and counts the answers that waited for it."""

    def __init__(self) -> None:
        super().__init__(other_call())
        self.waits = 0

    def wait_for_room(self) -> None:
        self.waits += 1


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CallConnection, CallConnection]]:
    """The connection to a worker: the proxy's end and the worker's."""
    monkeypatch.setattr(InferenceRequest, "answer", Request.answer)
    Request.made = []
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = CallConnection(pair[0], peer_trusted=False), CallConnection(pair[1], peer_trusted=True)
    yield made
    for end in made:
        end.close()


@pytest.fixture
def executor(ends: tuple[CallConnection, CallConnection]) -> Iterator[Executor]:
    slots = Slots(ends[0])
    yield Executor(Translator("m", {}), "ipc://nowhere", ends[0], slots)
    slots.close()


def test_the_request_matches_the_workers_call(executor: Executor) -> None:
    Request.answers = [response()]
    state = State()
    ((answer, _),) = executor.answers(other_call(), state)
    assert (answer.id, answer.final, answer.error) == (7, True, None)
    (made,) = Request.made
    parameters = made.pop("parameters")
    assert decode_chain(json.dumps(parameters), b"") == [Link("m", "w1")]
    assert parameters.pop(CHAIN_PARAMETER)
    assert parameters == {"a": 1}
    assert made == {
        "model_name": "other", "model_version": -1, "requested_output_names": ["y"], "inputs": [],
        "request_id": "id", "correlation_id": 5, "flags": 1, "timeout": 9,
    }  # fmt: skip


def test_outputs_stay_readable_until_the_worker_has_read_them(
    executor: Executor, ends: tuple[CallConnection, CallConnection]
) -> None:
    numbers = np.array([1.5, 2.5], np.float32)
    Request.answers = [
        response(
            Tensor("y", numbers), Tensor("s", np.array([b"a", b"\0"], object)),
            Tensor("e", np.zeros((0, 2), np.int8)),
        )
    ]  # fmt: skip
    ((answer, release),) = executor.answers(other_call(), State())
    ends[0].send(answer)
    assert ends[1].receive() == answer
    y, s, e = answer.outputs
    assert tensors.read(ends[1], y, np.dtype(np.float32)).tolist() == [1.5, 2.5]
    assert tensors.decode_bytes(tensors.read_raw(ends[1], s), s.shape).tolist() == [b"a", b"\0"]
    assert (e.shape, e.nbytes) == ([0, 2], 0)
    release()
    release()
    ((again, _),) = executor.answers(other_call(), State())
    assert again.outputs[0].memory == y.memory  # the slot is used again


def test_answers_of_a_stream_are_followed_by_its_end(executor: Executor) -> None:
    Request.answers = [response(Tensor("y", np.ones(1, np.int8))) for _ in range(3)]
    Request.answers.append(response())  # how the stub represents the end
    state = State()
    answers = [answer for answer, _ in executor.answers(other_call(stream=True), state)]
    assert [(len(one.outputs), one.final) for one in answers] == [(1, False)] * 3 + [(0, True)]
    assert state.waits == 3
    assert not has_closed(Request.made[0]["parameters"][HANDLE_PARAMETER])
    state.handle.close()


def test_an_ended_stream_is_held_until_the_stub_releases_it(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go: list[Any] = []
    monkeypatch.setattr(stub, "hold_until_last_owner", let_go.append)
    Request.answers = [response()]
    list(executor.answers(other_call(stream=True), State()))
    assert len(let_go) == 1
    Request.answers = [response(error="no")]  # its iterator has not ended, and never will
    list(executor.answers(other_call(stream=True), State()))
    assert len(let_go) == 1


def test_an_error_ends_a_stream(executor: Executor) -> None:
    Request.answers = [response(error="out of range"), response()]
    ((answer, _),) = executor.answers(other_call(stream=True), State())
    assert (answer.final, answer.error, answer.code) == (True, "out of range", "INTERNAL")


def test_an_error_that_triton_would_swallow_is_sent_by_handle(executor: Executor) -> None:
    Request.answers = [response(Tensor("y", np.ones(1, np.int8)))]
    state = State()
    answers = executor.answers(other_call(stream=True), state)
    next(answers)
    write_failure(Request.made[0]["parameters"][HANDLE_PARAMETER], "it broke", "NOT_FOUND")
    ((last, _),) = answers
    assert (last.final, last.error, last.code) == (True, "it broke", "NOT_FOUND")
    state.handle.close()


def test_a_dropped_stream_sends_nothing_more(executor: Executor) -> None:
    Request.answers = [response(Tensor("y", np.ones(1, np.int8))) for _ in range(3)]
    state = State()
    answers = executor.answers(other_call(stream=True), state)
    next(answers)
    state.dropped = True
    ((last, _),) = answers
    assert (last.final, last.outputs) == (True, [])


def test_a_refused_chain_makes_no_request(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        calls_module, "refusal_of", lambda other_call, endpoint: f"{other_call.model} at {endpoint}"
    )
    ((answer, _),) = executor.answers(other_call(), State())
    assert (answer.error, answer.code) == ("other at ipc://nowhere", "UNAVAILABLE")
    assert Request.made == []


PREFIX = "Model other - Error when running inference: "


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("the model's own", "the model's own", "INTERNAL"),
        (f"{PREFIX}Failed for execute the inference request. Model 'other' is not ready.",
         "model other version 3 is not served here, or is not ready", "NOT_FOUND"),
        (f"{PREFIX}Request for unknown model: 'other' is not found",
         "model other version 3 is not served here, or is not ready", "NOT_FOUND"),
        (f"{PREFIX}Request for unknown model: 'other' has no available versions",
         "model other version 3 is not served here, or is not ready", "NOT_FOUND"),
        (f"{PREFIX}Request for unknown model: 'other' version 3 is not found.",
         "model other version 3 is not served here, or is not ready", "NOT_FOUND"),
        (f"{PREFIX}decoupled transaction policy", "model other is decoupled: it may answer many times. Call it with "
         "pytriton.stream(...)", "UNSUPPORTED"),
        (f"{PREFIX}Exceeds maximum queue size'", "Exceeds maximum queue size", "UNAVAILABLE"),
        (f"{PREFIX}unexpected shape for input 'x' for model 'other", "unexpected shape for input 'x' for model 'other",
         "INVALID_ARG"),
    ],
)  # fmt: skip
def test_errors_have_helpful_texts(text: str, said: str, code: str) -> None:
    got = describe_error(other_call(version=3), TritonError(text))
    assert got[1] == code
    assert got[0].rstrip("'") == said.rstrip("'")
