"""Messages that take long to read: a client with many of them does not block the others."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice, takewhile

import pytest
from support.frontend.grpc.echo import GrpcEcho, once
from support.frontend.raw_http2 import (
    DATA,
    HEADERS,
    PING,
    SETTINGS,
    call,
    frame,
    frames,
    hello,
    message,
)

Start = Callable[..., GrpcEcho]
_ACKNOWLEDGED = frame(SETTINGS, 1, 0)  # from here on what the server's settings allow
_PING = frame(PING, 0, 0, b"12345678")
_PACKED = gzip.compress(os.urandom(1000))  # read by a reader thread, because it is compressed
_MESSAGE = message(_PACKED, compressed=True)


def _send(client: socket.socket, path: bytes, streams: int, messages: int) -> Iterator[int]:
    """Send messages in several streams. Return the kinds of the client's frames, once the server has all messages."""
    client.sendall(_ACKNOWLEDGED)
    for i in range(1, 2 * streams, 2):
        client.sendall(call(i, path, encoding=b"gzip"))
        client.sendall(frame(DATA, 0, i, _MESSAGE) * messages + frame(DATA, 1, i))
    client.sendall(_PING)
    kinds = (kind for kind, _ in frames(client))
    before = list(takewhile(lambda kind: kind != PING, kinds))
    return chain(before, kinds)


def _wait_for_ends(kinds: Iterator[int], streams: int) -> None:
    assert len(list(islice((kind for kind in kinds if kind == HEADERS), streams))) == streams


@pytest.mark.parametrize(
    ("connections", "streams", "messages"), [(1, 20, 1), (2, 1, 20)], ids=["streams", "messages"]
)
def test_clients_take_turns(start: Start, connections: int, streams: int, messages: int) -> None:
    """With two reader threads, the message of a third client waits for one message of another client at most."""
    server = start()
    with ExitStack() as stack, server.channel() as channel:
        *others, own = (stack.enter_context(hello(server.port)) for _ in range(connections + 1))
        gated = [_send(client, b"/echo/Gated", streams, messages) for client in others]
        answered = _send(own, b"/echo/Wants", 1, 1)
        assert once(channel, "Permit", b"%d" % (connections - 1))
        _wait_for_ends(answered, 1)
        assert once(channel, "Permit", b"%d" % (connections * streams * messages))
        for kinds in gated:
            _wait_for_ends(kinds, streams)
    counts = server.end()
    assert counts["begun"] == counts["gone"] == connections * streams + 3
