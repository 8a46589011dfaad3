"""http/: heads, chunks, targets and encodings, received in any pieces."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frontend.driver import Driver, Refused


def _head(
    driver: Driver,
    head: bytes,
    *,
    step: int = 1 << 16,
    target: int = 200,
    size: int = 2000,
    headers: int = 10,
) -> Any:
    return json.loads(driver.ask("h", struct.pack("<IIII", target, size, headers, step) + head))


def _get(*headers: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes = b"Host: h") -> bytes:
    return b"\r\n".join([line, *([host] if host else []), *headers, b"", b""])


def test_a_route_is_found(driver: Driver) -> None:
    table = {
        "routes": [
            {"path": "/a", "model": "one", "type": "a/b"},
            {"path": "/a/b", "model": "two", "type": "a/b", "put": True},
        ],
        "origins": ["https://a.example"],
    }

    def found(path: bytes, **more: Any) -> str:
        document = json.dumps({**table, **more}).encode()
        return driver.ask("R", struct.pack("<I", len(path)) + path + document).decode()

    assert found(b"/a") == "/a one 0 1 0"
    assert found(b"/a/b", log_errors=True) == "/a/b two 1 1 1"
    assert found(b"/a/%62", origins=["*"]) == "/a/b two 1 1 0"
    assert found(b"/b") == "none none 0 0 0"
    with pytest.raises(Refused, match="two routes have the same path"):
        found(b"/a", pages=[{"path": "/a", "type": "a/b", "file": "/dev/../etc/passwd"}])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_head_in_pieces(driver: Driver, step: int) -> None:
    head = _get(
        b"Content-Length: 12",
        b"X:y",
        b"Empty:",
        b"Spaces: \t a b \t",
        line=b"POST /v2/x?a=b HTTP/1.1",
    )
    read = _head(driver, head + b"body", step=step)
    assert read["size"] == len(head)
    assert (read["method"], read["path"]) == ("POST", "/v2/x")
    assert (read["length"], read["keep_alive"], read["chunked"]) == (12, 1, 0)
    assert read["headers"][1:] == [
        ["Content-Length", "12"],
        ["X", "y"],
        ["Empty", ""],
        ["Spaces", "a b"],
    ]


def test_an_endless_head_is_refused(driver: Driver) -> None:
    whole = _get(b"A: b")
    for size in range(len(whole)):
        assert _head(driver, whole[:size]) is None


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GET / HTTP/1.1\nHost: h\n\n", "400 .*without a carriage return"),
        (_get(b"A: b\nC: d"), "400 .*without a carriage return"),
        (_get(b"A: b\rC: d"), "400 the header 'A' has control characters"),
        (_get(b"A: b\x00"), "400 .*control characters"),
        (_get(b"A: b", b" folded"), "400 a header continues"),
        (_get(b"A : b"), "400 a header's name"),
        (_get(b": b"), "400 a header's name"),
        (_get(b"no colon"), "400 a header has no colon"),
        (_get(b"A\xff: b"), "400 a header's name"),
        (_get(b"Content-Length: 1", b"Content-Length: 1"), "400 .*more than once"),
        (_get(b"Content-Length: 1", b"Transfer-Encoding: chunked"), "400 .*cannot be combined"),
        (_get(b"Content-Length: +1"), "400 Content-Length"),
        (_get(b"Content-Length: 1, 1"), "400 Content-Length"),
        (_get(b"Content-Length: 0x1"), "400 Content-Length"),
        (_get(b"Content-Length:"), "400 Content-Length"),
        (_get(b"Content-Length: 18446744073709551616"), "400 Content-Length"),
        (_get(b"Transfer-Encoding: gzip, chunked"), "501"),
        (_get(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), "400 .*more than once"),
        (_get(b"Transfer-Encoding: xchunked"), "501"),
        (_get(b"Transfer-Encoding: chunked", line=b"GET / HTTP/1.0"), "400 .*not part of HTTP/1.0"),
        (_get(host=b""), "400 .*one Host header"),
        (_get(b"host: other"), "400 .*one Host header"),
        (_get(b"Expect: 200-ok"), "417"),
        (_get(line=b"GET /"), "400 the request's first line"),
        (_get(line=b"GET  / HTTP/1.1"), "400"),
        (_get(line=b"GET / HTTP/1.1 "), "400 the request's first line"),
        (_get(line=b"GET / http/1.1"), "400 the request's first line"),
        (_get(line=b"GET / HTTP/2.0"), "505"),
        (_get(line=b"PRI * HTTP/2.0"), "505"),
        (_get(line=b"G(T / HTTP/1.1"), "400 the request's first line"),
        (_get(line=b"GET v2 HTTP/1.1"), "400 .*not a path"),
        (_get(line=b"GET /\x7f HTTP/1.1"), "400 .*target"),
        (_get(line=b"GET /\xc3\xa4 HTTP/1.1"), "400 .*target"),
        (_get(line=b"GET /" + b"a" * 200 + b" HTTP/1.1"), "414 .*200 bytes"),
        (_get(*[b"A: b"] * 10), "431 .*10 headers"),
        (_get(b"A: " + b"b" * 2000), "431 .*2000 bytes"),
        (b"\r\n\r\n", "400"),
        (b"\n", "400"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 1 << 16])
def test_ambiguous_requests_are_refused(driver: Driver, head: bytes, said: str, step: int) -> None:
    with pytest.raises(Refused, match=said):
        _head(driver, head, step=step)


@pytest.mark.parametrize(
    ("head", "field", "value"),
    [
        (b"\r\n" + _get(), "path", "/"),
        (_get(line=b"GET http://host:80/v2 HTTP/1.1"), "path", "/v2"),
        (_get(line=b"GET http://host HTTP/1.1"), "path", "/"),
        (_get(line=b"GET / HTTP/1.0", host=b""), "keep_alive", 0),
        (_get(b"Connection: x, Keep-Alive", line=b"GET / HTTP/1.0"), "keep_alive", 1),
        (_get(b"Connection: Close"), "keep_alive", 0),
        (_get(b"Connection: keep-alive, close"), "keep_alive", 0),
        (_get(b"Expect: 100-Continue"), "expects_continue", 1),
        (_get(b"transfer-encoding: Chunked"), "chunked", 1),
        (_get(b"Content-Encoding: X-GZIP"), "encoding", "gzip"),
        (_get(b"Content-Encoding: deflate"), "encoding", "deflate"),
        (_get(b"Content-Encoding: identity"), "encoding", "identity"),
        (_get(b"A: \xc3\xa4"), "headers", [["Host", "h"], ["A", "ä"]]),
    ],
)
def test_valid_requests_are_accepted(driver: Driver, head: bytes, field: str, value: Any) -> None:
    assert _head(driver, head)[field] == value


def _judged(driver: Driver, head: bytes, step: int) -> Any:
    try:
        return _head(driver, head, step=step)
    except Refused as refused:
        return str(refused)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_get_the_same_response_in_any_pieces(
    driver: Driver, rubbish: bytes, step: int
) -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\n" + rubbish + b"\r\n\r\n"
    assert _judged(driver, head, step) == _judged(driver, head, 1 << 16)


def _chunks(driver: Driver, text: bytes, *, step: int = 1 << 16) -> tuple[str, int, bytes]:
    sizes = struct.pack(
        "<QQI", 1 << 20, 2000, step
    )  # of the body, of what surrounds it, of a piece
    state, left, data = driver.ask("k", sizes + text).split(b" ", 2)
    return state.decode(), int(left), data


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(1, 20), st.binary(max_size=5))
def test_chunks_in_pieces(driver: Driver, parts: list[bytes], step: int, after: bytes) -> None:
    text = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in parts)
    text += b"000\r\nTrailer: x\r\n\r\n"
    assert _chunks(driver, text + after, step=step) == ("done", len(after), b"".join(parts))
    rng = random.Random(len(text))
    cut = rng.randrange(len(text))
    state, left, data = _chunks(driver, text[:cut], step=step)
    assert (state, left) == ("more", 0)
    assert b"".join(parts).startswith(data)


def test_three_megabytes_in_chunks_of_one_byte(driver: Driver) -> None:
    assert _chunks(driver, b"1\r\na\r\n" * 500_000 + b"0\r\n\r\n") == ("done", 0, b"a" * 500_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"1\na\r\n", "400 .*carriage return"),
        (b"1\r\na\n", "400 .*carriage return"),
        (b"1\r\nab\r\n", "400 .*longer than its size"),
        (b"1\r\r\n", "400 .*carriage return"),
        (b"\r\n", "400 .*hexadecimal"),
        (b"x\r\n", "400 .*hexadecimal"),
        (b"-1\r\n", "400 .*hexadecimal"),
        (b"0x1\r\n", "400 .*a chunk's size is followed"),
        (b"1 \r\n", "400 .*a chunk's size is followed"),
        (b"1;a\x00\r\n", "400 .*control characters"),
        (b"1000000000000000\r\n", "400 .*too large"),
        (b"fffffffffffffff\r\n", "413 the request's body has more than 1048576 bytes"),
        (b"100001\r\n", "413"),
        (b"80000\r\n" + b"a" * 0x80000 + b"\r\n80001\r\n", "413"),
        (b"1;" + b"a" * 1100 + b"\r\n", "400 .*1024 bytes"),
        ((b"1;" + b"a" * 500 + b"\r\na\r\n") * 5, "400 .*extensions and trailers"),
        (b"0\r\n" + (b"A: " + b"b" * 500 + b"\r\n") * 5, "400 .*extensions and trailers"),
        (b"0\r\nno colon\r\n\r\n", "400 a header has no colon"),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_invalid_chunks_are_refused(driver: Driver, text: bytes, said: str, step: int) -> None:
    with pytest.raises(Refused, match=said):
        _chunks(driver, text, step=step)


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        (b"/", [""]),
        (b"/v2/models/a%20b/infer", ["v2", "models", "a b", "infer"]),
        (b"/a%2Fb", ["a/b"]),
        (b"/%c3%A4/", ["ä", ""]),
        (b"//", ["", ""]),
        (b"/a%", "400 .*an invalid escape"),
        (b"/a%2", "400 .*an invalid escape"),
        (b"/%zz", "400 .*an invalid escape"),
        (b"/%00", "400 .*NUL"),
        (b"/%ff", "400 .*not UTF-8"),
        (b"/%c3/%a4", "400 .*not UTF-8"),
        (b"/a" * 13, "404"),
        (b"/" + b"a" * 2048, "404"),
    ],
)
def test_segments_of_a_path(driver: Driver, path: bytes, segments: Any) -> None:
    if isinstance(segments, str):
        with pytest.raises(Refused, match=segments):
            driver.ask("t", path)
    else:
        assert json.loads(driver.ask("t", path)) == segments


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"", "identity"),
        (b"gzip", "gzip"),
        (b"deflate, gzip", "gzip"),
        (b"gzip;q=0.5, deflate", "deflate"),
        (b"gzip;q=0", "identity"),
        (b"gzip;q=0.001", "gzip"),
        (b"gzip;q=0.5, identity", "identity"),
        (b"br, zstd", "identity"),
        (b"GZIP ; Q=1.0", "gzip"),
        (b"gzip;q=nonsense", "identity"),
        (b"gzip;q=,deflate;q=0.", "identity"),
    ],
)
def test_the_encoding_of_the_answer(driver: Driver, accepted: bytes, chosen: str) -> None:
    assert driver.ask("e", accepted).decode() == chosen
