"""An HTTP client connected to the gRPC port reports that immediately."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from fakes.triton.fake_triton import MODEL, fake_triton

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientInvalidUrlError

X = np.ones(2, np.float32)
WORDS = r"No HTTP response from http://127\.0\.0\.1:\d+: .*If that is the gRPC port, write grpc://127\.0\.0\.1:\d+\."


@pytest.fixture
def address() -> Iterator[str]:
    """Host and port of a server that only speaks gRPC."""
    with fake_triton("grpc") as fake:
        yield fake.url[len("grpc://") :]


def test_a_blocking_client(address: str) -> None:
    with ModelClient(address, MODEL) as client:
        with pytest.raises(PyTritonClientInvalidUrlError, match=WORDS):
            client.infer_sample(X)
        with pytest.raises(PyTritonClientInvalidUrlError, match=WORDS):
            client.wait_for_model(60)
        with pytest.raises(PyTritonClientInvalidUrlError, match=WORDS):
            client.wait_for_server(60)


def test_a_client_for_asyncio(address: str) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(address, MODEL) as client:
            with pytest.raises(PyTritonClientInvalidUrlError, match=WORDS):
                await client.infer_sample(X)

    asyncio.run(ask())
