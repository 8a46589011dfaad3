"""An answer of tritonserver's that comes in pieces, read with as little work for each piece as can be.

A token is some hundred bytes that come by themselves. What a client for all of HTTP does around them cost the front an
eighth of its processor time. This one knows what a stream needs: one request on a connection of its own, and an
answer in chunks or of a known length. And it can hand what comes on at once (`tap`), in the moment in which the loop
has read it: no task has to wake up for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections.abc import Callable, Mapping
from typing import Optional, cast
from urllib.parse import urlsplit

from pytriton.dispatcher.openai.body_reader import within
from pytriton.dispatcher.openai.state import Upstream

__all__ = ["RELAY", "BrokenAnswer", "EventStream"]

#: Asks whether a client's connection may be handed over, and says that it may: proxy_backend/front/relay/relay.h.
RELAY = "Pytriton-Relay"

_CONNECT_S = 10.0
#: The most bytes of the headers of an answer, and of the line before a chunk.
_MOST_HEAD = 1 << 16
_MOST_LINE = 1 << 10
#: Beyond so many bytes that nobody has taken, nothing more is read.
_MOST_WAITING = 1 << 20


class BrokenAnswer(ConnectionError):
    """Bytes that are no answer of HTTP, or not all of one."""


class EventStream(asyncio.Protocol):
    """One request and its answer. To close it in mid-answer cancels the request."""

    def __init__(self) -> None:
        self.status = 0
        self.relays = False  #: a client's connection may be handed over to whoever answers
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()  #: what has come and was not taken
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._lost = False
        self._chunked = False
        #: Bytes that are left: of the chunk, or of the body; None: all until the connection ends.
        self._left: Optional[int] = 0
        self._in_chunk = False
        self._ended = False
        self._untaken = b""  #: of the body: what the tap has left for the reader
        self._broken: BrokenAnswer | None = None
        #: Is given what has come while the reader waits; False: the reader is to have it, as if there were no tap.
        self.tap: Callable[[bytes], bool] | None = None

    @classmethod
    async def post(
        cls, upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str]
    ) -> EventStream:
        """Send a request, and return its answer, of which the headers have come.

        Raises:
            OSError, asyncio.TimeoutError: there is no connection, or no answer
        """
        loop = asyncio.get_running_loop()
        at = urlsplit(upstream.url)
        opening = (
            loop.create_unix_connection(cls, upstream.socket)
            if upstream.socket is not None
            else loop.create_connection(cls, str(at.hostname), at.port or 80)
        )
        transport, stream = await within(opening, _CONNECT_S)
        lines = [f"POST {path} HTTP/1.1", f"Host: {at.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        try:
            transport.write("\r\n".join(lines).encode() + body)
            await stream._head()
        except BaseException:
            transport.abort()
            raise
        return stream

    def close(self) -> None:
        """End the connection, and let go of what has come."""
        if self._transport is not None:
            self._transport.abort()
        self.tap = None
        self._waiting.clear()
        self._untaken = b""

    def say(self, word: bytes) -> None:
        """Send something behind the request."""
        if self._transport is not None:
            self._transport.write(word)

    def say_with(self, word: bytes, descriptor: int) -> None:
        """Send something behind the request, which has been sent as a whole, with a descriptor.

        Raises:
            OSError: it cannot be sent now
        """
        assert self._transport is not None  # the headers of its answer have come
        own = os.dup(self._transport.get_extra_info("socket").fileno())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=own) as sending:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
            sending.sendmsg([word], [rights], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    async def read(self) -> bytes:
        """Return what has come of the body, at least a byte; nothing when all was returned.

        Raises:
            BrokenAnswer: the connection ended before the body did
        """
        while True:
            found, self._untaken = self._untaken, b""
            found = found or self._body()
            if found or self._ended:
                return found
            await self._more()

    async def read_all(self, most: int) -> bytes:
        """Return the body, if it is no longer than `most`.

        Raises:
            BrokenAnswer: it is, or the connection ended before it did
        """
        body = bytearray()
        while data := await self.read():
            body += data
            if len(body) > most:
                raise BrokenAnswer("the answer is too long")
        return bytes(body)

    # ── what the loop calls ──────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no such class

    def data_received(self, data: bytes) -> None:
        """Keep what came for the reader."""
        if self._waiter is not None and self.tap is not None and self._between_chunks:
            only = _only_chunk(data)
            if only and self.tap(only):
                return  # most of what comes: a token
        self._waiting += data
        if self._waiter is not None:
            if self.tap is None or not self._tapped(self.tap):
                self._wake()
        elif len(self._waiting) > _MOST_WAITING and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True

    @property
    def _between_chunks(self) -> bool:
        """Whether all has been handed on that came before, and a chunk is to begin."""
        return self._chunked and not (
            self._waiting or self._in_chunk or self._untaken or self._ended or self._broken
        )

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the reader."""
        self._lost = True
        self._wake()

    # ── the reader ───────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    async def _more(self) -> None:
        """Wait until more has come than has been looked at."""
        if self._lost:
            raise BrokenAnswer("the connection ended in the middle of the answer")
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def _head(self) -> None:
        while (end := self._waiting.find(b"\r\n\r\n")) < 0:
            if len(self._waiting) > _MOST_HEAD:
                raise BrokenAnswer("the headers of the answer are too long")
            await self._more()
        first, *lines = bytes(self._waiting[:end]).decode("latin-1").split("\r\n")
        del self._waiting[: end + 4]
        split = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in split}
        try:
            self.status = int(first.split(" ")[1])
            length = headers.get("content-length")
            self._left = None if length is None else int(length)
        except (IndexError, ValueError):
            raise BrokenAnswer("the answer is no HTTP") from None
        self.relays = headers.get(RELAY.lower()) == "yes"
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if self._chunked:
            self._left = 0

    def _tapped(self, tap: Callable[[bytes], bool]) -> bool:
        """Hand on what has come; False: the reader has to look."""
        try:
            found = self._body()
        except BrokenAnswer as error:
            self._broken = error
            return False
        if not self._ended and (not found or tap(found)):
            return True
        self._untaken = found
        return False

    def _body(self) -> bytes:
        """Return what is there of the body.

        Raises:
            BrokenAnswer: that is not as it has to be
        """
        if self._broken is not None:
            raise self._broken
        if self._ended:
            return b""
        return self._chunks() if self._chunked else self._plain()

    def _plain(self) -> bytes:
        """Return what is there of a body that does not come in chunks."""
        found = bytes(self._waiting[: self._left])
        del self._waiting[: self._left]
        if self._left is not None:
            self._left -= len(found)
        self._ended = self._left == 0 or (self._left is None and self._lost)
        return found

    def _chunks(self) -> bytes:
        """Return what is there of chunks, without what is around them."""
        data, at, size, found = self._waiting, 0, len(self._waiting), b""
        while not self._ended:
            if self._in_chunk:
                assert self._left is not None
                piece = bytes(data[at : at + self._left])
                at += len(piece)
                self._left -= len(piece)
                found = found + piece if found else piece
                if self._left or size - at < 2:
                    break  # the chunk goes on, or the end of its line is still to come
                if data[at : at + 2] != b"\r\n":
                    raise BrokenAnswer("a chunk of the answer is longer than was said")
                at += 2
                self._in_chunk = False
            end = data.find(b"\r\n", at, at + _MOST_LINE)
            if end < 0:
                if size - at >= _MOST_LINE:
                    raise BrokenAnswer("a chunk of the answer has no length")
                break
            self._left = _length(data[at:end])
            at = end + 2
            self._ended = self._left == 0
            self._in_chunk = not self._ended
        del data[:at]
        return found


def _only_chunk(data: bytes) -> bytes | None:
    """Return what is in a chunk that came whole and by itself; None: one has to look closer."""
    end = data.find(b"\r\n", 0, _MOST_LINE)
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
        raise BrokenAnswer("a chunk of the answer has no length") from None
