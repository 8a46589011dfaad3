"""Shutdown of a frontend whose threads are still reading requests: the sanitizer checks that it is in order."""

from __future__ import annotations

import zlib
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask, head, post
from support.frontend.raw_http2 import (
    END_HEADERS,
    HEADERS,
    PING,
    data,
    frame,
    frames,
    hello,
    literal,
    message,
)
from support.frontend.relayed_stream import Stream

#: More than are read at a time: some wait.
_REQUESTS = 8
_AT_ONCE = [["exit-timeout-secs", "0"]]
_INFER = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"), (b"content-type", b"application/grpc"),
    (b"grpc-encoding", b"gzip"),
)  # fmt: skip


@pytest.fixture(scope="module")
def packed() -> bytes:
    """50 MB of zeros, which take long to read."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1_000_000)) for _ in range(50)) + packer.flush()


def _send_http(frontend: OpenAIProcess, packed: bytes, open_ones: ExitStack) -> None:
    for _ in range(_REQUESTS):
        client = open_ones.enter_context(frontend.connect())
        client.sendall(post("echo", packed, "Content-Encoding: gzip"))
    for _ in range(3):  # answered by the loop, after it has read those
        assert ask(frontend, head("GET /v2/health/live"))[0] == 200


def _send_grpc(frontend: OpenAIProcess, packed: bytes, open_ones: ExitStack) -> None:
    block = b"".join(literal(*field) for field in _INFER)
    asked = message(packed, compressed=True)
    client = open_ones.enter_context(hello(frontend.http[1]))
    for stream in range(1, 2 * _REQUESTS, 2):
        client.sendall(frame(HEADERS, END_HEADERS, stream, block) + data(stream, asked))
    client.sendall(frame(PING, 0, 0, b"12345678"))
    assert PING in (kind for kind, _ in frames(client))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_unread_input_is_dropped_at_shutdown(made: Built, packed: bytes, protocol: str) -> None:
    send = _send_http if protocol == "http" else _send_grpc
    with (
        ExitStack() as open_ones,
        running(made, protocol=protocol, options=_AT_ONCE) as frontend,
    ):
        send(frontend, packed, open_ones)


def test_a_connection_is_closed_after_its_stream_has_ended(made: Built, tmp_path: Path) -> None:
    """The head of its response, which was sent before the shutdown, promised to keep it open."""
    with running(made, options=[["exit-timeout-secs", "3600"]]) as frontend:
        way = OpenAIProcess.connect
        with (
            closing(RawClient(frontend)) as idle,
            closing(Stream(frontend, tmp_path, keep_alive=True, way=way)) as stream,
        ):
            stream.begin()
            frontend.process.terminate()
            assert idle.ends()  # so the loop knows
            stream.end()
            assert stream.hear_end().endswith(b"\r\n0\r\n\r\n")
            assert frontend.process.wait(60) == 0
