"""Limits client connections: closes those that have been idle or slow for too long and, if there are too many, those
that have been idle longest.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from aiohttp import web

if sys.version_info >= (3, 11):
    from asyncio import timeout  # novermin
else:
    from async_timeout import timeout

__all__ = [
    "ConnectionLimits",
    "Connections",
    "ErrorLog",
    "place_of",
    "raise_descriptor_limit",
    "within",
]

_T = TypeVar("_T")

#: Maximum interval between checks of all connections; shorter for short limits.
_POLL_INTERVAL_S = 1.0
#: Minimum idle time of a connection that may be closed to admit another. By then, data sent with it has been read.
_MIN_IDLE_S = 1.0
#: File descriptors reserved for purposes other than connections.
_RESERVED_DESCRIPTORS = 64


class ConnectionLimits(Protocol):
    """Time limits of a connection, in seconds.

    `headers_s` applies to the first headers of a new connection; `idle_s`, to the time between a response and the
    headers of the next request.
    """

    @property
    def headers_s(self) -> float: ...
    @property
    def idle_s(self) -> float: ...


class Connections:
    """The connections of one server.

    A connection is idle until the headers of its first request, and from each response until the headers of the next
    request.

    Args:
        limits: returns the current limits
        max_connections: maximum number of connections; beyond it, the longest idle ones are closed
        too_slow: JSON body of the response when the headers do not arrive in time
    """

    def __init__(
        self,
        limits: Callable[[], ConnectionLimits],
        max_connections: int,
        too_slow: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._max_connections = max_connections
        self._too_slow = (
            b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(too_slow), too_slow)
        )
        self._clock = clock
        self._busy: set[Any] = set()
        self._since: dict[Any, float] = {}
        self._has_had_request: set[Any] = set()
        self._closing: dict[Any, tuple[Any, float]] = {}
        self._opened = asyncio.Event()

    def opened(self) -> None:
        """Record that there is a new connection, or will be in this turn of the event loop."""
        self._opened.set()

    def request_started(self, request: web.Request) -> None:
        """Record that the headers of a request have arrived."""
        self._busy.add(request.protocol)
        self._has_had_request.add(request.protocol)

    def request_finished(self, request: web.Request) -> None:
        """Record that a request has been answered."""
        self._busy.discard(request.protocol)
        self._since[request.protocol] = self._clock()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """As aiohttp middleware, record when each request starts and ends."""
        self.request_started(request)
        try:
            return await handler(request)
        finally:
            self.request_finished(request)

    async def watch(self, server: web.Server) -> None:
        """Close expired connections periodically while there are any, until cancelled."""
        while True:
            self._opened.clear()
            limits = self._limits()
            await asyncio.sleep(min(_POLL_INTERVAL_S, limits.headers_s / 4, limits.idle_s / 4))
            self.close_expired(server.connections)
            if not server.connections:
                await self._opened.wait()

    def close_expired(self, connections: list[Any]) -> None:
        """Close the connections that have exceeded a limit."""
        now = self._clock()
        limits = self._limits()
        self._has_had_request.intersection_update(connections)
        self._abort_closing(connections, now, limits)
        self._since = {
            one: self._since.get(one, now) for one in connections if one not in self._busy
        }
        closed = 0
        for one, since in sorted(self._since.items(), key=lambda item: item[1]):
            used = one in self._has_had_request
            late = now - since >= (limits.idle_s if used else limits.headers_s)
            if not late and len(connections) - closed <= self._max_connections:
                continue
            if late and not used and one.transport is not None:
                one.transport.write(self._too_slow)
            if one.transport is not None:
                self._closing[one] = (one.transport, now)
            one.force_close()
            closed += 1

    def make_room(self, connections: list[Any]) -> None:
        """Make room for a new connection: abort the connections that are being closed, and the longest-idle one if it
        has been idle long enough.
        """
        self.close_expired(connections)
        for transport, _ in self._closing.values():
            transport.abort()
        idle = [one for one in self._since if one.transport is not None]
        oldest = min(idle, key=self._since.__getitem__, default=None)
        if oldest is not None and self._clock() - self._since[oldest] >= _MIN_IDLE_S:
            oldest.transport.abort()

    def _abort_closing(self, connections: list[Any], now: float, limits: ConnectionLimits) -> None:
        """Abort connections that cannot close because the peer is not reading the response.

        The peer has `headers_s` seconds to read it, or none if there are too many connections.
        """
        here = set(connections)
        self._closing = {one: left for one, left in self._closing.items() if one in here}
        for transport, since in self._closing.values():
            if now - since >= limits.headers_s or len(here) > self._max_connections:
                transport.abort()


def raise_descriptor_limit() -> int:
    """Raise this process's file descriptor limit to its maximum; return the number of connections that it allows.

    Each request in progress takes two descriptors: for the client, and for tritonserver.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return max(_RESERVED_DESCRIPTORS, most // 2 - _RESERVED_DESCRIPTORS)


async def within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    """Await `awaitable` in the current task, with a time limit in seconds (0 for none).

    Before Python 3.12, `asyncio.wait_for` starts a task, and leaves a reference cycle on failure. Until garbage
    collection, that cycle keeps the objects in its frames in memory, such as a request's body. This function does
    neither.

    Raises:
        asyncio.TimeoutError: the limit is exceeded
    """
    async with timeout(timeout_s or None):
        return await awaitable


# ── Rate-limited log of errors that clients cause; it counts them and never quotes requests ──


#: Minimum interval between two lines of the same kind, in seconds.
_LOG_INTERVAL_S = 10.0


class ErrorLog(logging.Handler):
    """Log of client errors, with at most one line per kind every ten seconds.

    It is also a `logging` handler for aiohttp and asyncio. Their messages quote requests, which may contain keys, so
    only the message template and the type of the exception are logged.
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._clock = clock
        self._kinds: dict[
            str, tuple[int, float]
        ] = {}  #: kind -> number of errors since its last line, and the time of that line

    def count(self, kind: str) -> None:
        """Count an error. If the last log line is old enough, log the number of errors since that line."""
        now = self._clock()
        count, logged_at = self._kinds.get(kind, (0, now - _LOG_INTERVAL_S))
        count += 1
        if now - logged_at >= _LOG_INTERVAL_S:
            self._log(f"{kind}: {count}")
            count, logged_at = 0, now
        self._kinds[kind] = (count, logged_at)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a library's log record by its message template, without the arguments."""
        error = record.exc_info[1] if record.exc_info else None
        what = "" if error is None else f" {type(error).__name__} {place_of(error)}"
        head = str(record.msg).partition("\n")[0][:100]
        self.count(f"{record.name}: {head}{what}")


def place_of(error: BaseException) -> str:
    """Return the file and line where an exception was raised. The exception's text is left out, since it may quote a
    request.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
