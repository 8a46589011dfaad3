"""HTTP client for streaming responses from tritonserver, with minimal work per token.

Each token arrives in a message of a few hundred bytes, and a general HTTP client spent an eighth of the frontend's CPU
time on parsing them. This one supports only what a stream needs: one request per connection, and a response in chunks
or of known length. With `tap`, the event loop passes data on as it arrives, without waking a task.
"""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Optional, cast
from urllib.parse import SplitResult, urlsplit

from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.openai.state import Upstream

__all__ = ["RELAY", "BrokenAnswer", "EventStream"]

#: Header with which a request offers, and a response accepts, the client's connection for the native frontend to write
#: to; see proxy_backend/frontend/relay/relay.h.
RELAY = "Pytriton-Relay"

_CONNECT_S = 10.0
#: Maximum sizes of the response headers and of the line before a chunk, in bytes.
_MAX_HEAD = 1 << 16
_MAX_LINE = 1 << 10
#: Number of unread bytes above which reading from the socket pauses.
_MAX_WAITING = 1 << 20


class BrokenAnswer(ConnectionError):
    """Raised if a response is incomplete or not valid HTTP."""


class EventStream(asyncio.Protocol):
    """Connection for one request and its streaming response. Closing it early cancels the request."""

    def __init__(self) -> None:
        self.status = 0
        self.relays = False  #: the server offers to write to the client itself
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()  #: received but not yet read
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._lost = False
        self._chunked = False
        #: Remaining bytes of the current chunk, or of a body without chunks; None if the body ends with the connection.
        self._left: Optional[int] = 0
        self._in_chunk = False
        self._ended = False
        self._unread = b""  #: part of the body that the tap did not take
        self._broken: BrokenAnswer | None = None
        #: Called with new data while a reader waits; returns False to leave the data to the reader.
        self.tap: Callable[[bytes], bool] | None = None

    @classmethod
    async def post(
        cls, upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str]
    ) -> EventStream:
        """Connect and send a request; return the stream once the response headers have arrived.

        Raises:
            OSError, asyncio.TimeoutError: the connection failed, or no response arrived
        """
        at = urlsplit(upstream.url)
        lines = [f"POST {path} HTTP/1.1", f"Host: {at.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        transport, stream = await cls._send_request(
            upstream, at, "\r\n".join(lines).encode() + body
        )
        try:
            await stream._read_headers()
        except BaseException:
            transport.abort()
            raise
        return stream

    @classmethod
    async def _send_request(
        cls, upstream: Upstream, at: SplitResult, request: bytes
    ) -> tuple[asyncio.Transport, EventStream]:
        loop = asyncio.get_running_loop()
        if upstream.socket is None:
            opening = loop.create_connection(cls, str(at.hostname), at.port or 80)
            transport, stream = await within(opening, _CONNECT_S)
            transport.write(request)
            return transport, stream
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # A unix socket connects at once, or fails. The server can begin while the event loop, which takes two turns,
            # prepares to read the answer.
            connection.connect(upstream.socket)
            sent = 0
            with suppress(BlockingIOError):
                sent = connection.send(request, socket.MSG_NOSIGNAL)
            transport, stream = await loop.create_unix_connection(cls, sock=connection)
        except BaseException:
            connection.close()
            raise
        if sent < len(request):
            transport.write(request[sent:])
        return transport, stream

    def close(self) -> None:
        """Close the connection and discard the received data."""
        if self._transport is not None:
            self._transport.abort()
        self.tap = None
        self._waiting.clear()
        self._unread = b""

    def send(self, word: bytes) -> None:
        """Send a control message to the native frontend on the same connection."""
        if self._transport is not None:
            self._transport.write(word)

    def send_descriptor(self, word: bytes, descriptor: int) -> None:
        """Send a control message with a file descriptor. The request must have been sent completely.

        Raises:
            OSError: the descriptor cannot be sent now
        """
        assert self._transport is not None  # the headers of the answer have arrived
        own = os.dup(self._transport.get_extra_info("socket").fileno())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=own) as sending:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
            sending.sendmsg([word], [rights], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    async def read(self) -> bytes:
        """Wait for data. Return the part of the body that has arrived since the last call; b"" at the end of the body.

        Raises:
            BrokenAnswer: the connection ended before the body was complete
        """
        while True:
            found, self._unread = self._unread, b""
            found = found or self._take_body()
            if found or self._ended:
                return found
            await self._wait_for_data()

    async def read_all(self, most: int) -> bytes:
        """Return the complete body if it has at most `most` bytes.

        Raises:
            BrokenAnswer: the body is longer, or the connection ended before it was complete
        """
        body = bytearray()
        while data := await self.read():
            body += data
            if len(body) > most:
                raise BrokenAnswer("the response is too long")
        return bytes(body)

    # ── callbacks of the event loop ──────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection."""
        # uvloop's does not inherit from this class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass received data to the tap if possible; otherwise buffer it for the reader."""
        if self._waiter is not None and self.tap is not None and self._between_chunks:
            only = _single_chunk(data)
            if only and self.tap(only):
                return  # the usual case: one token
        self._waiting += data
        if self._waiter is not None:
            if self.tap is None or not self._offer_to_tap(self.tap):
                self._wake()
        elif len(self._waiting) > _MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True

    @property
    def _between_chunks(self) -> bool:
        """Whether no data is buffered, which means that the next byte starts a chunk."""
        return self._chunked and not (
            self._waiting or self._in_chunk or self._unread or self._ended or self._broken
        )

    def connection_lost(self, error: Exception | None) -> None:
        """Wake the reader, which raises an error if the body is incomplete."""
        self._lost = True
        self._wake()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    async def _wait_for_data(self) -> None:
        if self._lost:
            raise BrokenAnswer("the connection ended in the middle of the response")
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def _read_headers(self) -> None:
        while (end := self._waiting.find(b"\r\n\r\n")) < 0:
            if len(self._waiting) > _MAX_HEAD:
                raise BrokenAnswer("the response headers are too long")
            await self._wait_for_data()
        first, *lines = bytes(self._waiting[:end]).decode("latin-1").split("\r\n")
        del self._waiting[: end + 4]
        split = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in split}
        try:
            self.status = int(first.split(" ")[1])
            length = headers.get("content-length")
            self._left = None if length is None else int(length)
        except (IndexError, ValueError):
            raise BrokenAnswer("the response is not HTTP") from None
        self.relays = headers.get(RELAY.lower()) == "yes"
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if self._chunked:
            self._left = 0

    def _offer_to_tap(self, tap: Callable[[bytes], bool]) -> bool:
        """Pass buffered data to the tap; return False if the reader has to handle it."""
        try:
            found = self._take_body()
        except BrokenAnswer as error:
            self._broken = error
            return False
        if not self._ended and (not found or tap(found)):
            return True
        self._unread = found
        return False

    def _take_body(self) -> bytes:
        """Remove and return the buffered part of the body.

        Raises:
            BrokenAnswer: the body is malformed
        """
        if self._broken is not None:
            raise self._broken
        if self._ended:
            return b""
        return self._take_chunks() if self._chunked else self._take_plain()

    def _take_plain(self) -> bytes:
        """Remove and return the buffered part of a body without chunked encoding."""
        found = bytes(self._waiting[: self._left])
        del self._waiting[: self._left]
        if self._left is not None:
            self._left -= len(found)
        self._ended = self._left == 0 or (self._left is None and self._lost)
        return found

    def _take_chunks(self) -> bytes:
        """Remove and return the buffered chunk data, without the chunk headers."""
        data, at, size, found = self._waiting, 0, len(self._waiting), b""
        while not self._ended:
            if self._in_chunk:
                assert self._left is not None
                piece = bytes(data[at : at + self._left])
                at += len(piece)
                self._left -= len(piece)
                found = found + piece if found else piece
                if self._left or size - at < 2:
                    break  # the chunk is incomplete, or its line end is missing
                if data[at : at + 2] != b"\r\n":
                    raise BrokenAnswer("a chunk of the response is longer than its chunk size")
                at += 2
                self._in_chunk = False
            end = data.find(b"\r\n", at, at + _MAX_LINE)
            if end < 0:
                if size - at >= _MAX_LINE:
                    raise BrokenAnswer("a chunk of the response has no chunk size")
                break
            self._left = _length(data[at:end])
            at = end + 2
            self._ended = self._left == 0
            self._in_chunk = not self._ended
        del data[:at]
        return found


def _single_chunk(data: bytes) -> bytes | None:
    """Return the content of `data` if it is exactly one complete chunk; otherwise None."""
    end = data.find(b"\r\n", 0, _MAX_LINE)
    digits = data[:end]
    if end < 1 or not digits.isalnum() or not data.endswith(b"\r\n"):
        return None
    try:
        size = int(digits, 16)
    except ValueError:
        return None
    return data[end + 2 : -2] if len(data) == end + size + 4 else None


def _length(line: bytearray) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        return int(digits, 16)
    except ValueError:
        raise BrokenAnswer("a chunk of the response has no chunk size") from None
