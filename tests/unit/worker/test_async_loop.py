"""Workers with asynchronous callables that answer once: their batches overlap, one for each lane."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from fakes.serving_worker import ServingWorker, spec_of, worker_of
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import Batch, BatchDone, BatchFailed, RequestRef
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.decorators import sample
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.worker import async_loop, callables, event_loops
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import CallLog

FP32 = np.dtype(np.float32)
SPEC = spec_of(decoupled=False)


def batch(number: int, *ids: str, alone: bool = False) -> Batch:
    return Batch(
        number, [RequestRef([], "", [], request_id=one) for one in ids or ("",)], alone=alone
    )


def answer(value: float) -> Any:
    return {"y": np.array([value], np.float32)}


def received(lane: Lane) -> Any:
    """Return the value that answers a lane's only request, or its error."""
    got = lane.receive()
    if isinstance(got, BatchFailed):
        return got.text
    assert isinstance(got, BatchDone)
    (response,) = got.responses
    if response.error is not None:
        return response.error
    return float(tensors.read(lane, response.outputs[0], FP32)[0])


class Together:
    """A callable whose calls wait until this many run at once; records the highest number."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.now = self.most = 0
        self.enough = asyncio.Event()

    async def __call__(self, requests: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.wanted:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 20)
        self.now -= 1
        return [answer(len(request.request_id)) for request in requests]


@contextlib.contextmanager
def served(
    infer: Any, count: int, dispatcher: FakeDispatcher, spec: messages.ModelSpec = SPEC
) -> Iterator[tuple[ServingWorker, list[Lane]]]:
    """Serve a callable; yield its worker, and this many lanes to it."""
    with worker_of(infer, spec, dispatcher) as worker, lanes_to(worker, count) as lanes:
        yield worker, lanes


@contextlib.contextmanager
def lanes_to(worker: ServingWorker, count: int) -> Iterator[list[Lane]]:
    with ExitStack() as stack:
        made = [worker.proxy(streams=False) for _ in range(count)]
        for lane in made:
            stack.enter_context(contextlib.closing(lane))
        yield made


def test_the_batches_of_all_lanes_overlap(dispatcher: FakeDispatcher) -> None:
    infer = Together(8)
    with served(infer, 8, dispatcher) as (_, lanes):
        for place, lane in enumerate(lanes):
            lane.send(batch(1, "x" * (place + 1)))
        assert [received(lane) for lane in lanes] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert infer.most == 8


class SetUp:
    """A class whose instances start a task when they are created, as those with a session do."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ticks = 0
        self.task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)

    async def __call__(self, requests: Any) -> Any:
        before = self.ticks
        while self.ticks < before + 3:
            await asyncio.sleep(0.001)
        return [answer(asyncio.get_running_loop() is self.loop)]


async def make() -> SetUp:
    await asyncio.sleep(0)
    return SetUp()


@pytest.mark.parametrize("made", [SetUp, make, lambda: make()])
@pytest.mark.parametrize("warm", [False, True])
def test_setup_warmup_and_calls_share_a_loop(
    dispatcher: FakeDispatcher, made: Any, warm: bool
) -> None:
    warmups = [messages.Warmup("w", 1, 1, [])] if warm else []
    spec = spec_of(decoupled=False, factory=True, warmups=warmups)
    loaded: list[Any] = []

    def load() -> Any:
        loaded.append(callables.create_callable(made, spec))
        return loaded[0]

    with worker_of(load, spec, dispatcher, loads=True) as worker, lanes_to(worker, 1) as lanes:
        lanes[0].send(batch(1))
        assert received(lanes[0]) == 1.0
    assert loaded[0].task.cancelled()  # at the end, and waited for


@pytest.mark.parametrize("said", [True, False])
def test_a_check_may_be_asynchronous(said: bool) -> None:
    async def check(infer: Any) -> bool:
        return said and (await infer([1]))[0]["y"][0] == 1

    async def infer(requests: Any) -> Any:
        return [answer(1)]

    try:
        if said:
            callables.run_check(check, SPEC, infer)
        else:
            with pytest.raises(callables.LoadError, match="check= returned False"):
                callables.run_check(check, SPEC, infer)
    finally:
        event_loops.close()


