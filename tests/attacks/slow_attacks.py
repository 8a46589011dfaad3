"""Attacks by waiting: slow heads, bodies and readers on thousands of open connections."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from attacks.attack import HUNG, PATIENCE_S, Attack, Place, Tally, connect, rounds, send
from attacks.http_attacks import _RIGHT, post, status

#: Open at a time: with as many again on the server's side, within the usual 20,000 descriptors.
_ABREAST = 4000
#: Clients whose response of 1 MB each the server has to keep.
_READERS = 200
_BETWEEN_S = 0.2


def _watch(
    clients: list[socket.socket], tally: Tally, dribble: Callable[[socket.socket], None]
) -> None:
    """Let each connection send a little more now and then, until the server has closed it."""
    poll = select.epoll()
    said = {client.fileno(): b"" for client in clients}
    open_ones = {client.fileno(): client for client in clients}
    for descriptor in open_ones:
        poll.register(descriptor, select.EPOLLIN)
    deadline = time.monotonic() + PATIENCE_S
    next_turn = time.monotonic() + _BETWEEN_S
    while open_ones and time.monotonic() < deadline:
        for descriptor, _ in poll.poll(max(0.0, next_turn - time.monotonic()), 256):
            client = open_ones[descriptor]
            try:
                piece = client.recv(1 << 16)
            except ConnectionError:
                piece = b""
            said[descriptor] += piece
            if not piece:
                poll.unregister(descriptor)
                del open_ones[descriptor]
                tally.add(status(said[descriptor]))
        if time.monotonic() >= next_turn:
            next_turn = time.monotonic() + _BETWEEN_S
            for client in open_ones.values():
                dribble(client)
    for _ in open_ones:
        tally.add(HUNG)
    poll.close()
    for client in clients:
        client.close()


def _slowly(place: Place, count: int, tally: Tally, begin: bytes, more: bytes) -> None:
    def dribble(client: socket.socket) -> None:
        send(client, more)

    for some in rounds(count, _ABREAST):
        clients = []
        for _ in range(some):
            clients.append(connect(place.http))
            send(clients[-1], begin)
        _watch(clients, tally, dribble)


def _slow_heads(place: Place, count: int, tally: Tally) -> None:
    _slowly(place, count, tally, b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: ", b"y")


def _silent(place: Place, count: int, tally: Tally) -> None:
    _slowly(place, count, tally, b"", b"")


def _slow_bodies(place: Place, count: int, tally: Tally) -> None:
    _slowly(place, count, tally, post(place, _RIGHT)[:-20], b" ")


def _slow_chunks(place: Place, count: int, tally: Tally) -> None:
    head = post(place, b"", b"Transfer-Encoding: chunked", length=False)
    _slowly(place, count, tally, head + b"1\r\n{\r\n", b"1\r\n \r\n")


def _slow_readers(place: Place, count: int, tally: Tally) -> None:
    """Clients that request 1 MB several times and read nothing; the server has to disconnect them."""
    body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[250000]}],%s}'
    body %= b'"parameters":{"binary_data_output":true}'
    read_nothing(place, count, tally, post(place, body, model=place.large) * 4, _READERS)


def read_nothing(place: Place, count: int, tally: Tally, request: bytes, abreast: int) -> None:
    """Send a request on each connection, `abreast` at a time, and wait until the server has ended them."""
    for some in rounds(count, abreast):
        clients = [connect(place.http, 4096) for _ in range(some)]
        for client in clients:
            send(client, request)
        deadline = time.monotonic() + PATIENCE_S
        for client in clients:
            tally.add(end_of(client, deadline))
            client.close()


def end_of(client: socket.socket, deadline: float) -> str:
    """Wait for a reset, without reading anything."""
    poll = select.poll()
    poll.register(client, 0)  # errors and hang-ups are always reported
    left = deadline - time.monotonic()
    return "ended" if poll.poll(max(left, 0.001) * 1000) else HUNG


ATTACKS = {
    "silent-clients": Attack(_silent, frozenset({"closed"})),
    "slow-heads": Attack(_slow_heads, frozenset({"408"})),
    "slow-bodies": Attack(_slow_bodies, frozenset({"408"})),
    "slow-chunks": Attack(_slow_chunks, frozenset({"408"})),
    "slow-readers": Attack(_slow_readers, frozenset({"ended"})),
}
