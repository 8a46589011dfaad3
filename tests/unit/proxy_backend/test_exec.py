"""One call to another model through the stub: its errors in words of ours, its answers where the worker reads them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes.triton.fake_stub import InferenceRequest, InferenceResponse, Tensor, TritonError

from pytriton._protocol.calls.call_chain import Link, decode_chain
from pytriton._protocol.calls.call_connection import CallConnection
from pytriton._protocol.calls.call_messages import Call
from pytriton._protocol.calls.call_slots import Slots
from pytriton._protocol.lanes import tensors
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.proxy_backend import exec as exec_module
from pytriton.proxy_backend import stub
from pytriton.proxy_backend.chains import Handle, has_closed, write_failure
from pytriton.proxy_backend.exec import Executor, explained
from pytriton.proxy_backend.translate import Translator


def call(*, stream: bool = False, version: int = -1) -> Call:
    return Call(
        7, "other", version, [], ["y"], '{"a": 1}', "id", 5, 1, 9, stream, [Link("m", "w1")]
    )


def response(*tensors: Tensor, error: str | None = None) -> InferenceResponse:
    return InferenceResponse(tensors, TritonError(error) if error else None)


class Request:
    """What was asked of the stub, and what the model answers."""

    made: list[dict[str, Any]]
    answers: list[InferenceResponse]

    @classmethod
    def answer(cls, asked: dict[str, Any]) -> Any:
        decoupled = asked.pop("decoupled")
        cls.made.append(asked)
        return iter(cls.answers) if decoupled else cls.answers[0]


class State:
    """What is known of a call under way."""

    def __init__(self) -> None:
        self.dropped = False
        self.handle = Handle()
        self.waits = 0

    def wait_for_room(self) -> None:
        self.waits += 1


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CallConnection, CallConnection]]:
    """The connection with a worker: the proxy's end and the worker's."""
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


def test_the_request_is_as_the_worker_asked_for_it(executor: Executor) -> None:
    Request.answers = [response()]
    state = State()
    ((answer, _),) = executor.answers(call(), state)
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


def test_outputs_are_where_the_worker_can_read_them_until_it_has(
    executor: Executor, ends: tuple[CallConnection, CallConnection]
) -> None:
    numbers = np.array([1.5, 2.5], np.float32)
    Request.answers = [
        response(
            Tensor("y", numbers), Tensor("s", np.array([b"a", b"\0"], object)),
            Tensor("e", np.zeros((0, 2), np.int8)),
        )
    ]  # fmt: skip
    ((answer, release),) = executor.answers(call(), State())
    ends[0].send(answer)
    assert ends[1].receive() == answer
    y, s, e = answer.outputs
    assert tensors.read(ends[1], y, np.dtype(np.float32)).tolist() == [1.5, 2.5]
    assert tensors.decode_bytes(tensors.read_raw(ends[1], s), s.shape).tolist() == [b"a", b"\0"]
    assert (e.shape, e.nbytes) == ([0, 2], 0)
    release()
    release()
    ((again, _),) = executor.answers(call(), State())
    assert again.outputs[0].memory == y.memory  # the slot is used again


def test_the_answers_of_a_stream_come_one_by_one_and_then_its_end(executor: Executor) -> None:
    Request.answers = [response(Tensor("y", np.ones(1, np.int8))) for _ in range(3)]
    Request.answers.append(response())  # how the stub gives the end
    state = State()
    answers = [answer for answer, _ in executor.answers(call(stream=True), state)]
    assert [(len(one.outputs), one.final) for one in answers] == [(1, False)] * 3 + [(0, True)]
    assert state.waits == 3
    assert not has_closed(Request.made[0]["parameters"][HANDLE_PARAMETER])
    state.handle.close()


def test_a_stream_that_has_ended_is_held_until_the_stub_has_let_go(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go: list[Any] = []
    monkeypatch.setattr(stub, "let_go_last", let_go.append)
    Request.answers = [response()]
    list(executor.answers(call(stream=True), State()))
    assert len(let_go) == 1
    Request.answers = [response(error="no")]  # its iterator has not ended, and never will
    list(executor.answers(call(stream=True), State()))
    assert len(let_go) == 1


def test_an_error_ends_a_stream(executor: Executor) -> None:
    Request.answers = [response(error="out of range"), response()]
    ((answer, _),) = executor.answers(call(stream=True), State())
    assert (answer.final, answer.error, answer.code) == (True, "out of range", "INTERNAL")


def test_an_error_that_triton_would_swallow_comes_by_the_handle(executor: Executor) -> None:
    Request.answers = [response(Tensor("y", np.ones(1, np.int8)))]
    state = State()
    answers = executor.answers(call(stream=True), state)
    next(answers)
    write_failure(Request.made[0]["parameters"][HANDLE_PARAMETER], "it broke", "NOT_FOUND")
    ((last, _),) = answers
    assert (last.final, last.error, last.code) == (True, "it broke", "NOT_FOUND")
    state.handle.close()


def test_of_a_stream_that_was_dropped_nothing_more_is_sent(executor: Executor) -> None:
    Request.answers = [response(Tensor("y", np.ones(1, np.int8))) for _ in range(3)]
    state = State()
    answers = executor.answers(call(stream=True), state)
    next(answers)
    state.dropped = True
    ((last, _),) = answers
    assert (last.final, last.outputs) == (True, [])


def test_a_chain_that_must_not_go_on_makes_no_request(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        exec_module, "refused", lambda call, endpoint: f"{call.model} at {endpoint}"
    )
    ((answer, _),) = executor.answers(call(), State())
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
def test_errors_in_words_that_help(text: str, said: str, code: str) -> None:
    got = explained(call(version=3), TritonError(text))
    assert got[1] == code
    assert got[0].rstrip("'") == said.rstrip("'")
