"""The asyncio client of decoupled models, with a tritonserver that runs Python models itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support.models.inference import Array
from support.plain_triton import PlainTriton

from pytriton.client import AsyncioDecoupledModelClient
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)


def count(number: int) -> Array:
    return np.array([number], np.int32)


async def _numbers(client: AsyncioDecoupledModelClient, number: int) -> list[int]:
    return [int(one["number"][0]) async for one in client.infer_sample(count(number))]


def test_asyncio(triton: PlainTriton) -> None:
    async def ask() -> None:
        async with AsyncioDecoupledModelClient(triton.grpc, "count", lazy_init=False) as client:
            answers = await asyncio.gather(*[_numbers(client, number) for number in range(20)])
            assert answers == [list(range(number)) for number in range(20)]
            responses = client.infer_batch(
                count(1)[None], parameters={"a": 1}, headers={"x-b": "c"}
            )
            reported = [json.loads(one["told"][0, 0]) async for one in responses]
            assert {key: reported[0][key] for key in ("a", "x-b")} == {"a": 1, "x-b": "c"}
            assert (await client.model_config).decoupled
            with pytest.raises(PyTritonClientInferenceServerError, match="no negative counts"):
                await _numbers(client, -1)
            async with AsyncioDecoupledModelClient.from_existing_client(client) as other:
                assert await _numbers(other, 3) == [0, 1, 2]
        with pytest.raises(PyTritonClientClosedError):
            await _numbers(client, 1)
        with pytest.raises(PyTritonClientValueError, match="only supports gRPC"):
            AsyncioDecoupledModelClient(triton.http, "count")

    asyncio.run(ask())


def test_the_timeout_applies_to_each_response_with_asyncio(
    triton: PlainTriton, files: Path
) -> None:
    (files / "wait").touch()

    async def ask() -> None:
        async with AsyncioDecoupledModelClient(
            triton.grpc, "count", inference_timeout_s=2.5
        ) as client:
            begun = False
            while not begun:
                responses = client.infer_sample(count(3)).__aiter__()
                with suppress(PyTritonClientTimeoutError):  # the machine may be busy for that long
                    assert (await responses.__anext__())["number"] == 0
                    begun = True
            with pytest.raises(PyTritonClientTimeoutError, match=r"Timeout: 2\.5 s"):
                await responses.__anext__()
            while not (files / "cancelled").exists():
                await asyncio.sleep(0.01)
            (files / "wait").unlink()
            numbers: list[int] = []
            while not numbers:
                with suppress(PyTritonClientTimeoutError):
                    numbers = await _numbers(client, 3)
            assert numbers == [0, 1, 2]

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_leaving_the_loop_early_cancels_the_stream_with_asyncio(
    triton: PlainTriton, files: Path
) -> None:
    (files / "wait").touch()

    async def ask() -> None:
        async with AsyncioDecoupledModelClient(triton.grpc, "count") as client:
            async for response in client.infer_sample(count(3)):
                assert response["number"] == 0
                break
            while not (files / "cancelled").exists():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_closing_stops_a_stream_with_asyncio(triton: PlainTriton, files: Path) -> None:
    (files / "wait").touch()

    async def ask() -> None:
        client = AsyncioDecoupledModelClient(triton.grpc, "count")
        responses = client.infer_sample(count(3)).__aiter__()
        await responses.__anext__()
        waits = asyncio.ensure_future(responses.__anext__())
        await asyncio.sleep(0)  # it runs up to where it waits
        await client.close()
        await client.close()
        with pytest.raises(
            PyTritonClientClosedError, match="AsyncioDecoupledModelClient is closed"
        ):
            await waits

    asyncio.run(asyncio.wait_for(ask(), 60))
