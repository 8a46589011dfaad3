"""Callables that raise something other than an `Exception`: the worker exits, from whichever thread or loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from fakes.serving_worker import python_model_worker, spec_of, worker_of
from support.real_daemon import eventually

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import Batch, RequestRef

#: asyncio re-raises KeyboardInterrupt as it does SystemExit.
ENDS = pytest.mark.parametrize("end", [SystemExit, GeneratorExit])
ANSWER = [{"y": np.ones(1, np.float32)}]
_BATCH = Batch(1, [RequestRef([], "", [])])


def function(end: type[BaseException]) -> Any:
    def infer(requests: Any) -> Any:
        raise end

    return infer


def coroutine(end: type[BaseException]) -> Any:
    async def infer(requests: Any) -> Any:
        await asyncio.sleep(0)
        raise end

    return infer


def generator(end: type[BaseException]) -> Any:
    def infer(requests: Any) -> Iterator[Any]:
        yield ANSWER
        raise end

    return infer


def async_generator(end: type[BaseException]) -> Any:
    async def infer(requests: Any) -> AsyncIterator[Any]:
        yield ANSWER
        raise end

    return infer


def _read_to_end(lane: Lane) -> None:
    while True:
        lane.receive()


def _ends(kind: Any, dispatcher: FakeDispatcher, end: type[BaseException], **spec: Any) -> None:
    with worker_of(kind(end), spec_of(**spec), dispatcher) as worker:
        with contextlib.closing(worker.proxy(streams=spec["decoupled"])) as lane:
            lane.send(_BATCH)
            with pytest.raises(LaneClosed):
                _read_to_end(lane)
        eventually(lambda: not worker.is_alive(), "it ends")


@ENDS
@pytest.mark.parametrize("kind", [function, coroutine])
def test_a_callable_that_answers_once(
    dispatcher: FakeDispatcher, kind: Any, end: type[BaseException]
) -> None:
    _ends(kind, dispatcher, end, decoupled=False)


@ENDS
@pytest.mark.parametrize("limit_s", [None, 60.0])
@pytest.mark.parametrize("kind", [function, coroutine, generator, async_generator])
def test_a_streaming_callable(
    dispatcher: FakeDispatcher, kind: Any, end: type[BaseException], limit_s: float | None
) -> None:
    _ends(kind, dispatcher, end, decoupled=True, execution_timeout_s=limit_s)


class Now:
    """A Triton Python model."""

    def __init__(self, end: type[BaseException]) -> None:
        self.end = end

    def execute(self, requests: Any) -> Any:
        raise self.end


class Later(Now):
    """The same with a coroutine."""

    async def execute(self, requests: Any) -> Any:
        await asyncio.sleep(0)
        raise self.end


class InATask(Now):
    """The same in another task, for which its coroutine waits."""

    async def execute(self, requests: Any) -> Any:
        await asyncio.ensure_future(self._raise())

    async def _raise(self) -> None:
        raise self.end


@ENDS
@pytest.mark.parametrize("made", [Now, Later, InATask])
@pytest.mark.parametrize(("streams", "decoupled"), [(False, False), (True, False), (True, True)])
def test_a_triton_python_model(
    dispatcher: FakeDispatcher, made: Any, end: type[BaseException], streams: bool, decoupled: bool
) -> None:
    served = python_model_worker(made(end), dispatcher, streams=streams, decoupled=decoupled)
    with (
        served as worker,
        contextlib.closing(worker.proxy(streams=streams)) as lane,
    ):
        lane.send(_BATCH)
        eventually(lambda: not worker.is_alive(), "it ends")
    assert [type(error) for error in worker.raised] == [end]
