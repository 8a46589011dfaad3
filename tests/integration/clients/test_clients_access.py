"""The clients with a daemon that restricts all endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
from support.models.inference import Array
from support.real_daemon import RunningDaemon

from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.model_config import Tensor
from pytriton.proxy.types import Request

A = Tensor(name="a", dtype=np.float32, shape=(-1,))
SUM = Tensor(name="sum", dtype=np.float32, shape=(-1,))
ONES = np.ones(3, np.float32)


def _plain(requests: list[Request]) -> list[Mapping[str, Array]]:
    return [{"sum": request["a"] * 2} for request in requests]


def test_clients_send_the_token_with_every_request() -> None:
    """So no endpoint has to stay open for them."""
    everything = ["health", "metadata", "inference", "model-config", "model-repository"]
    with RunningDaemon.start(restricted_endpoints=everything, access_token="k" * 20) as daemon:
        daemon.client.register(_plain, "plain", [A], [SUM], progress=False)
        for url in (f"http://{daemon.http}", f"grpc://{daemon.grpc}"):
            with ModelClient(url, "plain", access_token="k" * 20, init_timeout_s=60) as client:
                client.wait_for_server(60)
                client.wait_for_model(60)
                assert client.infer_batch(ONES[None])["sum"].tolist() == [[2, 2, 2]]
            with FuturesModelClient(url, "plain", access_token="k" * 20) as futures:
                assert futures.infer_sample(ONES).result(60)["sum"].tolist() == [2, 2, 2]
            assert asyncio.run(_ask_with_token(url)) == [2, 2, 2]
            with (
                ModelClient(url, "plain") as client,  # 300 s would be waited for a server
                pytest.raises(PyTritonClientInferenceServerError, match="Pass access_token="),
            ):
                client.infer_sample(ONES)


async def _ask_with_token(url: str) -> list[float]:
    async with AsyncioModelClient(url, "plain", access_token="k" * 20) as client:
        await client.wait_for_server(60)
        answer: list[float] = (await client.infer_sample(ONES))["sum"].tolist()
        return answer
