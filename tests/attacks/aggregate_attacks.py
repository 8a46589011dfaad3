"""Attacks that respect each limit of a single request, and aim at the memory that all of them use together."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from support.frontend.raw_http2 import DATA, HEADERS, PREFACE, RESET, SETTINGS, call, frame

from attacks.attack import HUNG, TOTAL_BYTES, Attack, Place, Tally, connect, rest, rounds, send
from attacks.grpc_attacks import _END_STREAM, _OPEN_WIDE, _STREAM, _UNARY, message
from attacks.http_attacks import post, status
from attacks.slow_attacks import end_of

#: Of the frontend: such a total, and one answer or body more.
_PEAK_MB = 2 * (TOTAL_BYTES >> 20)
#: One attacker for so many of the connections that were asked for: each takes hundreds of megabytes.
_SHARE = 50
_STREAMS = 40
_ELEMENTS = 5_000_000  # of an answer: 20 MB
_BODY_BYTES = 64 << 20
_ATTACK_S = 60.0
_NO_WINDOW = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))


def _unread_calls(place: Place, count: int, tally: Tally) -> None:
    """One connection with 40 calls and a closed window: no response can be sent."""
    _unread_streams_of(place, count, tally, _UNARY, 1)


def _unread_streams(place: Place, count: int, tally: Tally) -> None:
    """The same with streams of several requests each."""
    _unread_streams_of(place, count, tally, _STREAM, 3)


def _unread_streams_of(place: Place, count: int, tally: Tally, path: bytes, requests: int) -> None:
    body = _asking(place.large) * requests
    clients = []
    for _ in range(max(1, count // _SHARE)):
        client = connect(place.grpc)
        send(client, PREFACE + _NO_WINDOW)
        for stream in range(1, 2 * _STREAMS, 2):
            send(client, call(stream, path) + frame(DATA, _END_STREAM, stream, body))
        clients.append(client)
    for client in clients:
        tally.add(_ended_streams(client, _STREAMS))
        client.close()


def _asking(model: str) -> bytes:
    """Return a request for a large response."""
    encoded = message(model, 1)
    return encoded.replace(struct.pack("<f", 1), struct.pack("<f", _ELEMENTS))


def _ended_streams(client: socket.socket, left: int) -> str:
    """Wait until the server has ended `left` streams, or the connection."""
    said = client.makefile("rb")
    try:
        while left and (head := said.read(9)):
            said.read(int.from_bytes(head[:3], "big"))
            ends = head[3] == RESET or (head[3] == HEADERS and head[4] & _END_STREAM)
            left -= bool(ends)
    except socket.timeout:
        return HUNG
    except ConnectionError:
        pass
    return "streams ended" if left == 0 else "closed"


def _unread_answers(place: Place, count: int, tally: Tally) -> None:
    """HTTP: one large response per connection, which the client does not read."""
    body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[%d]}],%s}' % (
        _ELEMENTS, b'"parameters":{"binary_data_output":true}',
    )  # fmt: skip
    for some in rounds(max(1, count * 10 // _SHARE), 100):
        clients = [connect(place.http, 4096) for _ in range(some)]
        for client in clients:
            send(client, post(place, body, model=place.large))
        deadline = time.monotonic() + _ATTACK_S
        for client in clients:
            tally.add(_refused_or_ended(client, deadline))
            client.close()


def _refused_or_ended(client: socket.socket, deadline: float) -> str:
    """Wait for the head of a response; after the head of a large one, which is not read, for the connection's end."""
    with contextlib.suppress(socket.timeout, ConnectionError):
        head = client.recv(32, socket.MSG_PEEK)
        if head and status(head) != "200":
            return status(head)
    return end_of(client, deadline)


def _unfinished_bodies(place: Place, count: int, tally: Tally) -> None:
    """HTTP: bodies without their last bytes, for which the server waits up to `body_s`."""
    head = post(place, b"").replace(b"Content-Length: 0", b"Content-Length: %d" % (_BODY_BYTES + 1))
    _unfinished(place.http, max(1, count // 10), tally, [head])


def _unfinished_messages(place: Place, count: int, tally: Tally) -> None:
    """The same with one gRPC message per connection."""
    prefix = struct.pack(">BI", 0, _BODY_BYTES + 1)
    head = PREFACE + _OPEN_WIDE + call(1, _UNARY) + frame(DATA, 0, 1, prefix)
    piece = frame(DATA, 0, 1, bytes(16_384))
    _unfinished(place.grpc, max(1, count // 10), tally, [head, piece])


def _unfinished(address: tuple[str, int], count: int, tally: Tally, parts: list[bytes]) -> None:
    head, piece = parts[0], parts[1] if len(parts) > 1 else bytes(16_384)
    clients = []
    for _ in range(count):
        client = connect(address)
        clients.append(client)
        send(client, head)
        with contextlib.suppress(socket.timeout):
            send(client, piece * (_BODY_BYTES // 16_384))
    for client in clients:
        tally.add(_ended_streams(client, 1) if len(parts) > 1 else _answered(client))
        client.close()


def _answered(client: socket.socket) -> str:
    """Wait until the server has responded, or closed the connection."""
    try:
        return status(rest(client))
    except socket.timeout:
        return HUNG


ATTACKS = {
    "unread-calls": Attack(_unread_calls, peak_mb=_PEAK_MB),
    "unread-streams": Attack(_unread_streams, peak_mb=_PEAK_MB),
    "unread-http": Attack(_unread_answers, peak_mb=_PEAK_MB),
    "unfinished-bodies": Attack(_unfinished_bodies, peak_mb=_PEAK_MB),
    "unfinished-messages": Attack(_unfinished_messages, peak_mb=_PEAK_MB),
}
