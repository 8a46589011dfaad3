"""The frontend's gRPC over HTTP/2 with grpcio and with hostile clients, under sanitizers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from support.frontend.grpc.echo import GrpcEcho, once, stream
from support.frontend.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    call,
    frame,
    frames,
    hello,
    message,
    read_frames,
    rest,
)

Start = Callable[..., GrpcEcho]


@pytest.mark.parametrize("name", ["Now", "Later"])
def test_messages_of_all_sizes_round_trip(start: Start, name: str) -> None:
    server = start()
    with server.channel() as channel:
        for size in (0, 1, 5, 511, 513, 16_384, 70_000, 3_000_000, 20_000_000):
            message = bytes(i % 251 for i in range(min(size, 1000))) * (size // 1000 or 1)
            assert once(channel, name, message) == message
    counts = server.end()
    assert counts == {"begun": 9, "cancelled": 0, "gone": 9, "connections": 0}


def test_many_clients_are_served_concurrently(start: Start) -> None:
    server = start()

    def work(number: int) -> None:
        with server.channel() as channel:
            for i in range(50):
                message = b"%d %d " % (number, i) * (i * 37 + 1)
                assert once(channel, "Later" if i % 2 else "Now", message) == message
            assert list(stream(channel, "Later", [b"a" * i for i in range(100)]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    counts = server.end()
    assert (counts["begun"], counts["gone"]) == (408, 408)


def test_a_stream_is_answered_in_order(start: Start) -> None:
    server = start()
    messages = [b"%d" % i * (i % 900) for i in range(1000)]
    with server.channel() as channel:
        assert list(stream(channel, "Now", messages)) == messages
    server.end()


def test_responses_wait_for_a_slow_reader(start: Start) -> None:
    """The window of HTTP/2 holds them back, and other calls of the connection continue."""
    server = start()
    with server.channel() as channel:
        many = stream(channel, "Many", [b"300 100000"])
        first = next(many)
        assert once(channel, "Now", b"x") == b"x"
        assert [len(first), *map(len, many)] == [100_000] * 300
    server.end()


def test_compressed_messages_are_read(start: Start) -> None:
    server = start("body_bytes=1000000")
    with server.channel() as channel:
        for how in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert once(channel, "Now", b"a" * 900_000, compression=how) == b"a" * 900_000
            with pytest.raises(grpc.RpcError) as refused:
                once(channel, "Now", b"a" * 1_100_000, compression=how)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    server.end()


def test_a_slow_message_keeps_its_order_and_blocks_no_other_stream(start: Start) -> None:
    """Other threads read large and compressed messages; the next messages of their stream wait for them."""
    server = start()
    messages = [b"%d" % i * size for i, size in enumerate((1, 2_000_000, 3, 1_500_000, 5) * 4)]
    with server.channel() as channel:
        answers = stream(channel, "Now", messages)
        first = next(answers)
        assert once(channel, "Now", b"x", compression=grpc.Compression.Gzip) == b"x"
        assert [first, *answers] == messages
        packed = stream(channel, "Now", messages, compression=grpc.Compression.Gzip)
        assert list(packed) == messages
    counts = server.end()
    assert (counts["begun"], counts["gone"]) == (3, 3)


def test_repeated_references_to_large_headers_end_the_connection(start: Start) -> None:
    """Each takes a byte, for which the server would process 2,000."""
    server = start("header_bytes=4096", "headers=100")
    kept = b"\x40\x01x\x7f" + bytes([(2000 - 127) % 128 | 128, (2000 - 127) // 128]) + b"a" * 2000
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        connection.sendall(frame(HEADERS, 0, 1, kept) + frame(CONTINUATION, 0, 1, b"\xbe" * 10_000))
        rest(connection)
    assert server.end()["header_bytes"] == 2  # as too many, and as no end of them


def test_a_status_includes_its_text(start: Start) -> None:
    server = start()
    with server.channel() as channel:
        for text in ("plain", "50 % \n of it", "prüfen ✓", "x" * 3000):
            with pytest.raises(grpc.RpcError) as refused:
                once(channel, "Refuse", text.encode())
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details() == text
    server.end()


def test_an_oversized_message_is_refused_and_others_are_served(start: Start) -> None:
    server = start("body_bytes=1024", "header_bytes=2000", "headers=20")
    with server.channel() as channel:
        with pytest.raises(grpc.RpcError) as refused:
            once(channel, "Now", b"x" * 1025)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1025 bytes" in refused.value.details()
        for metadata in ([("name", "v" * 3000)], [(f"name{i}", "v") for i in range(30)]):
            with pytest.raises(grpc.RpcError) as refused:
                once(channel, "Now", b"x", metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert once(channel, "Now", b"x" * 1024) == b"x" * 1024
    counts = server.end()
    assert counts["body_bytes"] == 1


def test_cancelled_calls_leak_nothing(start: Start) -> None:
    """While they wait, while they are answered, and when their connection is closed."""
    server = start("resets_per_s=1000000")
    with server.channel() as channel:
        for i in range(200):
            never = channel.unary_unary("/echo/Never", None, None).future(b"x")
            many = stream(channel, "Many", [b"50 20000"])
            if i % 2:
                next(many)
            never.cancel()
            many.cancel()  # type: ignore[attr-defined]
        assert once(channel, "Now", b"x") == b"x"
    channel = server.channel()
    futures = [channel.unary_unary("/echo/Never", None, None).future(b"x") for _ in range(20)]
    assert once(channel, "Now", b"x") == b"x"
    channel.close()
    assert {future.code() for future in futures} == {grpc.StatusCode.CANCELLED}
    counts = server.end()
    assert counts["begun"] == counts["gone"]


def test_a_stopping_server_finishes_its_requests(start: Start) -> None:
    server = start()
    with server.channel() as channel:
        many = stream(channel, "Many", [b"200 100000"])
        first = next(many)
        server.terminate()
        assert len([first, *many]) == 200
    counts = server.end()
    assert counts["connections"] == 0


def _answered(connection: socket.socket, stream_id: int) -> bool:
    """Return whether frames contain headers of the stream, with which a refused call ends."""
    return (HEADERS, stream_id) in frames(connection)


@pytest.mark.parametrize(
    "hostile",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        PREFACE + b"\xff" * 100,
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, b"\xff" * 50),
        PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 0, 1, b"x"),
        PREFACE + frame(SETTINGS, 0, 0) + call(2),
        PREFACE + frame(SETTINGS, 0, 0) + call(1, flags=0) + frame(CONTINUATION, 0, 1, b"") * 100,
    ],
    ids=["http1", "zeros", "frames", "hpack", "data", "even-stream", "continuations"],
)
def test_hostile_bytes_end_only_their_connection(start: Start, hostile: bytes) -> None:
    server = start()
    with server.channel() as channel:
        assert once(channel, "Now", b"x") == b"x"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(hostile)
            rest(connection)
        assert once(channel, "Now", b"x") == b"x"
    server.end()


@pytest.mark.parametrize("before", [(3,), (1, 3)])
@pytest.mark.parametrize("stream_id", [1, 2])
def test_a_stream_id_lower_than_the_last_is_a_connection_error(
    start: Start, before: tuple[int, ...], stream_id: int
) -> None:
    """RFC 9113, 5.1.1: such a stream was never opened, or its client has closed it."""
    server = start()
    with hello(server.port) as client:
        for one in before:
            client.sendall(call(one, b"/echo/None", flags=END_STREAM | END_HEADERS))
        client.sendall(call(stream_id))
        said = read_frames(client)
        end = next(payload for kind, payload in said if kind == GOAWAY)
    protocol_error, stream_closed = 1, 5
    assert int.from_bytes(end[4:8], "big") in (protocol_error, stream_closed)
    server.end()


def test_late_frames_of_a_closed_stream_are_ignored(
    start: Start,
) -> None:
    """Its client sent them before it knew that the stream was closed."""
    server = start()
    with hello(server.port) as client:
        said = frames(client)
        client.sendall(call(1, timeout=b"no time"))
        assert (RESET, 1) in said  # answered, and not waited for
        client.sendall(call(1, flags=END_STREAM | END_HEADERS))
        client.sendall(frame(PING, 0, 0, b"12345678"))
        assert (PING, 0) in said
    server.end()


def test_rapid_resets_end_the_connection(start: Start) -> None:
    server = start("resets_per_s=100")
    with hello(server.port) as connection:
        frames = (call(i) + frame(RESET, 0, i, struct.pack(">I", 8)) for i in range(1, 2001, 2))
        with suppress(OSError):
            connection.sendall(b"".join(frames))
        rest(connection)
    counts = server.end()
    assert counts["resets"] == 1
    assert counts["begun"] == counts["gone"] <= 300


def test_an_announced_size_alone_allocates_nothing(start: Start) -> None:
    server = start("body_bytes=4000000000", "streams=100")
    with hello(server.port) as connection:
        for i in range(1, 200, 2):
            connection.sendall(call(i) + frame(DATA, 0, i, message(b"abc", 3_900_000_000)))
        connection.sendall(frame(PING, 0, 0, b"12345678"))
        assert PING in (kind for kind, _ in frames(connection))  # it has read all of it
        with server.channel() as channel:
            assert once(channel, "Now", b"x") == b"x"
        status = Path(f"/proc/{server.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0])
    assert resident < 400_000  # KiB: with what sanitizers take
    counts = server.end()
    assert counts["begun"] == counts["gone"] == 101


def test_truncated_messages_are_refused(start: Start) -> None:
    server = start()
    with hello(server.port) as connection:
        connection.sendall(call(1, b"/echo/Now") + frame(DATA, 1, 1, message(b"abc", 100)))
        assert _answered(connection, 1)
    server.end()
