"""Batches of asynchronous callables overlap in one worker, however the callable is made and the worker ends."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import Array, Inference
from support.real_daemon import RunningDaemon, eventually

from pytriton.daemon import Model
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(1,))]
PLAIN, BATCHING = ModelConfig(batching=False), ModelConfig(max_batch_size=8)
#: Calls that have to be under way at once before any is answered.
TOGETHER = 12


class Together:
    """Returns the double once enough calls run concurrently, with a factor computed by a task of `__init__`."""

    def __init__(self) -> None:
        self._now = 0
        self._enough = asyncio.Event()
        self._factor: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._find())

    async def _find(self) -> None:
        await asyncio.sleep(0)
        self._factor.set_result(2)

    async def double(self, x: Array) -> Array:
        self._now += len(x)  # rows: Triton may merge requests that wait for an instance
        if self._now >= TOGETHER:
            self._enough.set()
        await asyncio.wait_for(self._enough.wait(), 30)
        return x * await asyncio.shield(self._factor)

    async def __call__(self, requests: Any) -> Any:
        return [{"y": await self.double(request["x"])} for request in requests]


class Batching(Together):
    @batch
    async def __call__(self, x: Any) -> Any:
        return {"y": await self.double(x)}


async def make_later() -> Any:
    return Together()


def make() -> Any:
    made: list[Together] = []

    async def infer(requests: Any) -> Any:
        if not made:
            made.append(Together())
        return await made[0](requests)

    return infer


def ask(address: str, protocol: str, value: float, shape: tuple[int, ...]) -> float:
    connection = Inference(protocol, address)
    try:
        answer = connection.infer("together", {"x": np.full(shape, value, np.float32)})
        return float(answer["y"].ravel()[0])
    finally:
        connection.close()


def answers(daemon: RunningDaemon, config: ModelConfig, protocol: str = "http") -> list[float]:
    address = daemon.http if protocol == "http" else daemon.grpc
    shape = (1, 1) if config.batching else (1,)
    with ThreadPoolExecutor(TOGETHER) as threads:
        asked = [threads.submit(ask, address, protocol, one, shape) for one in range(TOGETHER)]
        return [one.result(60) for one in asked]


def proxies_of(model: Model) -> int:
    count: int = model.info().config["instance_group"][0]["count"]
    return count


DOUBLED = [2.0 * value for value in range(TOGETHER)]


@pytest.mark.parametrize(
    ("target", "config", "options", "protocol"),
    [
        (Together, PLAIN, {}, "http"),
        (Batching, BATCHING, {}, "grpc"),
        (make_later, PLAIN, {"factory": True}, "http"),
        (make, PLAIN, {"factory": True, "lazy": True}, "http"),
        (make, PLAIN, {"factory": True, "max_concurrency": TOGETHER}, "grpc"),
    ],
    ids=["class", "batching", "async factory", "lazy", "bound"],
)
def test_calls_overlap(
    daemon: RunningDaemon, target: Any, config: ModelConfig, options: Any, protocol: str
) -> None:
    model = daemon.client.register(target, "together", X, Y, config, progress=False, **options)
    try:
        if options.get("lazy"):  # the proxies are there before anybody knows what its factory makes
            daemon.client.scale("together", 1)
            eventually(lambda: proxies_of(model) == 64, lambda: str(proxies_of(model)))
        assert answers(daemon, config, protocol) == DOUBLED
        (instance,) = model.instances
        assert instance.lanes == options.get("max_concurrency", 64)
    finally:
        model.unregister()


class Dies(Together):
    """Kills its worker once, with all its batches in flight, and later whenever it gets `poison`."""

    def __init__(self, note: Path, poison: float) -> None:
        super().__init__()
        self._note = note
        self._poison = poison

    async def double(self, x: Array) -> Array:
        if self._note.exists():
            if float(x[0]) == self._poison:
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.1)  # long enough for others to begin, if they do
            return x * 2
        if self._now == TOGETHER - 1:
            self._note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().double(x)


@pytest.mark.parametrize("poison", [-1.0, 3.0])
def test_only_the_request_that_kills_the_worker_fails(
    daemon: RunningDaemon, tmp_path: Path, poison: float
) -> None:
    async def make_it() -> Any:
        return Dies(tmp_path / "died", poison)

    model = daemon.client.register(make_it, "together", X, Y, PLAIN, progress=False, factory=True)
    try:
        with ThreadPoolExecutor(TOGETHER) as threads:
            asked = [threads.submit(ask, daemon.http, "http", one, (1,)) for one in range(TOGETHER)]
            failed = {
                place: str(one.exception(120))
                for place, one in enumerate(asked)
                if one.exception(120)
            }
        assert list(failed) == ([int(poison)] if poison >= 0 else []), failed
    finally:
        model.unregister()
