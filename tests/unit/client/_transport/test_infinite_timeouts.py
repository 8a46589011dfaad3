"""Timeouts so long that they are infinite, from users who want to wait indefinitely."""

from __future__ import annotations

import asyncio
import math
import sys

import numpy as np
import pytest
from fakes.triton.fake_triton import MODEL, FakeTriton

from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
from pytriton.client._inference.core import ClientSettings
from pytriton.client.utils import create_client_from_url, wait_for_model_ready

X = np.ones(2, np.float32)

without_limit = pytest.mark.parametrize("seconds", [1e10, sys.maxsize, math.inf])


@without_limit
def test_a_blocking_client_answers(fake: FakeTriton, seconds: float) -> None:
    with ModelClient(
        fake.url, MODEL, init_timeout_s=seconds, inference_timeout_s=seconds
    ) as client:
        client.wait_for_server(seconds)
        client.wait_for_model(seconds)
        assert client.infer_sample(X)["y"].tolist() == [1]


@without_limit
def test_futures_answer(fake: FakeTriton, seconds: float) -> None:
    with FuturesModelClient(
        fake.url, MODEL, init_timeout_s=seconds, inference_timeout_s=seconds
    ) as client:
        assert client.infer_sample(X).result()["y"].tolist() == [1]


@without_limit
def test_an_asyncio_client_answers(fake: FakeTriton, seconds: float) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(
            fake.url, MODEL, init_timeout_s=seconds, inference_timeout_s=seconds
        ) as client:
            await client.wait_for_server(seconds)
            await client.wait_for_model(seconds)
            assert (await client.infer_sample(X))["y"].tolist() == [1]

    asyncio.run(ask())


@without_limit
def test_tritonclients_own_client_can_wait_for_a_server(fake: FakeTriton, seconds: float) -> None:
    with create_client_from_url(fake.url) as client:
        wait_for_model_ready(client, MODEL, timeout_s=seconds)


@without_limit
def test_lock_timeouts_do_not_overflow_on_any_system(seconds: float) -> None:
    settings = ClientSettings("h", MODEL, init_timeout_s=seconds, inference_timeout_s=seconds)
    windows_limit_s = 2**32 / 1000
    assert settings.patience_s < windows_limit_s
    assert settings.deadline_s < windows_limit_s
