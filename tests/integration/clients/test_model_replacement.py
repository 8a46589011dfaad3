"""Clients that outlive a replacement of their model by one with another configuration, and adapt to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.real_daemon import RunningDaemon

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    ModelClient,
)
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.model_config import ModelConfig, Tensor

X = np.ones(2, np.float32)
PLAIN, BATCHING = ModelConfig(batching=False), ModelConfig(max_batch_size=4)
STREAM = ModelConfig(batching=False, decoupled=True)
STREAM_BATCHING = ModelConfig(max_batch_size=4, decoupled=True)


def doubled(requests: Any) -> Any:
    return [{"y": next(iter(request.values())) * 2} for request in requests]


def streamed(requests: Any) -> Any:
    yield doubled(requests)


Replace = Callable[..., None]


@pytest.fixture
def replace(daemon: RunningDaemon) -> Iterator[Replace]:
    """Replace the model."""

    def register(config: ModelConfig, inputs: str = "x") -> None:
        infer = streamed if config.decoupled else doubled
        named = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in inputs.split()]
        y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
        daemon.client.register(infer, "swap", named, y, config, replace=True, progress=False)

    yield register
    daemon.client.unregister("swap")


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, daemon: RunningDaemon) -> str:
    return f"http://{daemon.http}" if request.param == "http" else f"grpc://{daemon.grpc}"


def test_a_client_follows_a_changed_configuration(url: str, replace: Replace) -> None:
    replace(PLAIN)
    with ModelClient(url, "swap") as client:
        for config in (PLAIN, BATCHING, PLAIN, BATCHING):
            replace(config)
            assert client.infer_sample(X)["y"].tolist() == [2.0, 2.0]
        replace(PLAIN, "a b")
        assert client.infer_sample(X, X)["y"].tolist() == [2.0, 2.0]
        replace(PLAIN)
        with pytest.raises(PyTritonClientInferenceServerError):  # as ever, of what fits neither
            client.infer_sample(np.ones((2, 2), np.float32))


def test_an_asynchronous_client_follows_a_changed_configuration(url: str, replace: Replace) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(url, "swap") as client:
            for config in (BATCHING, PLAIN):
                await asyncio.to_thread(replace, config)
                assert (await client.infer_sample(X))["y"].tolist() == [2.0, 2.0]

    replace(PLAIN)
    asyncio.run(ask())


def test_a_client_notices_that_a_model_became_decoupled(url: str, replace: Replace) -> None:
    replace(PLAIN)
    with ModelClient(url, "swap") as client:
        client.infer_sample(X)
        replace(STREAM)
        with pytest.raises(PyTritonClientInferenceServerError, match="Use DecoupledModelClient"):
            client.infer_sample(X)
        replace(PLAIN)
        assert client.infer_sample(X)["y"].tolist() == [2.0, 2.0]


def test_the_stream_after_a_failed_one_uses_the_new_configuration(
    daemon: RunningDaemon, replace: Replace
) -> None:
    """Errors within a stream have no status code, so only the next stream can use the new configuration."""
    url = f"grpc://{daemon.grpc}"
    replace(STREAM)
    with DecoupledModelClient(url, "swap") as client:
        list(client.infer_sample(X))
        replace(STREAM_BATCHING)
        with pytest.raises(PyTritonClientInferenceServerError, match="unexpected shape"):
            list(client.infer_sample(X))
        assert [one["y"].tolist() for one in client.infer_sample(X)] == [[2.0, 2.0]]

    async def ask() -> None:
        async with AsyncioDecoupledModelClient(url, "swap") as client:
            assert [one["y"].tolist() async for one in client.infer_sample(X)] == [[2.0, 2.0]]
            await asyncio.to_thread(replace, STREAM)
            with pytest.raises(PyTritonClientInferenceServerError, match="unexpected shape"):
                [one async for one in client.infer_sample(X)]
            assert [one["y"].tolist() async for one in client.infer_sample(X)] == [[2.0, 2.0]]

    asyncio.run(ask())
