"""What gRPC clients can make a server keep, and how long it waits for them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice, takewhile

import grpc
import pytest
from support.frontend.grpc.echo import GrpcEcho, once
from support.frontend.raw_http2 import (
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    WINDOW_0,
    call,
    frame,
    frames,
    hello,
    message,
    rest,
)

Start = Callable[..., GrpcEcho]


@contextmanager
def _pinging(connection: socket.socket) -> Iterator[None]:
    """Let the client send pings continuously."""
    over = threading.Event()

    def ping() -> None:
        with suppress(OSError):
            while not over.wait(0.05):
                connection.sendall(frame(PING, 0, 0, b"12345678"))

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "unfinished",
    [
        call(1) + frame(DATA, 0, 1, message(b"abc", 100)),
        call(1, flags=0),
        call(1, flags=0, timeout=b"never"),
        call(1, b"/echo/Wants"),
    ],
    ids=["message", "headers", "refused-headers", "no-message"],
)
def test_pings_do_not_extend_the_time_limit_of_an_unfinished_call(
    start: Start, unfinished: bytes
) -> None:
    """Truncated headers allow no other frame in between, so in that case the client sends nothing more."""
    server = start("body_s=0.3")
    with hello(server.port) as connection:
        connection.sendall(unfinished)
        if unfinished[4] == 0:  # the first frame's flags
            rest(connection)
        else:
            with _pinging(connection):
                rest(connection)
    counts = server.end()
    assert counts["body_time"] == 1
    assert counts["begun"] == counts["gone"]


def test_an_incomplete_message_ends_only_its_call(start: Start) -> None:
    """A proxy multiplexes calls of many clients on one connection; it is closed only if its last call stalls."""
    server = start("body_s=0.3")
    with hello(server.port) as connection:
        said = frames(connection)
        connection.sendall(call(1, b"/echo/Now") + frame(DATA, 0, 1, message(b"x")))
        assert (DATA, 1) in said
        for i in (3, 5):
            connection.sendall(call(i) + frame(DATA, 0, i, message(b"abc", 100)))
        assert set(islice((one for one in said if one[0] in (RESET, GOAWAY)), 2)) == {
            (RESET, 3),
            (RESET, 5),
        }
        connection.sendall(frame(DATA, 0, 1, message(b"y")))
        assert next(one for one in said if one[0] in (DATA, GOAWAY)) == (DATA, 1)
        connection.sendall(frame(DATA, 0, 1, message(b"abc", 100)))
        assert GOAWAY in (kind for kind, _ in said)
    counts = server.end()
    assert counts["body_time"] == 3
    assert counts["begun"] == counts["gone"] == 3


def test_calls_over_the_reset_limit_end_no_others(start: Start) -> None:
    """New calls are refused until the second is over."""
    server = start("resets_per_s=20")
    with hello(server.port) as connection:
        said = frames(connection)
        connection.sendall(call(1, b"/echo/Now") + frame(DATA, 0, 1, message(b"x")))
        assert (DATA, 1) in said
        given_up = (call(i) + frame(RESET, 0, i, struct.pack(">I", 8)) for i in range(3, 63, 2))
        connection.sendall(b"".join(given_up) + call(63, b"/echo/Now"))
        assert (RESET, 63) in takewhile(lambda one: one[0] != GOAWAY, said)
        connection.sendall(frame(DATA, 0, 1, message(b"y")))
        assert next(one for one in said if one[0] in (DATA, GOAWAY)) == (DATA, 1)
        for i in count(65, 2):
            connection.sendall(call(i, b"/echo/Now") + frame(DATA, 0, i, message(b"z")))
            answer = next(one for one in said if one in ((DATA, i), (RESET, i)))
            if answer == (DATA, i):
                break
    counts = server.end()
    assert counts["resets"] == 1
    assert counts["begun"] == counts["gone"] >= 2


def test_calls_end_at_their_deadlines(start: Start) -> None:
    """In any order of their deadlines, and without an action of the client."""
    server = start()
    calls = b"".join(
        call(i, b"/echo/Never", timeout=timeout) + frame(DATA, 0, i, message(b"x"))
        for i, timeout in ((1, b"1300m"), (3, b"100000u"), (5, b"1H"), (7, b"600m"))
    )
    with hello(server.port) as connection:
        connection.sendall(calls)
        ended = (stream for kind, stream in frames(connection) if kind == HEADERS)
        assert list(islice(ended, 3)) == [3, 7, 1]
    counts = server.end()
    assert (counts["begun"], counts["cancelled"], counts["gone"]) == (4, 4, 4)


def test_a_call_past_its_deadline_gets_deadline_exceeded(start: Start) -> None:
    server = start()
    with server.channel() as channel:
        with pytest.raises(grpc.RpcError) as refused:
            # Without a timeout of the client library, which would send its own deadline to the server.
            once(channel, "Never", b"x", metadata=[("grpc-timeout", "100m")], timeout=None)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.end()


def test_a_call_that_is_reset_at_once_does_not_begin(start: Start) -> None:
    server = start("resets_per_s=1000000")
    with hello(server.port) as connection:
        reset = struct.pack(">I", 8)
        streams = b"".join(
            call(i) + frame(DATA, 0, i, message(b"x")) + frame(RESET, 0, i, reset)
            for i in range(1, 21, 2)
        )
        connection.sendall(streams + frame(PING, 0, 0, b"12345678"))
        assert PING in (kind for kind, _ in frames(connection))
    counts = server.end()
    assert (counts["begun"], counts["gone"]) == (0, 0)


def test_a_client_without_a_preface_times_out(start: Start) -> None:
    server = start("header_s=0.3")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(PREFACE[:10])
        rest(connection)
    assert server.end()["header_time"] == 1


def test_pings_do_not_delay_a_shutdown(start: Start) -> None:
    """A draining server closes a connection without calls, whatever its client sends."""
    server = start()
    with hello(server.port) as connection, _pinging(connection):
        assert connection.recv(1)
        server.terminate()
        rest(connection)
    assert server.end()["connections"] == 0


def test_responses_held_back_by_a_closed_window_are_dropped(start: Start) -> None:
    server = start("unsent_s=0.3")
    with hello(server.port, WINDOW_0) as connection, _pinging(connection):
        for i in range(1, 20, 2):
            connection.sendall(call(i, b"/echo/Now") + frame(DATA, 0, i, message(b"x" * 1000)))
        with server.channel() as channel:
            resets = (stream for kind, stream in frames(connection) if kind == RESET)
            assert set(islice(resets, 10)) == set(range(1, 20, 2))
            assert once(channel, "Now", b"x") == b"x"
    counts = server.end()
    assert counts["unsent_time"] == 10
    assert (counts["begun"], counts["gone"]) == (11, 11)


def test_a_client_that_reads_no_refusals_is_disconnected(start: Start) -> None:
    """A client that has not acknowledged the settings may open too many streams, and each is refused with a frame."""
    server = start("streams=4", "body_s=1000", kernel_keeps=4096)  # the four send no messages
    with hello(server.port) as connection, suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for first in range(1, 2_000_000, 1000):
            connection.sendall(b"".join(call(i) for i in range(first, first + 1000, 2)))
    counts = server.end()
    assert counts["unsent_bytes"] == 1
    assert counts["begun"] == counts["gone"]


def test_resets_are_limited_by_the_setting_alone(start: Start) -> None:
    """HTTP/2 libraries disconnect clients after a thousand resets, or 33 per second."""
    server = start("resets_per_s=1000000")
    with hello(server.port) as connection:
        for first in range(1, 6001, 200):
            streams = range(first, first + 200, 2)
            connection.sendall(
                b"".join(call(i) + frame(RESET, 0, i, struct.pack(">I", 8)) for i in streams)
            )
        connection.sendall(frame(PING, 0, 0, b"12345678"))
        said = takewhile(lambda kind: kind != PING, (kind for kind, _ in frames(connection)))
        assert GOAWAY not in set(said)
    counts = server.end()
    assert counts["begun"] == counts["gone"]


def test_a_response_too_large_for_a_message_is_a_status(start: Start) -> None:
    server = start()
    with server.channel() as channel:
        with pytest.raises(grpc.RpcError) as refused:
            once(channel, "Huge", b"x")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert once(channel, "Now", b"x") == b"x"
    counts = server.end()
    assert counts["begun"] == counts["gone"]
