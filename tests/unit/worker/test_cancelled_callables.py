"""Callables that raise asyncio's CancelledError, which nobody asked them to: clients get an error, the worker lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes.fake_dispatcher import FakeDispatcher
from support.running import eventually

from pytriton import pb_utils
from pytriton.ipc import messages
from pytriton.ipc.control import ControlClient
from pytriton.ipc.lanes.gauge import Gauge
from pytriton.ipc.lanes.lane import Lane
from pytriton.ipc.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    Room,
)
from pytriton.worker.loop import Loop
from pytriton.worker.model import Model
from pytriton.worker.python_model.answer_loop import PythonStreamLoop
from pytriton.worker.python_model.batches import PythonModel
from pytriton.worker.streams.stream_loops import loop_of
from pytriton.worker.thread import WorkerThread
from pytriton.worker.worker_limits import Allowance

ANSWER = [{"y": np.ones(1, np.float32)}]
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    made = FakeDispatcher()
    yield made
    made.close()


async def cancelled() -> None:
    """Await a task that somebody cancels."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


class Calls:
    """Tells the first call, which is to be cancelled, from the next."""

    def __init__(self) -> None:
        self._first = True

    def is_first(self) -> bool:
        first, self._first = self._first, False
        return first


def function(calls: Calls) -> Any:
    def infer(requests: Any) -> Any:
        if calls.is_first():
            asyncio.run(cancelled())
        return ANSWER

    return infer


def coroutine(calls: Calls) -> Any:
    async def infer(requests: Any) -> Any:
        if calls.is_first():
            await cancelled()
        return ANSWER

    return infer


def itself(calls: Calls) -> Any:
    async def infer(requests: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if calls.is_first():
            task.cancel()  # without an await behind it
        return ANSWER

    return infer


def generator(calls: Calls) -> Any:
    def infer(requests: Any) -> Iterator[Any]:
        yield ANSWER
        if calls.is_first():
            asyncio.run(cancelled())

    return infer


def async_generator(calls: Calls) -> Any:
    async def infer(requests: Any) -> AsyncIterator[Any]:
        yield ANSWER
        if calls.is_first():
            await cancelled()

    return infer


def spec_of(*, decoupled: bool, **more: Any) -> messages.ModelSpec:
    config: dict[str, Any] = {
        "name": "m",
        "max_batch_size": 0,
        "input": [],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    return messages.ModelSpec("m", 1, config, messages.World("python"), **more)


@contextlib.contextmanager
def worker_of(
    infer: Any, spec: messages.ModelSpec, dispatcher: FakeDispatcher
) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield where its lanes connect, and whether it is alive."""
    folder = Path(dispatcher.rundir.path)
    Gauge.create_file(folder / "w1.gauge").close()
    told = messages.StartWorker("w1", 0, str(folder / "w1.sock"), str(folder / "w1.gauge"))
    worker = WorkerThread(told, spec, lambda: infer, dispatcher.rundir.control_endpoint)
    eventually(
        lambda: any(isinstance(one, messages.WorkerReady) for one in dispatcher.heard),
        lambda: str(dispatcher.heard),
        20,
    )
    try:
        yield told.lane_path, lambda: worker.alive
    finally:
        worker.end()
        worker.join(20)
        assert not worker.alive


@contextlib.contextmanager
def loop_with(
    model: Model, spec: messages.ModelSpec, dispatcher: FakeDispatcher
) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the same of a Triton Python model."""
    path = str(Path(dispatcher.rundir.path) / "w1.sock")
    gauge, descriptor = Gauge.create()
    os.close(descriptor)
    told, tell = os.pipe()
    with ControlClient(dispatcher.rundir.control_endpoint) as control, contextlib.closing(gauge):
        loop: Loop = loop_of(model)(model, Allowance(spec), gauge, control, "w1", path)
        thread = threading.Thread(target=loop.run, args=[told], daemon=True)
        thread.start()
        try:
            yield path, thread.is_alive
        finally:
            os.write(tell, b"\0")
            thread.join(20)
            os.close(tell)
            os.close(told)
            assert not thread.is_alive()
            if isinstance(loop, PythonStreamLoop) and loop._events is not None:
                assert loop._events_thread is not None
                loop._events.call_soon_threadsafe(loop._events.stop)
                loop._events_thread.join(20)


def ask(lane: Lane, number: int) -> BatchDone | BatchFailed:
    """Send a batch; return how it ends."""
    lane.send(Batch(number, [RequestRef([], "", [])]))
    while True:
        message = lane.receive()
        if isinstance(message, (BatchDone, BatchFailed)):
            assert message.id == number
            return message


def check(path: str, is_alive: Callable[[], bool], *, streams: bool) -> None:
    """The first batch fails with an error that says why; the second is answered."""
    with contextlib.closing(Lane.connect(path, peer_trusted=False)) as lane:
        lane.set_patience(20)
        if streams:
            assert isinstance(lane.receive(), Room)
        failed = ask(lane, 1)
        assert isinstance(failed, BatchFailed)
        assert "CancelledError" in failed.text
        assert isinstance(ask(lane, 2), BatchDone)
    assert is_alive()


@pytest.mark.parametrize("kind", [function, coroutine, itself])
def test_of_a_callable_that_answers_once(dispatcher: FakeDispatcher, kind: Any) -> None:
    spec = spec_of(decoupled=False)
    with worker_of(kind(Calls()), spec, dispatcher) as (path, is_alive):
        check(path, is_alive, streams=False)


@pytest.mark.parametrize("limit_s", [None, 60.0])
@pytest.mark.parametrize("kind", [generator, async_generator, coroutine, itself])
def test_of_a_callable_with_streams(
    dispatcher: FakeDispatcher, kind: Any, limit_s: float | None
) -> None:
    """Else half a stream would be taken for the whole one."""
    spec = spec_of(decoupled=True, execution_timeout_s=limit_s)
    with worker_of(kind(Calls()), spec, dispatcher) as (path, is_alive):
        check(path, is_alive, streams=True)


class Once:
    """A Triton Python model that returns its answers."""

    def __init__(self) -> None:
        self.calls = Calls()

    def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            asyncio.run(cancelled())
        return [answer() for _ in requests]


class OnceLater(Once):
    """The same with a coroutine."""

    async def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            await cancelled()
        return [answer() for _ in requests]


class Streams(Once):
    """A decoupled Triton Python model."""

    def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            asyncio.run(cancelled())
        for request in requests:
            request.get_response_sender().send(answer(), FINAL)


class StreamsLater(Once):
    """The same with a coroutine."""

    async def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            await cancelled()
        for request in requests:
            request.get_response_sender().send(answer(), FINAL)


def answer() -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones(1, np.float32))])


@pytest.mark.parametrize(
    ("made", "streams", "decoupled"),
    [
        (Once, False, False),
        (OnceLater, False, False),
        (Once, True, False),
        (OnceLater, True, False),
        (Streams, True, True),
        (StreamsLater, True, True),
    ],
)
def test_of_a_triton_python_model(
    dispatcher: FakeDispatcher, made: Any, streams: bool, decoupled: bool
) -> None:
    python_model = messages.PythonModel("{}", streams=streams)
    spec = spec_of(decoupled=decoupled, python_model=python_model)
    model = PythonModel(spec, made(), "m_0_0")
    with loop_with(model, spec, dispatcher) as (path, is_alive):
        check(path, is_alive, streams=streams)
