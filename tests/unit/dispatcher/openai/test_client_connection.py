"""A client's connection: answers to invalid HTTP, disconnects, and limits of request bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from pytriton.dispatcher.openai.client_connection import ClientConnection, RequestBodies
from pytriton.dispatcher.openai.state import ApiSettings
from pytriton.openai import APIError


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        # Of aiohttp's parser in C.
        ("Invalid method encountered:\n\n  b'sk-1 here'\n    ^", "Invalid method encountered"),
        ("Invalid header token:\n\n  b'sk 1: x'\n      ^", "Invalid header token"),
        (
            "Transfer-Encoding can't be present with Content-Length:\n\n  b'Tr'\n ^",
            "Transfer-Encoding can't be present with Content-Length",
        ),
        ("Bad status line:\n  Invalid HTTP version:\n\n  b'GET'\n   ^", "Bad status line"),
        (
            "Got more than 8190 bytes when reading: b'ssss...'.",
            "Got more than 8190 bytes when reading",
        ),
        (
            "Got more than 8190 bytes when reading: bytearray(b'/ss...').",
            "Got more than 8190 bytes when reading",
        ),
        ("Duplicate 'Host' header found.", "Duplicate 'Host' header found"),
        ("Missing 'Host' header in request.", "Missing 'Host' header in request"),
        (
            "Request has invalid `Transfer-Encoding`:\n\n  b''\n    ^",
            "Request has invalid `Transfer-Encoding`",
        ),
        ("Received HTTPS traffic on an HTTP port", "Received HTTPS traffic on an HTTP port"),
        # Of the one in Python.
        ("Bad status line 'secret sk-1234 here'", "Bad status line"),
        ('Bad status line "it\'s sk-1"', "Bad status line"),
        ("Invalid HTTP header: b'sk-1\\x00'", "Invalid HTTP header"),
        ("Invalid HTTP header: 'Content-Length'", "Invalid HTTP header"),
        # What the client has sent, and nothing else.
        ("http://[sk-4", ""),
        ("sk-9", ""),
        ("SK-9", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_errors_do_not_echo_the_input(
    monkeypatch: pytest.MonkeyPatch, message: str | None, reported: str
) -> None:
    logged: list[object] = []
    monkeypatch.setattr(
        web.RequestHandler, "handle_error", lambda protocol, *fault: logged.append(fault)
    )
    answers: list[tuple[int, str]] = []

    def answer(status: int, what: str) -> web.Response:
        answers.append((status, what))
        return web.Response(status=status)

    protocol = object.__new__(ClientConnection)
    protocol._answer = answer
    request, error = cast(Any, object()), ValueError()
    response = protocol.handle_error(request, 400, error, message)
    assert answers == [(400, reported)]
    assert response.status == 400
    assert not response.keep_alive  # what follows on the connection is no request
    assert logged == [(request, 400, error, message)]  # as aiohttp does


def test_a_started_answer_is_not_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*_: object) -> None:
        raise ConnectionError("Response is sent already, cannot send another response")

    monkeypatch.setattr(web.RequestHandler, "handle_error", begun)
    protocol = object.__new__(ClientConnection)
    with pytest.raises(ConnectionError):
        protocol.handle_error(cast(Any, object()), 500, ValueError(), None)


# ── the client's end ─────────────────────────────────────────────────────────────────────────────────

_ASK = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Held:
    """A server whose handler answers on request, and records its cancellation."""

    def __init__(self) -> None:
        self.begun, self.may_answer, self.cancelled = (asyncio.Event() for _ in range(3))

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.begun.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.Response(body=body)


Test = Callable[[Held, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _connected(test: Test) -> None:
    async def run() -> None:
        held = Held()
        app = web.Application()
        app.router.add_post("/", held.answer)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        manager = runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()
        wrong = web.Response(status=400)
        server = await loop.create_server(
            lambda: ClientConnection(manager, lambda *_: wrong, loop=loop), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await asyncio.wait_for(test(held, reader, writer), 60)
            writer.close()
            server.close()
        await runner.cleanup()

    asyncio.run(run())


def test_a_half_closed_client_gets_all_its_responses() -> None:
    async def test(held: Held, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_ASK + _ASK)
        await held.begun.wait()
        writer.write_eof()
        assert await reader.readexactly(len(_CONTINUE)) == _CONTINUE
        held.may_answer.set()
        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 2

    _connected(test)


def test_an_immediately_half_closed_client_is_answered() -> None:
    """The end of the stream arrives together with the request."""

    async def test(held: Held, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.may_answer.set()
        writer.write(_ASK)
        writer.write_eof()
        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 1

    _connected(test)


def test_requests_of_a_closed_connection_are_cancelled() -> None:
    async def test(held: Held, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_ASK)
        await held.begun.wait()
        writer.close()
        await held.cancelled.wait()

    _connected(test)


@pytest.mark.parametrize("sent", [b"", _ASK[:-1], _ASK[:10]])
def test_an_incomplete_request_ends_the_connection(sent: bytes) -> None:
    async def test(held: Held, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b""
        assert not held.begun.is_set()

    _connected(test)


def request_with(body: bytes) -> web.Request:
    loop = asyncio.get_running_loop()
    payload = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    return make_mocked_request("POST", "/", payload=payload)


def test_all_bodies_share_one_limit() -> None:
    async def test() -> None:
        bodies, limits = RequestBodies(), ApiSettings(max_body_size=100)
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
