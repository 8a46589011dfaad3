"""Clients of decoupled models without a server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pytriton.client import AsyncioDecoupledModelClient, DecoupledModelClient
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.model_config import TensorSpec, TritonModelConfig

COUNT = np.array([1], np.int32)
#: There was no earlier request, so the stream notices it first.
KNOWN = TritonModelConfig("count", decoupled=True, inputs=[TensorSpec("count", np.int32, (1,))])


def test_nobody_listens() -> None:
    with (
        DecoupledModelClient(
            "grpc://127.0.0.1:1", "count", model_config=KNOWN, ensure_model_is_ready=False
        ) as client,
        pytest.raises(PyTritonClientTimeoutError, match="cannot connect to"),
    ):
        list(client.infer_sample(COUNT))


def test_nobody_listens_with_asyncio() -> None:
    async def ask() -> None:
        async with AsyncioDecoupledModelClient(
            "grpc://127.0.0.1:1", "count", model_config=KNOWN, ensure_model_is_ready=False
        ) as client:
            async for _ in client.infer_sample(COUNT):
                pass

    with pytest.raises(PyTritonClientTimeoutError, match="cannot connect to"):
        asyncio.run(ask())
