"""Of the frontend: how many bodies there is room for."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from pytriton.dispatcher.openai.body_reader import Bodies
from pytriton.dispatcher.openai.state import ApiSettings
from pytriton.openai import APIError


def request_with(body: bytes) -> web.Request:
    loop = asyncio.get_running_loop()
    payload = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    return make_mocked_request("POST", "/", payload=payload)


def test_bodies_have_room_together() -> None:
    async def test() -> None:
        bodies, limits = Bodies(), ApiSettings(max_body_size=100)
        requests = [request_with(bytes(100)) for _ in range(5)]
        for one in requests[:4]:
            assert await bodies.read(one, limits) == bytes(100)
        with pytest.raises(APIError) as refused:
            await bodies.read(requests[4], limits)
        assert refused.value.status == 429
        bodies.release(requests[4])
        bodies.release(requests[0])
        assert await bodies.read(request_with(bytes(100)), limits) == bytes(100)
        with pytest.raises(APIError, match="larger than the 100 bytes"):
            await bodies.read(request_with(bytes(101)), limits)

    asyncio.run(test())
