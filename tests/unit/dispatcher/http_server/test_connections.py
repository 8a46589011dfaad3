"""Which connections are closed, and when; how the log shows clients' errors."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.http_server.connections import Connections, ErrorLog


class Limits(NamedTuple):
    headers_s: float = 15.0
    idle_s: float = 75.0


def connections_of(most: int, clock: Callable[[], float], *limits: float) -> Any:
    return Connections(lambda: Limits(*limits), most, b'{"error":"too slow"}', clock)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Connection:
    """aiohttp's side of a connection, and its last request."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.protocol = self
        self.written = b""
        self.closed = self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def force_close(self) -> None:
        self.closed = True
        self.transport = None

    def abort(self) -> None:
        self.aborted = True


def test_which_connections_are_closed() -> None:
    clock = Clock()
    connections = connections_of(9, clock, 10, 50)
    new, asked, busy = all_ = [Connection() for _ in range(3)]
    connections.close_expired(all_)
    connections.request_started(asked)
    connections.request_finished(asked)
    connections.request_started(busy)
    clock.now += 10
    connections.close_expired(all_)
    assert [one.closed for one in all_] == [True, False, False]
    assert new.written.startswith(b"HTTP/1.1 408 ")
    assert new.written.endswith(b'\r\nContent-Length: 20\r\n\r\n{"error":"too slow"}')
    clock.now += 1_000
    connections.close_expired([asked, busy])
    assert (asked.closed, asked.written, busy.closed) == (True, b"", False)
    connections.request_finished(busy)
    connections.close_expired([busy])
    assert not busy.closed


def test_above_the_limit_the_longest_idle_connections_are_closed() -> None:
    clock = Clock()
    connections = connections_of(2, clock)
    all_ = [Connection() for _ in range(5)]
    for count in range(1, 6):
        connections.request_started(all_[count - 1])
        clock.now += 1
        if count != 2:
            connections.request_finished(all_[count - 1])
    connections.close_expired(all_)
    # The second is in flight, the last was answered last.
    assert [one.closed for one in all_] == [True, False, True, True, False]


def test_connections_with_a_peer_that_does_not_read_are_aborted() -> None:
    clock = Clock()
    connections = connections_of(2, clock, 10, 50)
    all_ = stuck, busy, late = [Connection() for _ in range(3)]
    for one in all_:
        connections.request_started(one)
    connections.request_finished(stuck)
    connections.close_expired([stuck, busy])
    clock.now += 50
    connections.close_expired([stuck, busy])
    assert (stuck.closed, stuck.aborted) == (True, False)
    clock.now += 9
    connections.close_expired([stuck, busy])
    assert not stuck.aborted
    clock.now += 1
    connections.close_expired([stuck, busy])
    assert [one.aborted for one in all_] == [True, False, False]
    # If there are too many, the next poll is early enough.
    connections.request_finished(busy)
    connections.close_expired([busy, late, Connection()])
    assert (busy.closed, busy.aborted) == (True, False)
    connections.close_expired([busy, late, Connection()])
    assert [one.aborted for one in all_] == [True, True, False]


async def test_a_peer_that_never_reads_loses_its_connection() -> None:
    clock, ended = Clock(), asyncio.Event()
    connections = connections_of(9, clock)

    class Never(asyncio.Protocol):
        transport: Any = None

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.write(bytes(64 << 20))  # more than the socket buffers hold

        def connection_lost(self, exc: Any) -> None:
            ended.set()

        def force_close(self) -> None:  # as aiohttp's does
            if self.transport is not None:
                self.transport.close()
                self.transport = None

    ours, theirs = socket.socketpair()
    with theirs:
        _, never = await asyncio.get_running_loop().create_connection(Never, sock=ours)
        for _ in range(3):
            connections.close_expired([never])
            clock.now += 15
        await asyncio.wait_for(ended.wait(), 30)


def test_the_error_log_counts_and_quotes_nothing() -> None:
    clock, lines = Clock(), list[str]()
    log = ErrorLog(lines.append, clock)
    for _ in range(3):
        log.count("wrong")
    clock.now += 10
    log.count("wrong")
    assert lines == ["wrong: 1", "wrong: 3"]
    try:
        raise ValueError("secret")
    except ValueError as error:
        exception: Any = (type(error), error, error.__traceback__)
    message = "cannot read %s\nsecret"
    log.handle(logging.LogRecord("lib", logging.ERROR, "x.py", 1, message, ("secret",), exception))
    assert lines[2].startswith("lib: cannot read %s ValueError (")
    assert "secret" not in "".join(lines)


def test_connections_are_checked_only_while_there_are_any(loop: VirtualLoop) -> None:
    connections = connections_of(9, loop.time, 10, 50)
    server: Any = SimpleNamespace(connections=[])
    watching = loop.create_task(connections.watch(server))
    loop.advance(5.0)
    before = loop.wakeups
    loop.advance(100.0)
    assert loop.wakeups == before + 1  # that of this test
    connections.opened()
    loop.settle()
    server.connections.append(silent := Connection())
    loop.advance(10.5)
    assert not silent.closed
    loop.advance(1.0)
    assert silent.closed
    watching.cancel()
    loop.settle()
