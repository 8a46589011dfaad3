"""Of the front: which connections are closed, how many bodies there is room for, what the log says."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import zlib
from typing import Any

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from pytriton.dispatcher.openai_front.complaints import Complaints
from pytriton.dispatcher.openai_front.connections import Connections
from pytriton.dispatcher.openai_front.inflating import Inflating
from pytriton.dispatcher.openai_front.reading import Bodies
from pytriton.dispatcher.openai_front.state import Answering
from pytriton.openai import APIError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Connection:
    """What aiohttp has of one, and the request that came by it."""

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
    connections: Any = Connections(lambda: Answering(headers_s=10, idle_s=50), 9, clock)
    new, asked, busy = all_ = [Connection() for _ in range(3)]
    connections.look(all_)
    connections.begins(asked)
    connections.ends(asked)
    connections.begins(busy)
    clock.now += 10
    connections.look(all_)
    assert [one.closed for one in all_] == [True, False, False]
    assert new.written.startswith(b"HTTP/1.1 408 ")
    clock.now += 1_000
    connections.look([asked, busy])
    assert (asked.closed, asked.written, busy.closed) == (True, b"", False)
    connections.ends(busy)
    connections.look([busy])
    assert not busy.closed


def test_too_many_connections_cost_those_that_idle_the_longest() -> None:
    clock = Clock()
    connections: Any = Connections(Answering, 2, clock)
    all_ = [Connection() for _ in range(5)]
    for count in range(1, 6):
        connections.begins(all_[count - 1])
        clock.now += 1
        if count != 2:
            connections.ends(all_[count - 1])
    connections.look(all_)
    # The second is under way, the last was answered last.
    assert [one.closed for one in all_] == [True, False, True, True, False]


def test_connections_whose_peer_does_not_read_are_aborted() -> None:
    clock = Clock()
    connections: Any = Connections(lambda: Answering(headers_s=10, idle_s=50), 2, clock)
    all_ = stuck, busy, late = [Connection() for _ in range(3)]
    for one in all_:
        connections.begins(one)
    connections.ends(stuck)
    connections.look([stuck, busy])
    clock.now += 50
    connections.look([stuck, busy])
    assert (stuck.closed, stuck.aborted) == (True, False)
    clock.now += 9
    connections.look([stuck, busy])
    assert not stuck.aborted
    clock.now += 1
    connections.look([stuck, busy])
    assert [one.aborted for one in all_] == [True, False, False]
    # Where there are too many, the next look is soon enough.
    connections.ends(busy)
    connections.look([busy, late, Connection()])
    assert (busy.closed, busy.aborted) == (True, False)
    connections.look([busy, late, Connection()])
    assert [one.aborted for one in all_] == [True, True, False]


def test_a_peer_that_never_reads_loses_its_connection() -> None:
    async def test() -> None:
        clock, ended = Clock(), asyncio.Event()
        connections: Any = Connections(Answering, 9, clock)

        class Never(asyncio.Protocol):
            transport: Any = None

            def connection_made(self, transport: Any) -> None:
                self.transport = transport
                transport.write(bytes(64 << 20))  # more than sockets hold

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
                connections.look([never])
                clock.now += 15
            await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(test())


def request_with(body: bytes) -> web.Request:
    loop = asyncio.get_running_loop()
    payload = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    return make_mocked_request("POST", "/", payload=payload)


def test_bodies_have_room_together() -> None:
    async def test() -> None:
        bodies, limits = Bodies(), Answering(max_body_size=100)
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


def inflated(encoding: str, *chunks: bytes) -> bytes:
    inflating = Inflating(encoding)
    pieces = [piece for chunk in chunks for piece in inflating.pieces(chunk)]
    inflating.end()
    assert max(map(len, pieces), default=0) <= 1 << 18
    return b"".join(pieces)


def test_bodies_are_inflated_piece_by_piece() -> None:
    data = bytes(3 << 20) + b"end"
    bare = zlib.compressobj(wbits=-15)
    raw = bare.compress(b"text") + bare.flush()
    packed = gzip.compress(data)
    assert inflated("gzip", packed) == data
    assert inflated("GZIP", *(bytes([byte]) for byte in packed)) == data
    assert inflated("gzip", packed + gzip.compress(b"more")[:5], gzip.compress(b"more")[5:]) == (
        data + b"more"
    )
    assert inflated("deflate", zlib.compress(data)) == data
    assert inflated("deflate", raw) == b"text"
    assert inflated("identity", raw) == raw
    assert inflated("gzip") == b""


@pytest.mark.parametrize(
    "body", [b"no gzip", gzip.compress(b"x" * 99)[:-9], gzip.compress(b"") * 1_001],
    ids=["nonsense", "cut off", "many streams"],
)  # fmt: skip
def test_what_cannot_be_inflated_is_refused(body: bytes) -> None:
    with pytest.raises(zlib.error):
        inflated("gzip", body)


def test_the_log_counts_and_quotes_nothing() -> None:
    clock, said = Clock(), list[str]()
    complaints = Complaints(said.append, clock)
    for _ in range(3):
        complaints.count("wrong")
    clock.now += 10
    complaints.count("wrong")
    assert said == ["wrong: 1", "wrong: 3"]
    try:
        raise ValueError("secret")
    except ValueError as error:
        exception: Any = (type(error), error, error.__traceback__)
    message = "cannot read %s\nsecret"
    complaints.handle(
        logging.LogRecord("lib", logging.ERROR, "x.py", 1, message, ("secret",), exception)
    )
    assert said[2].startswith("lib: cannot read %s ValueError (")
    assert "secret" not in "".join(said)
