"""The thread that answers: it takes bodies as they come, and keeps no connections that nobody needs."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web

from pytriton.dispatcher.base.ports import listening
from pytriton.dispatcher.operations.server_thread import ServerThread


async def _length(request: web.Request) -> web.Response:
    return web.Response(text=f"length {len(await request.read())}")


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    listener = listening("127.0.0.1", 0, "test", backlog=8)
    address = listener.getsockname()
    server = ServerThread([web.post("/", _length)], [listener])
    yield address
    server.stop()


def test_nothing_is_inflated_before_somebody_wants_it(address: tuple[str, int]) -> None:
    body = gzip.compress(bytes(1 << 20))
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(
            f"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        answer = b"".join(iter(lambda: client.recv(1000), b""))
    assert answer.endswith(f"length {len(body)}".encode())
