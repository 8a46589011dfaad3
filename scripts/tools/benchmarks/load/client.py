"""A connection in Python, to check responses, and to generate load where wrk or h2load is not installed."""

from __future__ import annotations

import http.client
import io
import socket
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc

from benchmarks.load.wire import Request, WrongAnswer

_TIMEOUT_S = 60.0
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


class _Counted(io.RawIOBase):
    """A reader of a socket that counts the bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._sock.recv_into(buffer)
        self.received += count
        return count


class _Readable:
    """The part of a socket's interface that http.client reads from."""

    def __init__(self, raw: _Counted) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._raw, 1 << 16)


class Connection:
    """A connection that sends the same request repeatedly."""

    def __init__(self, request: Request) -> None:
        self._request = request
        parts = urlsplit(request.url)
        self._method = parts.path
        self._sock: socket.socket | None = None
        self._channel: grpc.Channel | None = None
        if request.grpc:
            self._channel = grpc.insecure_channel(parts.netloc, options=_OPTIONS)
        else:
            assert parts.hostname is not None
            self._sock = socket.create_connection((parts.hostname, parts.port or 80), _TIMEOUT_S)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
            lines += [f"Content-Length: {len(request.body)}"]
            lines += [f"{name}: {value}" for name, value in request.headers.items()]
            self._head = ("\r\n".join(lines) + "\r\n\r\n").encode()

    def send(self) -> int:
        """Send the request and check the response. Return its size: of the whole response, or of gRPC's data.

        Raises:
            WrongAnswer: the response is an error, or another than expected.
            OSError: the server is not reachable.
        """
        body, headers, size = self._over_grpc() if self._channel else self._over_http()
        self._request.check(body, headers)
        return size

    def close(self) -> None:
        """Close the connection."""
        if self._sock is not None:
            self._sock.close()
        if self._channel is not None:
            self._channel.close()

    def _over_http(self) -> tuple[bytes, dict[str, str], int]:
        assert self._sock is not None
        self._sock.sendall(self._head + self._request.body)
        raw = _Counted(self._sock)
        response = http.client.HTTPResponse(_Readable(raw), method="POST")  # type: ignore[arg-type]
        try:
            response.begin()
            body = response.read()
        except http.client.HTTPException as error:
            raise WrongAnswer(f"no whole HTTP response: {error!r}") from error
        if response.status != 200:
            raise WrongAnswer(f"HTTP {response.status}: {body[:300]!r}")
        return body, {name.lower(): value for name, value in response.getheaders()}, raw.received

    def _over_grpc(self) -> tuple[bytes, dict[str, str], int]:
        assert self._channel is not None
        messages = [self._request.body[5:]]
        call = (
            self._channel.stream_stream if "Stream" in self._method else self._channel.stream_unary
        )
        multi = call(self._method, _same, _same)
        try:
            got: Any = multi(iter(messages), timeout=_TIMEOUT_S)
            answers: Iterator[bytes] = iter([got]) if isinstance(got, bytes) else got
            body = b"".join(b"\0" + struct.pack(">I", len(one)) + one for one in answers)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise ConnectionError(error.details()) from error
            raise WrongAnswer(f"gRPC {error.code().name}: {error.details()}") from error
        return body, {}, len(body)


def _same(message: bytes) -> bytes:
    return message
