"""Clients whose connections are gone: closed during a request, or bound to another event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from fakes.triton.fake_triton import MODEL, FakeTriton, fake_triton
from support.real_daemon import eventually

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientError

X = np.ones(2, np.float32)


def test_closing_cancels_a_request_over_grpc() -> None:
    caught: list[PyTritonClientClosedError] = []
    with fake_triton("grpc") as fake:
        client = ModelClient(fake.url, MODEL)
        fake.gate.clear()

        def ask() -> None:
            with pytest.raises(PyTritonClientClosedError) as info:
                client.infer_sample(X)
            caught.append(info.value)

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: fake.count("infer") == 1, "the request is under way")
        client.close()
        thread.join(60)
        fake.gate.set()
    assert [str(error) for error in caught] == ["ModelClient is closed"]


def test_a_client_can_be_used_in_another_event_loop(fake: FakeTriton) -> None:
    client = AsyncioModelClient(fake.url, MODEL)  # made outside of any loop

    async def ask() -> list[float]:
        values: list[float] = (await client.infer_sample(X))["y"].tolist()
        return values

    async def ask_anew() -> list[float]:
        async with AsyncioModelClient.from_existing_client(client) as other:
            values: list[float] = (await other.infer_sample(X))["y"].tolist()
            return values

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(ask()) == [1]
        said = "AsyncioModelClient belongs to the event loop in which it was first used"
        with pytest.raises(PyTritonClientError, match=said):
            asyncio.run(ask())
        assert asyncio.run(ask_anew()) == [1]
        assert loop.run_until_complete(ask()) == [1]
        loop.run_until_complete(client.close())
    finally:
        loop.close()
