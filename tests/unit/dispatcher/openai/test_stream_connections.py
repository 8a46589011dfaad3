"""Connections to the native frontend: which are used again, and which requests are sent a second time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path

import pytest

from pytriton.dispatcher.openai import event_stream
from pytriton.dispatcher.openai.event_stream import BrokenAnswer, EventStream, StreamConnections
from pytriton.dispatcher.openai.state import Upstream

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"4\r\ndata\r\n0\r\n\r\n"
CLOSING = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


class Server:
    """Accepts connections to a unix socket; the test reads from them and answers."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.setblocking(False)
        self.listener.bind(str(path))
        self.listener.listen()
        self.connections = StreamConnections(Upstream("http://host", str(path)))
        self.accepted: list[socket.socket] = []

    async def accept(self) -> socket.socket:
        client, _ = await self._loop.sock_accept(self.listener)
        self.accepted.append(client)
        return client

    async def answer(self, client: socket.socket, answer: bytes = ANSWER) -> None:
        """Read a request and answer it."""
        assert (await self._loop.sock_recv(client, 1 << 16)).endswith(b"body")
        await self._loop.sock_sendall(client, answer)

    async def wait_readable(self, client: socket.socket) -> None:
        """Wait until a request has arrived, without reading it."""
        arrived = asyncio.Event()
        self._loop.add_reader(client, arrived.set)
        await arrived.wait()
        self._loop.remove_reader(client)

    def post(self) -> asyncio.Task[EventStream]:
        return asyncio.ensure_future(self.connections.post("/a", b"body", {}))

    async def answered(self, answer: bytes = ANSWER) -> tuple[socket.socket, EventStream]:
        """Answer a request on a new connection."""
        posting = self.post()
        client = await self.accept()
        await self.answer(client, answer)
        return client, await posting

    async def exchange(self) -> socket.socket:
        """Answer a request on a new connection, which is then idle."""
        client, stream = await self.answered()
        assert await stream.read_all(100) == b"data"
        stream.close()
        return client

    async def is_closed(self, client: socket.socket) -> bool:
        return await self._loop.sock_recv(client, 100) == b""

    def close(self) -> None:
        self.connections.close()
        for one in (self.listener, *self.accepted):
            one.close()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Server], Awaitable[None]]], None]:
    async def around(test: Callable[[Server], Awaitable[None]]) -> None:
        server = Server(tmp_path / "socket")
        try:
            await asyncio.wait_for(test(server), 60)
        finally:
            server.close()

    return lambda test: asyncio.run(around(test))


Run = Callable[[Callable[[Server], Awaitable[None]]], None]


def test_a_connection_is_used_again(run: Run) -> None:
    async def test(server: Server) -> None:
        client = await server.exchange()
        for _ in range(2):
            posting = server.post()
            await server.answer(client)
            stream = await posting
            assert await stream.read_all(100) == b"data"
            stream.close()

    run(test)


@pytest.mark.parametrize("answer", [CLOSING, ANSWER + b"more"], ids=["close", "excess data"])
def test_a_connection_is_closed_after_its_answer(run: Run, answer: bytes) -> None:
    async def test(server: Server) -> None:
        client, stream = await server.answered(answer)
        assert await stream.read_all(100) == b"data"
        stream.close()
        assert await server.is_closed(client)

    run(test)


def test_closing_a_stream_early_closes_its_connection(run: Run) -> None:
    async def test(server: Server) -> None:
        client, stream = await server.answered(ANSWER[:-5])
        assert await stream.read() == b"data"
        stream.close()
        assert await server.is_closed(client)

    run(test)


@pytest.mark.parametrize("word", [b"n", b"s"])
def test_a_connection_is_used_again_unless_its_response_was_stopped(run: Run, word: bytes) -> None:
    async def test(server: Server) -> None:
        client, stream = await server.answered(ANSWER[:-5])
        assert await stream.read() == b"data"
        stream.send(word)
        assert await asyncio.get_running_loop().sock_recv(client, 100) == word
        client.sendall(ANSWER[-5:])
        assert await stream.read() == b""
        stream.close()
        if word == b"s":
            assert await server.is_closed(client)
        else:
            posting = server.post()
            await server.answer(client)
            (await posting).close()

    run(test)


