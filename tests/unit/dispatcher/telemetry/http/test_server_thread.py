"""The serving thread: it streams bodies, and closes connections that nobody needs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import trustme
from aiohttp import web
from support.real_daemon import eventually

from pytriton._host.ports import listening
from pytriton.dispatcher.http_server import connections
from pytriton.dispatcher.http_server.connections import Connections
from pytriton.dispatcher.telemetry.http import server_thread
from pytriton.dispatcher.telemetry.http.server_thread import ServerLimits, ServerThread

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
#: Longer than the idle limit, so that connections end only for the tested reason.
LONG = ServerLimits(headers_s=300, idle_s=300, max_connections=8)
SHORT = LONG._replace(headers_s=0.2, idle_s=0.2)
#: More than the socket buffers hold.
LARGE = bytes(64 << 20)


class Served:
    """A server with its address, and its test handlers."""

    def __init__(self, limits: ServerLimits, tls: ssl.SSLContext | None = None) -> None:
        self.under_way = self.most_under_way = 0
        self.may_answer = threading.Event()
        self.is_asked_for_large = threading.Event()
        routes = [web.get("/", self._text), web.get("/large", self._large)]
        routes += [web.get("/slow", self._slow), web.post("/", self._length)]
        listener = listening("127.0.0.1", 0, "test", backlog=128)
        self.address = listener.getsockname()
        self._server = ServerThread(routes, [listener], tls, limits)
        self._clients = contextlib.ExitStack()

    def close(self) -> None:
        self.may_answer.set()
        self._clients.close()
        self._server.stop()
        assert not self._server._thread.is_alive()

    def connect(self) -> socket.socket:
        return self._clients.enter_context(socket.create_connection(self.address, timeout=30))

    def sockets_of(self, client: socket.socket) -> int:
        """Return the number of this process's sockets connected to a client's, without the client's own."""
        there = [one.raddr for one in psutil.Process().net_connections("tcp")]
        return there.count(client.getsockname())

    async def _text(self, request: web.Request) -> web.Response:
        return web.Response(text="here")

    async def _large(self, request: web.Request) -> web.Response:
        self.is_asked_for_large.set()
        return web.Response(body=LARGE)

    async def _length(self, request: web.Request) -> web.Response:
        return web.Response(text=f"length {len(await request.read())}")

    async def _slow(self, request: web.Request) -> web.Response:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.to_thread(self.may_answer.wait)
        self.under_way -= 1
        return web.Response(text="at last")


@pytest.fixture(autouse=True)
def _slow_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_thread, "_STOP_S", 60.0)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    server = Served(*request.param)
    yield server
    server.close()


