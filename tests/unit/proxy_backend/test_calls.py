"""The calls that a proxy makes for its worker: the test is the worker, and the model that is called."""

from __future__ import annotations

import queue
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.triton.fake_stub import Logger
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.calls.call_chain import Link
from pytriton._protocol.calls.call_connection import CallConnection, socket_path
from pytriton._protocol.calls.call_messages import (
    MOVED,
    Answer,
    AnswerRead,
    Call,
    CallDropped,
    Retiring,
)
from pytriton._protocol.lanes.lane import LaneClosed, LaneSilent
from pytriton.proxy_backend import calls as calls_module
from pytriton.proxy_backend.calls import ProxyCalls
from pytriton.proxy_backend.translate import Translator


def call(number: int, *chain: Link) -> Call:
    return Call(
        number, "other", -1, [], [], "{}", "", 0, 0, 0, False, list(chain or (Link("m", "w1"),))
    )


class Model:
    """Answers calls as the test says: `answers` are those of the next call, which waits for them."""

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

    class Executor:
        answers = staticmethod(model)

    monkeypatch.setattr(made, "executor", lambda connection, slots: Executor())
    yield made
    for _ in range(30):
        model.answers.put([])
    monkeypatch.setattr(calls_module, "_END_S", 0.0)
    made.end()


@pytest.fixture
def connect(calls: ProxyCalls) -> Iterator[Callable[[], CallConnection]]:
    """Have the proxy serve a worker's calls; return the worker's end."""
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


def test_calls_are_made_side_by_side_and_answered_in_any_order(
    connect: Callable[[], CallConnection], model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    eventually(lambda: model.begun == [1], "it is made")
    worker.send(call(2))
    eventually(lambda: model.begun == [1, 2], "so is the other")
    model.answers.put([Answer(1, [], True)])  # the first who waits has the first call
    assert worker.receive() == Answer(1, [], True)
    model.answers.put([Answer(2, [], False), Answer(2, [], True)])
    assert [worker.receive(), worker.receive()] == [Answer(2, [], False), Answer(2, [], True)]
    assert model.released == []
    for number in (1, 2, 2):
        worker.send(AnswerRead(number))
    eventually(lambda: model.released == [1, 2, 2], "what was read is given back")


def test_a_stream_is_no_further_ahead_than_what_may_be_unread(
    connect: Callable[[], CallConnection], model: Model
) -> None:
    worker = connect()
    worker.send(call(1))
    model.answers.put([Answer(1, [], number == 9) for number in range(10)])
    for _ in range(8):
        worker.receive()
    worker.set_patience(0.05)
    with pytest.raises(LaneSilent):
        worker.receive()
    worker.set_patience(None)
    worker.send(AnswerRead(1))
    assert worker.receive() == Answer(1, [], False)
    worker.send(AnswerRead(1))
    assert worker.receive() == Answer(1, [], True)


def test_a_call_that_is_dropped_ends_at_once(
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
    worker.send(CallDropped(1))  # it has ended: nothing more comes of it
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

    monkeypatch.setattr(calls, "executor", lambda connection, slots: Failing())
    worker = connect()
    worker.send(call(1))
    assert worker.receive() == Answer(1, [], True, "ValueError: no such thing", "INTERNAL")


def test_a_proxy_that_goes_elsewhere_answers_what_is_under_way_and_no_new_calls(
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


def test_a_proxy_that_was_never_asked_just_goes(
    connect: Callable[[], CallConnection], calls: ProxyCalls
) -> None:
    worker = connect()
    calls.retire()
    with pytest.raises(LaneClosed):
        worker.send(call(1))


def test_a_worker_without_a_place_for_calls_is_about_to_end(
    calls: ProxyCalls, tmp_path: Path
) -> None:
    calls.serve(str(tmp_path / "gone.sock"))
    calls.retire()


def test_of_many_calls_those_of_a_chain_are_not_kept_waiting(
    connect: Callable[[], CallConnection], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they would wait for may wait for them."""
    monkeypatch.setattr(calls_module, "_AT_ONCE", 2)
    worker = connect()
    for number in (1, 2, 3):
        worker.send(call(number))
    eventually(lambda: sorted(model.begun) == [1, 2], "two are made, the third one waits")
    worker.send(call(4, Link("a", "w0"), Link("m", "w1")))
    refused = worker.receive()
    assert isinstance(refused, Answer)
    assert (refused.id, refused.code) == (4, "UNAVAILABLE")
    assert "2 calls are in flight already" in (refused.error or "")
    model.answers.put([])
    eventually(lambda: sorted(model.begun) == [1, 2, 3], "now it is made")


def test_deadlocked_calls_fail_with_a_reason(
    connect: Callable[[], CallConnection], calls: ProxyCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def stuck(worker: str, models: list[str]) -> messages.StuckCalls:
        asked.append((worker, models))
        return messages.StuckCalls(models, "they wait for each other")

    monkeypatch.setattr(calls, "stuck", stuck)
    monkeypatch.setattr(calls_module, "_TICK_S", 0.01)
    worker = connect()
    worker.send(call(1))
    assert worker.receive() == Answer(1, [], True, "they wait for each other", "UNAVAILABLE")
    assert asked == [("w1", ["other"])]


@pytest.mark.parametrize("nonsense", [AnswerRead(1), Answer(1, [], True), Retiring()])
def test_a_worker_that_breaks_the_protocol_is_left(
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
