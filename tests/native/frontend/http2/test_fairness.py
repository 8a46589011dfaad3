"""Messages that take long to read: a client with many of them does not block the others."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice, takewhile

import pytest
from support.frontend.grpc.echo import GrpcEcho, once
from support.frontend.raw_http2 import DATA, HEADERS, PING, SETTINGS, call, frame, frames, hello

pytestmark = pytest.mark.timeout(200)

Start = Callable[..., GrpcEcho]
_ACKNOWLEDGED = frame(SETTINGS, 1, 0)  # from here on what the server's settings allow
_PING = frame(PING, 0, 0, b"12345678")


def _until_now(said: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the frames received before the answer to a ping."""
    return list(takewhile(lambda one: one[0] != PING, said))


@pytest.mark.parametrize(
    ("connections", "streams", "messages"), [(1, 20, 1), (2, 1, 20)], ids=["streams", "messages"]
)
def test_clients_take_turns(start: Start, connections: int, streams: int, messages: int) -> None:
    """With two reader threads, another client's request waits for at most one message of each client."""
    packed = gzip.compress(bytes(4 << 20))
    message = b"\1" + struct.pack(">I", len(packed)) + packed
    server = start()
    with ExitStack() as stack, server.channel() as channel:
        clients = [stack.enter_context(hello(server.port)) for _ in range(connections)]
        for client in clients:
            client.sendall(_ACKNOWLEDGED)
            for i in range(1, 2 * streams, 2):
                client.sendall(call(i, b"/echo/Wants", encoding=b"gzip"))
                client.sendall(frame(DATA, 0, i, message) * messages + frame(DATA, 1, i))
        saying = [frames(client) for client in clients]
        answered = []
        for client, said in zip(clients, saying):
            client.sendall(_PING)
            answered += _until_now(said)  # all of it has come to the server
        large = b"x" * 2_000_000
        assert once(channel, "Now", large) == large
        for client, said in zip(clients, saying):
            client.sendall(_PING)
            answered += _until_now(said)
        ended = [one for one in answered if one[0] == HEADERS]
        assert 2 * len(ended) < connections * streams
        for said in saying:
            already = 0 if connections > 1 else len(ended)
            rest = (one for one in said if one[0] == HEADERS)
            assert len(list(islice(rest, streams - already))) == streams - already
    counts = server.end()
    assert counts["begun"] == counts["gone"] == connections * streams + 1
