"""Limits on what all clients together leave unread and send in bodies: beyond them, requests are refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.frontend.grpc.requests import echo_request
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask, json_of, post, tensor
from support.frontend.raw_http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    PING,
    WINDOW,
    WINDOW_0,
    call,
    data,
    frame,
    hello,
    message,
    messages,
    open_windows,
    whole_frames,
)
from support.real_daemon import eventually
from tritonclient.grpc import service_pb2 as pb

_MB = 1 << 20
_UNARY = b"/inference.GRPCInferenceService/ModelInfer"
_EXHAUSTED = b"8"
#: So that how long anything takes decides nothing.
_FOR_EVER = {"unsent_s": 1e6, "body_s": 1e6}


# ── answers over HTTP ────────────────────────────────────────────────────────────────────────────────


def _large(size: int) -> bytes:
    """Return a request whose response is as large as itself."""
    return post("echo", tensor([1], "BYTES", ["x" * size]))


def _unread(frontend: OpenAIProcess, size: int) -> RawClient:
    """Send a request, and wait until its response begins to arrive, without reading it."""
    client = RawClient(frontend)
    client.send(_large(size))
    assert client.socket.recv(1, socket.MSG_PEEK)
    return client


def test_unread_responses_of_all_clients_are_limited(made: Built) -> None:
    """Refused requests get an error, small responses still arrive, and reading makes room."""
    size = 20 * _MB  # more than the kernel keeps
    with running(made, {**_FOR_EVER, "total_unsent_bytes": 3 * size}) as frontend:
        unread = [_unread(frontend, size), _unread(frontend, size)]
        status, _, body = ask(frontend, _large(size))
        assert (status, b"total_unsent_bytes" in body) == (429, True)
        assert ask(frontend, post("echo", json_of()))[0] == 200
        for client in unread:
            assert len(client.answer()[2]) > size
        eventually(
            lambda: ask(frontend, _large(size))[0] == 200, "what has been read counts no more"
        )
        for client in unread:
            client.close()


def test_a_response_larger_than_the_limit_is_sent(made: Built) -> None:
    with running(made, {**_FOR_EVER, "total_unsent_bytes": _MB}) as frontend:
        client = _unread(frontend, 20 * _MB)
        assert client.answer()[0] == 200
        client.close()


# ── answers over gRPC ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def grpc_frontend(made: Built) -> Iterator[OpenAIProcess]:
    """A frontend whose clients may leave 8 times 64 KiB unread on a connection."""
    limits = {**_FOR_EVER, "unsent_bytes": 1 << 16, "total_body_bytes": 32 * _MB}
    with running(made, limits, protocol="grpc") as frontend:
        yield frontend


def _ask(client: socket.socket, stream: int, size: int) -> None:
    asked = message(echo_request(bytes(size)).SerializeToString())
    client.sendall(call(stream, _UNARY) + data(stream, asked, END_STREAM))


def test_unread_responses_of_one_connection_are_limited(
    grpc_frontend: OpenAIProcess,
) -> None:
    """The call over the limit ends with a status; waiting calls and other clients are served."""
    with hello(grpc_frontend.http[1], WINDOW_0) as client:
        said = whole_frames(client)
        _ask(client, 1, _MB)  # the only one: however large it is
        assert next(stream for kind, _, stream, _ in said if kind == HEADERS) == 1
        _ask(client, 3, _MB)
        refused = next(frame for frame in said if frame[0] == HEADERS)
        assert refused[1] & END_STREAM
        assert refused[2] == 3
        assert _EXHAUSTED in refused[3]
        with hello(grpc_frontend.http[1]) as other:
            open_windows(other)
            _ask(other, 1, 1000)
            assert any(kind == DATA for kind, *_ in whole_frames(other))
        open_windows(client, 1)
        came = b""
        for kind, flags, _, content in said:
            came += content if kind == DATA else b""
            if kind == HEADERS and flags & END_STREAM:
                break
    (answer,) = messages(came)
    assert pb.ModelInferResponse.FromString(answer).raw_output_contents == [bytes(_MB)]


def _ping(client: socket.socket, said: Iterator[tuple[int, int, int, bytes]]) -> list[int]:
    """Return the streams whose windows were opened until the server answered a ping."""
    client.sendall(frame(PING, 0, 0, b"12345678"))
    opened = []
    for kind, _, stream, _ in said:
        if kind == PING:
            break
        if kind == WINDOW:
            opened.append(stream)
    return opened


def test_a_client_with_many_unread_responses_cannot_send_more(grpc_frontend: OpenAIProcess) -> None:
    """The connection's window stays closed until the client reads."""
    with hello(grpc_frontend.http[1], WINDOW_0) as client:
        said = whole_frames(client)
        _ask(client, 1, _MB)
        assert any(kind == HEADERS for kind, *_ in said)
        _ping(client, said)
        for stream in (3, 5, 7, 9):  # 12 MB of the 16 that the window has
            begun = message(bytes(3 * _MB), 8 * _MB)
            client.sendall(call(stream, _UNARY) + data(stream, begun))
        assert 0 not in _ping(client, said)
        open_windows(client, 1)
        assert any(kind == WINDOW and stream == 0 for kind, _, stream, _ in said)


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_are_limited_while_they_arrive(made: Built) -> None:
    """The received part of a body counts until the request has been answered."""
    body = tensor([1], "BYTES", ["x" * (3 * _MB)])
    with running(made, {**_FOR_EVER, "total_body_bytes": 4 * _MB}) as frontend:

        def is_refused() -> bool:
            status, _, text = ask(frontend, post("echo", body))
            assert status in (200, 429)
            assert status == 200 or b"total_body_bytes" in text
            return status == 429

        def is_held() -> bool:
            with closing(RawClient(frontend)) as first:
                first.send(post("echo", body)[:-1])
                refused = is_refused()
                try:
                    first.send(body[-1:])
                    # An earlier body that still counted may have refused both.
                    return first.answer()[0] == 200 and refused
                except ConnectionError:
                    return False

        eventually(is_held, "what has come of the first body counts, and it is answered")
        eventually(lambda: not is_refused(), "the first body counts no more")


def test_messages_are_limited_while_they_arrive(grpc_frontend: OpenAIProcess) -> None:
    begun = message(bytes(4 * _MB - 5), 16 * _MB)
    with hello(grpc_frontend.http[1]) as client:
        said = whole_frames(client)
        for stream in range(1, 19, 2):  # of 4 MB: the stream's window
            client.sendall(call(stream, _UNARY) + data(stream, begun))
            if stream < 16:
                _ping(client, said)
        refused = next(frame for frame in said if frame[0] == HEADERS)
        assert refused[2] == 17
        assert _EXHAUSTED in refused[3]
