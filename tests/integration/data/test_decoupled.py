"""Decoupled models: any number of responses to a request, sent as they are produced."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_pool import DaemonPool
from support.models.inference import Array
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.daemon import Model
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

N = [Tensor(name="n", dtype=np.int32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.int32, shape=(1,))]
Serve = Callable[..., Model]


@pytest.fixture(scope="module", params=["python", "native"])
def daemon(daemon_pool: DaemonPool, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A daemon whose decoupled models use this proxy."""
    # Of Triton's own stubs, shared memory stays until the daemon's end.
    starting = RunningDaemon.start if request.param == "python" else daemon_pool.lend
    with starting(proxy=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def grpc(daemon: RunningDaemon) -> str:
    """The daemon's address. It never changes, and asking the daemon takes as long as a stream."""
    return daemon.grpc


@pytest.fixture(scope="module")
def serve(daemon: RunningDaemon) -> Serve:
    """Register a model, which stays until the daemon ends: a Python proxy takes a second to end."""
    numbers = itertools.count()

    def register(callable_: Any, *, max_batch_size: int = 8, **options: Any) -> Model:
        config = ModelConfig(
            decoupled=True, batching=max_batch_size > 0, max_batch_size=max(1, max_batch_size)
        )
        name = f"stream{next(numbers)}"
        return daemon.client.register(callable_, name, N, Y, config, progress=False, **options)

    return register


@pytest.fixture(scope="module")
def counting(serve: Serve) -> Callable[[int], Model]:
    """Models that count, by their max_batch_size."""
    return functools.cache(lambda max_batch_size: serve(_count, max_batch_size=max_batch_size))


def _count(requests: Any) -> Iterator[list[Any]]:
    """Respond to n with 0, 1, … n-1, separately for each request of a batch."""
    wanted = [int(request["n"].max()) for request in requests]
    for i in range(max(wanted)):
        yield [{"y": np.full_like(r["n"], i)} if i < n else None for r, n in zip(requests, wanted)]


def _ask(grpc: str, model: Model, n: int, *, batching: bool = True) -> list[int]:
    with Streaming(grpc, model.name, {"n": _number(n, batching=batching)}) as stream:
        return [int(answer["y"].item()) for answer in stream]


def _number(n: int, *, batching: bool = True) -> Array:
    return np.array([[n]] if batching else [n], np.int32)


@pytest.mark.parametrize("n", [0, 1, 2, 500])
@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_responses_arrive_in_order(
    grpc: str, counting: Callable[[int], Model], n: int, max_batch_size: int
) -> None:
    model = counting(max_batch_size)
    for _ in range(2):
        assert _ask(grpc, model, n, batching=max_batch_size > 0) == list(range(n))


def test_many_clients_each_get_their_own_responses(grpc: str, serve: Serve) -> None:
    model = serve(_count, instances=2)
    with ThreadPoolExecutor(8) as threads:
        wanted = [3 * i for i in range(24)]
        answers = list(threads.map(lambda n: _ask(grpc, model, n), wanted))
    assert answers == [list(range(n)) for n in wanted]


def test_generate_stream(daemon: RunningDaemon, counting: Callable[[int], Model]) -> None:
    model = counting(0)
    url = f"http://{daemon.http}/v2/models/{model.name}/generate_stream"
    asked = urllib.request.Request(url, json.dumps({"n": [4]}).encode(), method="POST")
    with urllib.request.urlopen(asked, timeout=60) as response:
        events = [line.decode().strip() for line in response if line.strip()]
    assert [json.loads(event[len("data: ") :])["y"] for event in events] == [0, 1, 2, 3]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_waits_while_its_responses_fill_the_shared_memory(
    daemon: RunningDaemon, grpc: str, asynchronous: bool
) -> None:
    """Each part has 3 MiB: after three parts the worker waits until the proxy has returned their memory."""

    def made(requests: Any) -> Iterator[list[Any]]:
        for i in range(int(requests[0]["n"].item())):
            yield [{"y": np.full(3 << 18, i, np.int32)}]

    async def made_later(requests: Any) -> AsyncIterator[list[Any]]:
        for results in made(requests):
            yield results

    wide = [Tensor(name="y", dtype=np.int32, shape=(-1,))]
    config = ModelConfig(decoupled=True, batching=False)
    infer, name = (made_later, "wide_later") if asynchronous else (made, "wide")
    model = daemon.client.register(infer, name, N, wide, config, progress=False)
    with Streaming(grpc, model.name, {"n": _number(10, batching=False)}) as stream:
        answers = [answer["y"] for answer in stream]
    assert [(int(y.min()), int(y.max()), y.nbytes) for y in answers] == [
        (i, i, 3 << 20) for i in range(10)
    ]


def test_batch_decorator_on_a_generator(grpc: str, serve: Serve) -> None:
    @batch
    def infer(n: Array) -> Iterator[dict[str, Array]]:
        for i in range(3):
            yield {"y": n * i}

    assert _ask(grpc, serve(infer), 7) == [0, 7, 14]


def test_a_function_responds_once(grpc: str, serve: Serve) -> None:
    async def later(requests: Any) -> Any:
        await asyncio.sleep(0)
        return [{"y": request["n"]} for request in requests]

    def now(requests: Any) -> Any:
        return [{"y": request["n"]} for request in requests]

    assert _ask(grpc, serve(now), 5) == [5]
    assert _ask(grpc, serve(later), 6) == [6]


def test_streams_of_an_asynchronous_generator_overlap(grpc: str, serve: Serve) -> None:
    """Each waits until all the others have begun."""

    class Meet:
        def __init__(self) -> None:
            self.here: set[int] = set()

        async def __call__(self, requests: Any) -> AsyncIterator[list[Any]]:
            (request,) = requests
            self.here.add(int(request["n"].item()))
            while len(self.here) < 5:
                yield [None]
                await asyncio.sleep(0.005)
            yield [{"y": request["n"]}]

    model = serve(Meet, max_batch_size=0)
    with ThreadPoolExecutor(5) as threads:
        answers = threads.map(lambda n: _ask(grpc, model, n, batching=False), range(5))
        assert list(answers) == [[n] for n in range(5)]


# ── trouble ──────────────────────────────────────────────────────────────────────────────────────


def _fails_at(step: int) -> Any:
    def infer(requests: Any) -> Iterator[list[Any]]:
        for i in range(3):
            if i == step:
                raise ValueError(f"step {step}")
            yield [{"y": request["n"]} for request in requests]

    return infer


@pytest.mark.parametrize("step", [0, 2])
def test_an_exception_ends_the_stream_only(
    daemon: RunningDaemon, grpc: str, serve: Serve, step: int
) -> None:
    model = serve(_fails_at(step))
    for _ in range(2):
        with Streaming(grpc, model.name, {"n": _number(1)}) as stream:
            answers = iter(stream)
            for _ in range(step):
                assert next(answers)["y"].item() == 1
            with pytest.raises(InferenceServerException, match=f"ValueError: step {step}"):
                next(answers)
    assert daemon.client.model(model.name).instances[0].restarts == 0


def test_wrong_results_are_refused(grpc: str, serve: Serve) -> None:
    def infer(requests: Any) -> Iterator[list[Any]]:
        yield [{"z": request["n"]} for request in requests]

    with pytest.raises(InferenceServerException, match="returned no output `y`"):
        _ask(grpc, serve(infer), 1)


def _endless(folder: Path) -> Any:
    def infer(requests: Any) -> Iterator[list[Any]]:
        try:
            while True:
                (folder / "running").touch()
                time.sleep(0.01)
                yield [{"y": request["n"]} for request in requests]
        finally:
            (folder / "closed").touch()

    return infer


def test_a_generator_is_closed_when_its_client_disconnects(
    grpc: str, serve: Serve, tmp_path: Path
) -> None:
    model = serve(_endless(tmp_path))
    with Streaming(grpc, model.name, {"n": _number(3)}) as stream:
        assert next(iter(stream))["y"].item() == 3
        assert not (tmp_path / "closed").exists()
        stream.cancel()
        eventually((tmp_path / "closed").exists, "the generator is closed")


def test_a_callable_can_check_whether_its_client_has_cancelled(
    grpc: str, serve: Serve, tmp_path: Path
) -> None:
    """Also before it has responded."""

    def infer(requests: Any) -> Any:
        (tmp_path / "running").touch()
        while not requests[0].is_cancelled():
            time.sleep(0.01)
        (tmp_path / "told").touch()
        return [{"y": requests[0]["n"]}]

    model = serve(infer)
    with Streaming(grpc, model.name, {"n": _number(3)}) as stream:
        eventually((tmp_path / "running").exists, "it runs")
        stream.cancel()
        eventually((tmp_path / "told").exists, "it is told")


def test_an_asynchronous_generator_is_cancelled_while_it_waits(
    grpc: str, serve: Serve, tmp_path: Path
) -> None:
    async def infer(requests: Any) -> AsyncIterator[list[Any]]:
        try:
            yield [{"y": requests[0]["n"]}]
            await asyncio.Event().wait()
        finally:
            (tmp_path / "closed").touch()

    model = serve(infer)
    with Streaming(grpc, model.name, {"n": _number(3)}) as stream:
        assert next(iter(stream))["y"].item() == 3
        stream.cancel()
        eventually((tmp_path / "closed").exists, "the generator is closed")


def test_a_stream_fails_with_its_worker(grpc: str, serve: Serve, tmp_path: Path) -> None:
    """A partly answered request is not retried; the next request is served."""

    def infer(requests: Any) -> Iterator[list[Any]]:
        yield [{"y": request["n"]} for request in requests]
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    model = serve(infer)
    with Streaming(grpc, model.name, {"n": _number(3)}) as stream:
        answers = iter(stream)
        assert next(answers)["y"].item() == 3
        with pytest.raises(InferenceServerException, match=r"SIGKILL.* while it ran this batch"):
            next(answers)
    model.wait_ready()  # after 5 s without a worker, it would refuse
    assert _ask(grpc, model, 4) == [4]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stream_over_its_execution_timeout_fails(
    daemon: RunningDaemon, grpc: str, serve: Serve, asynchronous: bool
) -> None:
    def endless(requests: Any) -> Iterator[list[Any]]:
        while True:
            time.sleep(0.01)
            yield [{"y": request["n"]} for request in requests]

    async def waits(requests: Any) -> AsyncIterator[list[Any]]:
        yield [{"y": request["n"]} for request in requests]
        await asyncio.Event().wait()

    model = serve(waits if asynchronous else endless, execution_timeout_s=2.0)
    got: list[float] = []
    with (
        Streaming(grpc, model.name, {"n": _number(3)}) as stream,
        pytest.raises(InferenceServerException, match="execution_timeout_s"),
    ):
        got.extend(answer["y"].item() for answer in stream)
    assert {*got} <= {3}  # on a busy machine there may be none within the time
    restarts = 0 if asynchronous else 1
    eventually(
        lambda: daemon.client.model(model.name).instances[0].restarts == restarts, "as it should"
    )


def test_a_stream_finishes_before_its_model_is_unregistered(
    daemon: RunningDaemon, grpc: str, serve: Serve, tmp_path: Path
) -> None:
    def infer(requests: Any) -> Iterator[list[Any]]:
        for _ in range(50):
            time.sleep(0.01)
            yield [{"y": request["n"]} for request in requests]

    model = daemon.client.register(
        infer, "leaving", N, Y, ModelConfig(decoupled=True), progress=False
    )
    with Streaming(grpc, model.name, {"n": _number(3)}) as stream:
        answers = iter(stream)
        next(answers)
        with ThreadPoolExecutor(1) as threads:
            gone = threads.submit(model.unregister)
            assert len(list(answers)) == 49
            # Before the client gives up its stream, and before the grace period is over.
            gone.result(timeout=100)
    assert '"batches still running after the grace period", "model": "leaving"' not in daemon.said()


@pytest.mark.parametrize("how", ["scaled", "exchanged"])
def test_no_stream_fails_when_a_worker_is_removed_under_load(
    grpc: str, serve: Serve, how: str
) -> None:
    async def infer(requests: Any) -> AsyncIterator[list[Any]]:
        for i in range(requests[0]["n"].item()):
            await asyncio.sleep(0.02)
            yield [{"y": np.full_like(request["n"], i)} for request in requests]

    options = {"instances": 2} if how == "scaled" else {"max_batches": 20}
    model = serve(infer, max_batch_size=0, **options)
    answered: list[list[int]] = []
    over = threading.Event()

    def ask_on(n: int) -> None:
        while not over.is_set():
            answered.append(_ask(grpc, model, n, batching=False))
            assert answered[-1] == list(range(n))

    def count_on() -> None:
        wanted = len(answered) + 20
        eventually(lambda: len(answered) >= wanted, "streams run")

    lengths = range(5, 50, 5)  # each of another one: so new ones come while others run
    with ThreadPoolExecutor(len(lengths)) as threads:
        asking = [threads.submit(ask_on, n) for n in lengths]
        try:
            pids = {one.pid for one in model.instances}
            if how == "scaled":
                count_on()
                model.scale(1)
            else:
                eventually(lambda: pids.isdisjoint(one.pid for one in model.instances), "exchanged")
            count_on()
        finally:
            over.set()
        for one in asking:
            one.result()