def test_a_plain_factory_may_run_its_own_loop() -> None:
    async def fetched() -> str:
        return "weights"

    def factory() -> Any:
        weights = asyncio.run(fetched())
        return lambda requests: weights

    assert (
        callables.create_callable(factory, spec_of(decoupled=False, factory=True))([]) == "weights"
    )


class Kept:
    """Records which batches run when one starts; each continues when the test says so."""

    def __init__(self) -> None:
        self.beside: dict[str, list[str]] = {}
        self.now: list[str] = []
        self.may_end: dict[str, threading.Event] = {}
        self.at_end: Callable[[], object] = lambda: None

    async def __call__(self, requests: Any) -> Any:
        name = requests[0].request_id
        self.may_end[name] = threading.Event()
        self.beside[name] = [*self.now]
        self.now.append(name)
        while not self.may_end[name].is_set():
            await asyncio.sleep(0.001)
        for _ in range(20):  # iterations, in each of which the loop polls all lanes
            await asyncio.sleep(0)
        self.at_end()
        self.now.remove(name)
        return [answer(1)]

    def end(self, name: str) -> None:
        eventually(lambda: name in self.may_end, lambda: f"{name} does not begin: {self.beside}")
        self.may_end[name].set()


def test_batches_lost_with_a_worker_are_retried_alone(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_loop, "_APART_S", 3600.0)
    infer = Kept()
    read: list[list[bool]] = []
    with served(infer, 4, dispatcher) as (_, lanes):
        lanes[0].send(batch(1, "a"))
        eventually(lambda: infer.now == ["a"], lambda: str(infer.beside))
        for place, (name, alone) in enumerate([("b", True), ("c", True), ("d", False)], start=1):
            lanes[place].send(batch(1, name, alone=alone))
        # An unread batch counts as not started.
        infer.at_end = lambda: read.append([lane.all_read() for lane in lanes])
        for name in "abcd":
            infer.end(name)
        assert [received(lane) for lane in lanes] == [1.0] * 4
    assert infer.beside == {"a": [], "b": [], "c": [], "d": []}
    assert read[:2] == [[True, False, False, False], [True, True, False, False]]


def test_individual_retries_delay_others_only_briefly(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_loop, "_APART_S", 0.01)
    infer = Kept()
    with served(infer, 4, dispatcher) as (_, lanes):
        for place, name in enumerate("abcd"):
            lanes[place].send(batch(1, name, alone=name != "d"))
        eventually(lambda: len(infer.now) == 4, lambda: str(infer.beside))
        for name in "abcd":
            infer.end(name)
        assert [received(lane) for lane in lanes] == [1.0] * 4


def test_the_worker_exits_when_its_batches_have_been_answered(dispatcher: FakeDispatcher) -> None:
    infer = Kept()
    with served(infer, 2, dispatcher) as (worker, lanes):
        lanes[0].send(batch(1, "a"))
        eventually(lambda: infer.now == ["a"], lambda: str(infer.beside))
        worker.end()
        with pytest.raises(LaneClosed):  # no batch is in flight on it
            lanes[1].receive()
        infer.end("a")
        assert received(lanes[0]) == 1.0
        with pytest.raises(LaneClosed):
            lanes[0].receive()


def test_an_overdue_batch_fails_alone(dispatcher: FakeDispatcher) -> None:
    cancelled = []

    async def infer(requests: Any) -> Any:
        if requests[0].request_id == "slow":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append("slow")
                raise
        return [answer(1)]

    spec = spec_of(decoupled=False, execution_timeout_s=0.05)
    with served(infer, 2, dispatcher, spec) as (_, lanes):
        lanes[0].send(batch(1, "slow"))
        assert "still running after 0.05 s" in received(lanes[0])
        lanes[1].send(batch(1, "quick"))
        lanes[0].send(batch(2, "quick"))
        assert (received(lanes[0]), received(lanes[1])) == (1.0, 1.0)
    assert cancelled == ["slow"]