def test_a_refused_connection_yields_the_response(run: Run) -> None:
    """The frontend refuses a connection as soon as it accepts it."""
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"

    async def test(server: Server) -> None:
        def refuse() -> None:
            client, _ = server.listener.accept()
            client.sendall(refusal)
            client.close()

        asyncio.get_running_loop().add_reader(server.listener, refuse)
        stream = await server.post()
        assert stream.status == 503
        assert await stream.read_all(100) == b"busy"
        stream.close()

    run(test)


def test_a_connection_is_not_bound_to_the_context_of_its_first_request(run: Run) -> None:
    user: ContextVar[str] = ContextVar("user", default="none")

    async def test(server: Server) -> None:
        user.set("first")
        client, stream = await server.answered(HEAD)
        seen: list[str] = []

        def tap(data: bytes) -> bool:
            seen.append(user.get())
            return True

        stream.tap = tap
        reading = asyncio.ensure_future(stream.read())
        client.sendall(ANSWER.removeprefix(HEAD)[:-5])
        while not seen:
            await asyncio.sleep(0)
        assert seen == ["none"]
        reading.cancel()

    run(test)


def test_an_idle_connection_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its end is noticed, although reading had paused for a long response."""
    monkeypatch.setattr(event_stream, "_MAX_WAITING", 3)

    async def test(server: Server) -> None:
        client = await server.exchange()
        posting = server.post()
        await server.answer(client, HEAD)
        stream = await posting
        client.sendall(ANSWER.removeprefix(HEAD))
        while not stream._waiting:
            await asyncio.sleep(0)
        assert await stream.read_all(100) == b"data"
        stream.close()
        client.close()
        while not stream.is_closing:
            await asyncio.sleep(0)

    run(test)


def test_a_canceled_request_closes_its_connection(run: Run) -> None:
    async def test(server: Server) -> None:
        client = await server.exchange()
        posting = server.post()
        await server.wait_readable(client)
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        assert (await asyncio.get_running_loop().sock_recv(client, 1 << 16)).endswith(b"body")
        assert await server.is_closed(client)

    run(test)


@pytest.mark.parametrize("seen", [False, True], ids=["unnoticed", "noticed"])
@pytest.mark.parametrize("how", ["close", "shut down"])
def test_a_request_is_sent_again_if_an_idle_connection_was_closed(
    run: Run, how: str, *, seen: bool
) -> None:
    async def test(server: Server) -> None:
        client = await server.exchange()
        if how == "close":
            client.close()
        else:
            client.shutdown(socket.SHUT_WR)
        if seen:
            for _ in range(10):  # turns of the event loop
                await asyncio.sleep(0)
        posting = server.post()
        await server.answer(await server.accept())
        (await posting).close()

    run(test)


@pytest.mark.parametrize("how", ["close", "shut down"])
def test_a_request_is_sent_again_if_the_server_has_not_read_it(run: Run, how: str) -> None:
    async def test(server: Server) -> None:
        client = await server.exchange()
        posting = server.post()
        await server.wait_readable(client)
        if how == "close":
            client.close()
        else:  # as when a server that stops closes an idle connection
            client.shutdown(socket.SHUT_WR)
            client.recv(1 << 16)
        await server.answer(await server.accept())
        (await posting).close()

    run(test)


def test_a_request_that_the_server_has_read_is_not_sent_again(run: Run) -> None:
    async def test(server: Server) -> None:
        client = await server.exchange()
        posting = server.post()
        await server.wait_readable(client)
        assert client.recv(1 << 16).endswith(b"body")
        client.close()
        with pytest.raises(BrokenAnswer):
            await posting
        await server.exchange()
        assert len(server.accepted) == 2

    run(test)


def test_idle_connections_are_limited(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_MAX_IDLE", 1)

    async def test(server: Server) -> None:
        streams = []
        for _ in range(2):
            posting = server.post()
            await server.answer(await server.accept())
            streams.append(await posting)
        for stream in streams:
            assert await stream.read_all(100) == b"data"
            stream.close()
        first, second = server.accepted
        assert await server.is_closed(second)
        server.connections.close()
        assert await server.is_closed(first)

    run(test)


def test_a_connection_in_use_is_closed_after_its_answer_once_the_pool_is_closed(run: Run) -> None:
    async def test(server: Server) -> None:
        client, stream = await server.answered()
        server.connections.close()
        assert await stream.read_all(100) == b"data"
        stream.close()
        assert await server.is_closed(client)

    run(test)
