"""Answers of tritonserver in any segmentation: whole, byte by byte, truncated, or not HTTP at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from pytriton.dispatcher.openai.event_stream import BrokenAnswer, EventStream, StreamConnections
from pytriton.dispatcher.openai.state import Upstream

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nda\r\nt\r\n1;x=y\r\na\r\n0\r\n\r\n"
CASES = {
    "chunks": (CHUNKED + CHUNKS, 200, b"da\r\nta"),
    "a length": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nnot", 404, b"not"),
    "nothing": (b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", 503, b""),
    "to the end": (b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, b"all of it"),
}
BROKEN = {
    "no answer": b"",
    "no headers": b"HTTP/1.1 200 OK\r\nA: b\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
    "no HTTP": b"hello\r\n\r\n",
    "no end": CHUNKED + b"5\r\ndat",
    "no last chunk": CHUNKED + b"2\r\nda\r\n",
    "a long chunk": CHUNKED + b"2\r\ndata\r\n0\r\n\r\n",
    "no size": CHUNKED + b"size\r\nda",
    "an endless size": CHUNKED + b"0" * 5_000,
    "a short body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
}


async def answered(answer: bytes, step: int) -> tuple[int, bytes, bytes]:
    """Return the status, the body and the request; the answer arrives in pieces of `step` bytes."""
    asked: list[bytes] = []

    async def serve(reader: Any, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"body"))
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await asyncio.sleep(0)  # let the reader run
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        upstream = Upstream(f"http://127.0.0.1:{port}")
        stream = await StreamConnections(upstream).post("/a", b"body", {"X-Y": "z"})
        try:
            return stream.status, await stream.read_all(1 << 20), asked[0]
        finally:
            stream.close()
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("step", [1, 3, 1 << 16])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_read_in_any_segmentation(case: str, step: int) -> None:
    answer, status, body = CASES[case]
    got_status, got_body, asked = asyncio.run(answered(answer, step))
    assert (got_status, got_body) == (status, body)
    assert asked.startswith(b"POST /a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Y: z\r\nContent-Length: 4\r\n\r\nbody" in asked


@pytest.mark.parametrize("case", BROKEN)
def test_broken_streams_are_reported(case: str) -> None:
    with pytest.raises((BrokenAnswer, ConnectionError)):
        asyncio.run(answered(BROKEN[case], 1 << 16))


class Paused:
    """A transport that records whether reading is paused."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


async def opened() -> EventStream:
    """Return a stream of which only the headers have arrived."""
    stream = EventStream()
    stream.connection_made(cast(asyncio.Transport, Paused()))
    stream.data_received(CHUNKED)
    await stream._read_headers()
    return stream


@pytest.mark.parametrize("size", [4, 8 << 20], ids=["small", "larger than the socket's buffer"])
def test_a_request_is_sent_completely_on_a_unix_socket(tmp_path: Path, size: int) -> None:
    body = b"x" * size

    async def test() -> None:
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set_result(await reader.readexactly(size))
            writer.write(CASES["a length"][0])
            writer.close()

        path = str(tmp_path / "socket")
        server = await asyncio.start_unix_server(serve, path)
        try:
            connections = StreamConnections(Upstream("http://host", path))
            stream = await connections.post("/a", body, {})
            assert await stream.read_all(1 << 20) == b"not"
            assert await asked == body
            stream.close()
        finally:
            server.close()
            await server.wait_closed()

    asyncio.run(test())


def test_reading_pauses_while_the_answer_is_not_consumed() -> None:
    async def test() -> None:
        stream, transport = EventStream(), Paused()
        stream.connection_made(cast(asyncio.Transport, transport))
        stream.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        await stream._read_headers()
        stream.data_received(bytes(1 << 19))
        assert transport.reading
        stream.data_received(bytes(1 << 20))
        assert not transport.reading
        assert len(await stream.read()) == 3 << 19
        next_read = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)  # let it run
        assert transport.reading
        stream.data_received(b"more")
        assert await next_read == b"more"

    asyncio.run(test())


def test_a_tap_receives_events_while_a_reader_waits() -> None:
    async def test() -> None:
        stream = await opened()
        tapped: list[bytes] = []
        takes = True

        def tap(data: bytes) -> bool:
            tapped.append(data)
            return takes

        stream.tap = tap
        stream.data_received(b"3\r\none\r\n")  # without a waiter, it stays
        assert await stream.read() == b"one"
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)  # let it run
        for piece in (b"3\r\ntw", b"o\r\n", b"5\r\nthree\r\n4", b"\r\nfour\r\n"):
            stream.data_received(piece)
        assert tapped == [b"tw", b"o", b"three", b"four"]
        takes = False
        stream.data_received(b"4\r\nfive\r\n")
        stream.data_received(b"3\r\nsix\r\n0\r\n\r\n")
        assert await reading == b"five"
        assert (await stream.read(), await stream.read()) == (b"six", b"")
        assert tapped[-1] == b"five"

    asyncio.run(test())


@pytest.mark.parametrize("last", [b"3\r\nend\r\n0\r\n\r\n", b"3\r\nendless\r\n"])
def test_a_tap_does_not_receive_the_end(last: bytes) -> None:
    async def test() -> None:
        stream = await opened()
        stream.tap = lambda data: pytest.fail(f"{data!r} was tapped")
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)  # let it run
        stream.data_received(last)
        if b"endless" in last:
            with pytest.raises(BrokenAnswer, match="longer than its chunk size"):
                await reading
        else:
            assert (await reading, await stream.read()) == (b"end", b"")

    asyncio.run(test())


@pytest.mark.parametrize(
    ("chunks", "body"),
    [
        ([b"3\r\none\r\n", b"003\r\ntwo\r\n"], b"onetwo"),
        ([b"3;x=y\r\none\r\n", b"A\r\n0123456789\r\n"], b"one0123456789"),
        ([b"5\r\n3\r\n\r\n\r\n"], b"3\r\n\r\n"),
        ([b"3\r\none\r\n3\r\ntwo\r\n"], b"onetwo"),
        ([b"3\r\none", b"\r\n", b"3\r\ntwo\r\n"], b"onetwo"),
        ([b"8\r\n3\r\n", b"one\r\n\r\n"], b"3\r\none\r\n"),
    ],
    ids=str,
)
def test_a_tap_receives_the_same_in_any_segmentation(chunks: list[bytes], body: bytes) -> None:
    """A complete chunk that arrives alone takes a fast path."""

    async def test() -> None:
        stream = await opened()
        tapped: list[bytes] = []

        def tap(data: bytes) -> bool:
            tapped.append(data)
            return True

        stream.tap = tap
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)  # let it run
        for piece in chunks:
            stream.data_received(piece)
        assert b"".join(tapped) == body
        stream.data_received(b"0\r\n\r\n")
        assert await reading == b""

    asyncio.run(test())
