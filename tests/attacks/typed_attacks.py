"""Attacks on typed functions: malformed forms, bodies in odd pieces, and readers of events that stall or leave."""

from __future__ import annotations

import gzip
import random
import socket

from attacks.attack import Attack, Place, Tally, connect, each, rest, send
from attacks.http_attacks import status
from attacks.slow_attacks import read_nothing

_FORM = b"multipart/form-data; boundary=X"
_CLOSE = b"Connection: close"
_READERS = 100


def _post(place: Place, path: str, body: bytes, *headers: bytes, length: bool = True) -> bytes:
    lines = [b"POST /%s HTTP/1.1" % path.encode(), b"Host: x", *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


def _field(head: bytes, data: bytes = b"") -> bytes:
    return b"--X\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data + b"\r\n"


def _forms() -> list[tuple[bytes, ...]]:
    """Return bodies, each with its headers."""
    sound = _field(b'name="file"; filename="a"', b"12345") + b"--X--\r\n"
    kind = b"Content-Type: " + _FORM
    zipped = b"Content-Encoding: gzip"
    names = (
        b"../../etc/passwd",
        b"/etc/passwd",
        b"C:\\\\boot.ini",
        b"..",
        b'a\\"b',
        b"\xff\xfe",
        b"a\0b",
        b"x" * 10_000,
    )
    bodies: list[tuple[bytes, ...]] = [
        (_field(b'name="file"; filename="%s"' % name) + b"--X--\r\n", kind) for name in names
    ]
    bodies += [
        (b"", kind), (b"--X", kind), (b"--X--", kind), (b"--X\r\n" * 10_000, kind), (sound[:-7], kind), (sound[8:], kind),
        (_field(b'name="file"') * 100_000 + b"--X--\r\n", kind),  # too many fields
        (_field(b'name="%s"' % (b"a" * 100_000)) + b"--X--\r\n", kind),  # more head than a field may have
        (b"--X\r\n" + b"A: b\r\n" * 100_000 + sound, kind),
        (_field(b";a=\"" * 4000) + b"--X--\r\n", kind),
        (b"\r\n--X" * 500_000, kind),
        (b"a" * 2_000_000, kind),
        (gzip.compress(_field(b'name="file"; filename="a"', bytes(32 << 20)) + b"--X--\r\n"), kind, zipped),
        (gzip.compress(sound)[:-5], kind, zipped), (sound, kind, zipped), (gzip.compress(sound), kind, zipped),
        (sound, b"Content-Type: multipart/form-data"), (sound, b"Content-Type: multipart/form-data; boundary="),
        (sound, b"Content-Type: multipart/form-data; boundary=" + b"X" * 1000), (sound, b"Content-Type: multipart/mixed"),
        (sound, kind, kind), (b"[" * 200_000, b"Content-Type: application/json"),
        (b'{"file":"' + b"A" * 1_000_001 + b'"}', b"Content-Type: application/json"),
        (b"&=" * 100_000, b"Content-Type: application/x-www-form-urlencoded"),
        (b"%ff=%", b"Content-Type: application/x-www-form-urlencoded"), (sound, b"Content-Type: " + b"a" * 4000),
    ]  # fmt: skip
    return bodies


def _hostile_forms(place: Place, count: int, tally: Tally) -> None:
    bodies = _forms()

    def one(place: Place, number: int) -> str:
        body, *headers = bodies[number % len(bodies)]
        with connect(place.http) as client:
            send(client, _post(place, place.upload, body, *headers, _CLOSE))
            return status(rest(client))

    each(place, count, tally, one, abreast=4)


def _odd_pieces(place: Place, count: int, tally: Tally) -> None:
    """A valid request in chunks of any sizes, and clients that stop sending or disconnect after each of its bytes."""
    body = _field(b'name="file"; filename="a"', b"12345") + b"--X--\r\n"
    headers = (b"Content-Type: " + _FORM, b"Transfer-Encoding: chunked")
    chance = random.Random(3)

    def one(place: Place, number: int) -> str:
        size = 1 + number % 50
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        whole = _post(place, place.upload, b"", *headers, _CLOSE, length=False) + chunks
        with connect(place.http) as client:
            if number % 4 == 0:
                send(client, whole)
                client.shutdown(socket.SHUT_WR)
                return status(rest(client).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
            send(client, whole[: chance.randrange(len(whole))])
            if number % 4 == 1:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return "went away"

    each(place, count, tally, one)


def _slow_readers_of_events(place: Place, count: int, tally: Tally) -> None:
    """Clients that request endless events and read none; the server has to disconnect them."""
    request = _post(place, place.events, b'{"size":20000}', b"Content-Type: application/json")
    read_nothing(place, count, tally, request, _READERS)


def _leave_events(place: Place, count: int, tally: Tally) -> None:
    request = _post(place, place.events, b'{"size":10}', b"Content-Type: application/json")

    def one(place: Place, number: int) -> str:
        with connect(place.http) as client:
            send(client, request)
            if number % 2:
                return "read some" if client.recv(100) else "closed"
        return "went away"

    each(place, count, tally, one)


ATTACKS = {
    "hostile-forms": Attack(_hostile_forms, frozenset({"200", "400", "413", "415", "422", "429"})),
    "forms-in-pieces": Attack(_odd_pieces, frozenset({"200", "400", "went away"})),
    "slow-event-readers": Attack(_slow_readers_of_events, frozenset({"ended"})),
    "events-that-are-left": Attack(_leave_events, frozenset({"read some", "went away"})),
}