def all_of(client: socket.socket) -> bytes:
    """Return everything received until the connection ends for whatever reason."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(1 << 16):
            data += chunk
    return data


def answers(client: socket.socket) -> bool:
    client.sendall(ASK)
    return b"200 OK" in client.recv(1000)


@pytest.mark.parametrize("served", [(LONG,)], indirect=True)
def test_bodies_are_not_inflated_before_a_handler_reads_them(served: Served) -> None:
    body = gzip.compress(bytes(1 << 20))
    client = served.connect()
    client.sendall(
        f"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    assert all_of(client).endswith(f"length {len(body)}".encode())


@pytest.mark.parametrize("served", [(LONG,)], indirect=True)
def test_the_oldest_connections_make_room_for_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MIN_IDLE_S", 0.01)
    idle = [served.connect() for _ in range(100)]
    assert answers(served.connect())
    for client in idle[: 100 - LONG.max_connections]:
        assert all_of(client) == b""
    assert answers(idle[-1])


@pytest.mark.parametrize("served", [(LONG,)], indirect=True)
def test_new_connections_wait_while_all_are_busy(served: Served) -> None:
    clients = [served.connect() for _ in range(4 * LONG.max_connections)]
    for client in clients:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    eventually(lambda: served.under_way == LONG.max_connections, lambda: f"{served.under_way}")
    served.may_answer.set()
    assert all(all_of(client).endswith(b"at last") for client in clients)
    assert served.most_under_way == LONG.max_connections


@pytest.mark.parametrize("served", [(SHORT,)], indirect=True)
def test_slow_headers_time_out(served: Served) -> None:
    client = served.connect()
    client.sendall(b"GET / HTTP/1.1\r\n")
    ended = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(ConnectionError):
            for _ in range(100):  # aiohttp takes 128
                if ended.wait(0.05):
                    break
                client.sendall(b"X: y\r\n")

    trickling = threading.Thread(target=trickle)
    trickling.start()
    try:
        # It ends; bytes that arrive later may reset the connection and lose the answer.
        with contextlib.suppress(ConnectionResetError):
            answer = client.recv(1000)
            assert b" 408 " in answer
            assert answer.endswith(b'{"error":"the request headers did not arrive in time"}')
    finally:
        ended.set()
        trickling.join()


@pytest.mark.parametrize("served", [(SHORT,)], indirect=True)
def test_an_unread_response_is_dropped(served: Served) -> None:
    client = served.connect()
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    assert served.is_asked_for_large.wait(60)
    eventually(lambda: served.sockets_of(client) == 0, "it has given up")
    assert len(all_of(client)) < len(LARGE)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls_server(authority: trustme.CA, limits: ServerLimits) -> Served:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return Served(limits, context)


def test_missing_handshakes_time_out(authority: trustme.CA) -> None:
    with contextlib.closing(tls_server(authority, SHORT)) as served:
        assert all_of(served.connect()) == b""


def test_handshakes_that_never_end_leave_room_for_others(authority: trustme.CA) -> None:
    with contextlib.closing(tls_server(authority, LONG)) as served:
        silent = [served.connect() for _ in range(100)]
        for client in silent[: 100 - LONG.max_connections]:
            assert all_of(client) == b""
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        with trusting.wrap_socket(served.connect(), server_hostname="127.0.0.1") as client:
            assert answers(client)


def test_young_connections_are_not_closed() -> None:
    now = 0.0
    ended = []

    class Connection:
        def __init__(self, name: str) -> None:
            self.name, self.transport = name, self

        def abort(self) -> None:
            ended.append(self.name)

    there: Any = [Connection("old")]
    looked: Any = Connections(lambda: LONG, 8, b"{}", lambda: now)
    looked.close_expired(there)
    there.append(Connection("young"))
    now = 1.0
    looked.make_room(there)
    assert ended == ["old"]
    del there[0]
    now = 1.9
    looked.make_room(there)
    assert ended == ["old"]
    now = 2.0
    looked.make_room(there)
    assert ended == ["old", "young"]


def test_accepting_is_retried_when_descriptors_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_thread, "_NO_DESCRIPTORS_DELAY_S", 0)
    said: list[str] = []

    async def test(listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [errno.EMFILE, errno.ECONNABORTED]

        async def scarce(one: socket.socket) -> Any:
            if failures:
                raise OSError(failures.pop(0), "none left")
            return await accept(one)

        monkeypatch.setattr(loop, "sock_accept", scarce)

        async def answer(request: web.BaseRequest) -> web.Response:
            return web.Response(text="here")

        server = web.Server(answer)
        there = Connections(lambda: LONG, 8, b"{}")
        taking = server_thread.Acceptor(server, there, 8, None, 1, said.append)
        running = asyncio.ensure_future(taking.run(listener))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(ASK)
        assert b"200 OK" in await reader.readline()
        running.cancel()
        await asyncio.wait([running])
        taking.close()
        server.pre_shutdown()
        await server.shutdown()
        writer.close()
        await writer.wait_closed()

    with listening("127.0.0.1", 0, "test", backlog=8) as listener:
        asyncio.run(test(listener))
    assert said == ["cannot accept connections: none left"]