def test_a_call_of_a_disconnected_proxy_is_cancelled(dispatcher: FakeDispatcher) -> None:
    cancelled = threading.Event()

    async def infer(requests: Any) -> Any:
        if requests[0].request_id != "left":
            return [answer(1)]
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with worker_of(infer, SPEC, dispatcher) as worker:
        with contextlib.closing(worker.proxy(streams=False)) as lane:
            lane.send(batch(1, "left"))
            eventually(lane.all_read, "it is taken")
        assert cancelled.wait(20)
        with lanes_to(worker, 1) as lanes:
            lanes[0].send(batch(1, "right"))
            assert received(lanes[0]) == 1.0


async def raises(requests: Any) -> Any:
    if len(requests) > 1 or requests[0].request_id == "bad":
        raise KeyError("no such row")
    return [answer(1)]


async def cancels(requests: Any) -> Any:
    raise asyncio.CancelledError


async def yields_once(requests: Any) -> AsyncIterator[Any]:
    yield [answer(3)]


async def yields_twice(requests: Any) -> AsyncIterator[Any]:
    yield [answer(3)]
    yield [answer(3)]


@sample
async def decorated(request: Any = None) -> Any:
    return answer(4)


@pytest.mark.parametrize(
    ("infer", "text"),
    [
        (raises, "KeyError: 'no such row'"), (cancels, "CancelledError"), (yields_once, 3.0),
        (yields_twice, "yielded 2 times"), (decorated, 4.0),
    ],
)  # fmt: skip
def test_outcomes_of_a_call(dispatcher: FakeDispatcher, infer: Any, text: Any) -> None:
    with served(infer, 1, dispatcher) as (_, lanes):
        lanes[0].send(batch(1, "bad"))
        got = received(lanes[0])
        assert got == text if isinstance(text, float) else text in got


def test_a_batch_that_raises_is_retried_request_by_request(dispatcher: FakeDispatcher) -> None:
    with served(raises, 1, dispatcher) as (_, lanes):
        lanes[0].send(batch(1, "good", "bad", "fine"))
        got = lanes[0].receive()
        assert isinstance(got, BatchDone)
        assert [one.error for one in got.responses] == [
            None, "KeyError: 'no such row' [request id: bad]", None,
        ]  # fmt: skip


def test_an_unrecoverable_error_ends_the_worker(dispatcher: FakeDispatcher) -> None:
    async def infer(requests: Any) -> Any:
        raise PyTritonUnrecoverableError("the device is gone")

    with served(infer, 1, dispatcher) as (worker, lanes):
        lanes[0].send(batch(1))
        assert "the device is gone" in received(lanes[0])
        eventually(lambda: not worker.is_alive(), "it ends")
    eventually(
        lambda: any(isinstance(one, messages.WorkerUnrecoverable) for one in dispatcher.heard),
        "it is reported",
    )


def test_the_stats_page_announces_overlapping_batches_from_the_start() -> None:
    stats, descriptor = WorkerStatsPage.create()
    with contextlib.closing(stats), contextlib.closing(WorkerStatsPage(descriptor)) as worker:
        assert not stats.read().overlaps
        worker.overlap()
        assert stats.read().overlaps
        first, second = worker.begin(1), worker.begin(1)
        worker.end(first)
        worker.end(second)
        assert stats.counts().busy_ns < stats.counts().call_ns


def test_a_partial_of_a_coroutine_function_is_a_coroutine_function(
    dispatcher: FakeDispatcher,
) -> None:
    async def infer(value: float, requests: Any) -> Any:
        return [answer(value)]

    assert WorkerModel(SPEC, functools.partial(infer, 2.0), CallLog()).asynchronous
    with served(functools.partial(infer, 2.0), 1, dispatcher) as (_, lanes):
        lanes[0].send(batch(1))
        assert received(lanes[0]) == 2.0
