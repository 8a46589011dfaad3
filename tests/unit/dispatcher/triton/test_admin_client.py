"""The daemon's own client of tritonserver, where the server is only a socket."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from support.ports import lasting_port

from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton.admin_client import AdminClient
from pytriton.dispatcher.triton.front import Refused, Unreached


def test_a_load_fails_when_the_connection_is_closed_under_it() -> None:
    """It fails, rather than look as if its own task were cancelled: a client waits for the reason."""

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            port = server.getsockname()[1]
            client = AdminClient(DaemonConfig(), port, port)
            load = asyncio.create_task(client.load("model", "{}"))
            connection, _ = await asyncio.get_running_loop().sock_accept(server)
            with connection:  # and never answer
                await client.close()
                done, _ = await asyncio.wait([load], timeout=30)
        assert done
        assert not load.cancelled()
        assert isinstance(load.exception(), Unreached)

    asyncio.run(scene())


def _http(answer: bytes) -> Any:
    """Ask for a load of a server that answers every request over HTTP with the same bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = AdminClient(DaemonConfig(allow_grpc=False), port, port)
        try:
            await client.load("m", None)
        finally:
            await client.close()
            server.close()

    asyncio.run(scene())


def test_an_error_that_the_server_answers_is_its_refusal() -> None:
    body = b'{"error": "failed to load m"}'
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with pytest.raises(Refused, match=r"^failed to load m$"):
        _http(answer)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 20", b"\x16\x03\x01 no HTTP\r\n\r\n"])
def test_a_connection_that_ends_or_speaks_something_else_is_no_answer(answer: bytes) -> None:
    with pytest.raises(Unreached):
        _http(answer)


@pytest.mark.parametrize("grpc", [False, True])
def test_a_server_that_is_not_there_is_not_reached(grpc: bool) -> None:
    async def scene() -> None:
        port = lasting_port()
        client = AdminClient(DaemonConfig(allow_grpc=grpc), port, port)
        with pytest.raises(Unreached, match=r"(?i)connect"):
            await client.repository_states()
        await client.close()

    asyncio.run(scene())
