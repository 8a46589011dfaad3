"""HTTP client for streaming responses from tritonserver, with minimal work per token.

Each token arrives in a message of a few hundred bytes, and a general HTTP client spent an eighth of the frontend's CPU
time on parsing them. This one supports only what a stream needs: one request at a time on a connection, and a response
in chunks or of known length. With `tap`, the event loop passes data on as it arrives, without waking a task.

Connections to the native frontend are used for several requests, one after the other.
"""

from __future__ import annotations

import asyncio
import select
import socket
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from functools import lru_cache, partial
from typing import Optional, cast
from urllib.parse import urlsplit

from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.openai.state import Upstream

__all__ = ["RELAY", "BrokenAnswer", "EventStream", "StreamConnections"]

#: Header with which a request offers, and a response accepts, the client's connection for the native frontend to write
#: to; see proxy_backend/frontend/relay/relay.h.
RELAY = "Pytriton-Relay"

_CONNECT_S = 10.0
#: Maximum sizes of the response headers and of the line before a chunk, in bytes.
_MAX_HEAD = 1 << 16
_MAX_LINE = 1 << 10
#: Number of unread bytes above which reading from the socket pauses.
_MAX_WAITING = 1 << 20
#: Maximum number of idle connections, which count in the native frontend's limit of connections. Others are closed after
#: their response.
_MAX_IDLE = 32


class BrokenAnswer(ConnectionError):
    """Raised if a response is incomplete or not valid HTTP."""


class NotProcessed(BrokenAnswer):
    """Raised if the server closed an idle connection and has not read the request sent on it."""


class StreamConnections:
    """Connections to one tritonserver: those to the native frontend's unix socket are reused, others are not."""

    def __init__(self, upstream: Upstream) -> None:
        self._path = upstream.socket
        self._at = urlsplit(upstream.url)
        self._idle: list[EventStream] = []
        self._closed = False

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> EventStream:
        """Send a request; return the stream once the response headers have arrived.

        If the server has closed an idle connection and not read the request, the request is sent again.

        Raises:
            OSError, asyncio.TimeoutError: the connection failed, or no response arrived
        """
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._at.netloc}"]
        if self._path is None:
            lines.append("Connection: close")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        request = "\r\n".join(lines).encode() + body
        while True:
            is_reused = bool(self._idle)
            stream = self._idle.pop() if is_reused else await self._connect()
            try:
                await stream.exchange(request, is_reused=is_reused)
            except BaseException as error:
                stream.abort()
                if is_reused and isinstance(error, NotProcessed):
                    continue
                raise
            return stream

    async def _connect(self) -> EventStream:
        loop = asyncio.get_running_loop()
        if self._path is None:
            opening = loop.create_connection(
                EventStream, str(self._at.hostname), self._at.port or 80
            )
            return (await within(opening, _CONNECT_S))[1]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._path)  # a unix socket connects at once, or fails
            opening = loop.create_unix_connection(
                partial(EventStream, connection, self), sock=connection
            )
            # In an empty context: the event loop calls the protocol in that of the first request, also during later ones.
            return (await Context().run(asyncio.ensure_future, opening))[1]
        except BaseException:
            connection.close()
            raise

    def release(self, stream: EventStream) -> bool:
        """Keep an idle connection for a later request. Return False if it must be closed."""
        if self._closed or stream.is_closing or len(self._idle) >= _MAX_IDLE:
            return False
        self._idle.append(stream)
        return True

    def forget(self, stream: EventStream) -> None:
        """Stop keeping a connection that the server has closed."""
        with suppress(ValueError):
            self._idle.remove(stream)

    def close(self) -> None:
        """Close the idle connections, and the others after their response."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()


class EventStream(asyncio.Protocol):
    """Connection for a request and its streaming response. Closing it early cancels the request.

    Args:
        connection: the unix socket, for writing without the event loop; the transport closes it; None over TCP
        connections: where the connection is kept after a response; None to close it
    """

    def __init__(
        self,
        connection: socket.socket | None = None,
        connections: StreamConnections | None = None,
    ) -> None:
        self._socket = connection
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._at_end = False  #: the server has closed the connection or shut down sending
        self._paused = False
        self._waiting = bytearray()  #: received but not yet read
        self._reset()

    def _reset(self) -> None:
        """Prepare for a response."""
        self.status = 0
        self.relays = False  #: the server offers to write to the client itself
        self._stays_open = self._connections is not None
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        #: Remaining bytes of the current chunk, or of a body without chunks; None if the body ends with the connection.
        self._left: Optional[int] = 0
        self._in_chunk = False
        self._ended = False
        self._unread = b""  #: part of the body that the tap did not take
        self._broken: BrokenAnswer | None = None
        #: Called with new data while a reader waits; returns False to leave the data to the reader.
        self.tap: Callable[[bytes], bool] | None = None

    @property
    def is_closing(self) -> bool:
        """Return True if the connection can carry no further request."""
        transport = self._transport
        return (
            self._lost or self._at_end or transport is None or transport.get_write_buffer_size() > 0
        )

    async def exchange(self, request: bytes, *, is_reused: bool) -> None:
        """Send a request, and wait for the response headers. A server that refuses a new connection responds without
        reading the request.

        Raises:
            NotProcessed: the server has closed the connection and not read the request
            OSError: the connection failed, or the response is not HTTP
        """
        try:
            self._send_request(request)
        except NotProcessed:
            if is_reused:
                raise
        await self._read_headers()

    def _send_request(self, request: bytes) -> None:
        if self.is_closing or self._waiting:
            raise NotProcessed("the server has closed the connection")
        sent = 0
        if self._socket is not None:  # at once, not at the end of the event loop's turn
            try:
                sent = self._socket.send(request, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                pass
            except ConnectionError as error:
                raise NotProcessed("the server has closed the connection") from error
        assert self._transport is not None
        if sent < len(request):
            self._transport.write(request[sent:])

    def close(self) -> None:
        """Discard the response. Close the connection, unless the response was complete and the server keeps it open."""
        rest = b"\r\n" if self._chunked else b""
        is_reusable = self._ended and self._stays_open and self._waiting == rest
        connections = self._connections
        self._waiting.clear()
        self._reset()
        self._resume_reading()
        if not is_reusable or connections is None or not connections.release(self):
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self.tap = None
        self._waiting.clear()
        self._unread = b""

    def send(self, word: bytes) -> None:
        """Send a control message to the native frontend on the same connection, which is not used again after "s"."""
        self._stays_open = self._stays_open and word != b"s"
        if self._transport is not None:
            self._transport.write(word)

    def send_descriptor(self, word: bytes, descriptor: int) -> None:
        """Send a control message with a file descriptor. The request must have been sent completely.

        Raises:
            OSError: the descriptor cannot be sent now
        """
        assert self._socket is not None  # only the native frontend accepts descriptors
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
        self._socket.sendmsg([word], [rights], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

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

    def eof_received(self) -> None:
        """Note whether the server has closed an idle connection in an orderly way: it then first shuts down sending, and
        drops what it receives. A process that has died has closed its socket (POLLHUP).
        """
        self._at_end = True
        if self._socket is None or self.status or self._waiting:
            return
        poll = select.poll()
        poll.register(self._socket, 0)
        if not poll.poll(0):
            self._broken = NotProcessed("the server has closed an idle connection")

    def connection_lost(self, error: Exception | None) -> None:
        """Wake the reader, which raises an error if the body is incomplete."""
        # The kernel reports a reset if the server has closed a unix socket with unread data.
        is_reset = isinstance(error, (ConnectionResetError, BrokenPipeError))
        if is_reset and self._socket is not None and not (self.status or self._waiting):
            self._broken = NotProcessed("the server has not read the request")
        self._lost = True
        if self._connections is not None:
            self._connections.forget(self)
        self._wake()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    async def _wait_for_data(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._lost:
            raise BrokenAnswer("the connection ended in the middle of the response")
        self._resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _resume_reading(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    async def _read_headers(self) -> None:
        while (end := self._waiting.find(b"\r\n\r\n")) < 0:
            if len(self._waiting) > _MAX_HEAD:
                raise BrokenAnswer("the response headers are too long")
            await self._wait_for_data()
        head = bytes(self._waiting[:end])
        del self._waiting[: end + 4]
        self.status, self._left, self._chunked, self.relays, stays_open = _read_head(head)
        self._stays_open = self._stays_open and stays_open

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


@lru_cache(maxsize=16)  # most responses have the same
def _read_head(head: bytes) -> tuple[int, int | None, bool, bool, bool]:
    """Return what the head of a response says: its status, the body's length (None if it ends with the connection),
    whether the body has chunks, whether the server can relay it, and whether it keeps the connection open.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    split = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in split}
    try:
        version, status = first.split(" ")[:2]
        length = headers.get("content-length")
        left = None if length is None else int(length)
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        relays = headers.get(RELAY.lower()) == "yes"
        stays_open = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return int(status), 0 if chunked else left, chunked, relays, stays_open
    except ValueError:
        raise BrokenAnswer("the response is not HTTP") from None


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
