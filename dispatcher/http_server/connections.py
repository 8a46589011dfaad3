"""Closes connections of clients that send nothing or send too slowly, and the oldest idle ones when there are too many."""

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

__all__ = ["ConnectionLimits", "Connections", "ErrorLog", "all_descriptors", "place_of", "within"]

_T = TypeVar("_T")

#: Maximum interval between checks of all connections; shorter for short limits.
_POLL_INTERVAL_S = 1.0
#: Minimum age of a connection that may be closed to admit another: by then, data sent with it has been read.
_YOUNG_S = 1.0
#: Descriptors of the process that are not connections.
_OTHERS = 64


class ConnectionLimits(Protocol):
    """Time limits in seconds: for the first headers of a new connection, and to read a response and send another
    request.
    """

    @property
    def headers_s(self) -> float: ...
    @property
    def idle_s(self) -> float: ...


class Connections:
    """The connections of one server. A connection is idle from its start, or from a response, until the next headers.

    Args:
        limits: returns the current limits
        most: maximum number of connections; beyond it, those idle the longest are closed
        too_slow: JSON body of the response to headers that did not arrive in time
    """

    def __init__(
        self,
        limits: Callable[[], ConnectionLimits],
        most: int,
        too_slow: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._most = most
        self._too_slow = (
            b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(too_slow), too_slow)
        )
        self._clock = clock
        self._busy: set[Any] = set()
        self._since: dict[Any, float] = {}
        self._used: set[Any] = set()
        self._closing: dict[Any, tuple[Any, float]] = {}

    def begins(self, request: web.Request) -> None:
        """Record that the headers of a request have arrived."""
        self._busy.add(request.protocol)
        self._used.add(request.protocol)

    def ends(self, request: web.Request) -> None:
        """Record that a request has been answered."""
        self._busy.discard(request.protocol)
        self._since[request.protocol] = self._clock()

    @web.middleware
    async def around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Record the start and end of a request; a middleware."""
        self.begins(request)
        try:
            return await handler(request)
        finally:
            self.ends(request)

    async def watch(self, server: web.Server) -> None:
        """Check the connections periodically."""
        while True:
            limits = self._limits()
            await asyncio.sleep(min(_POLL_INTERVAL_S, limits.headers_s / 4, limits.idle_s / 4))
            self.look(server.connections)

    def look(self, connections: list[Any]) -> None:
        """Close the connections that have exceeded a limit."""
        now = self._clock()
        limits = self._limits()
        self._used.intersection_update(connections)
        self._abort(connections, now, limits)
        self._since = {
            one: self._since.get(one, now) for one in connections if one not in self._busy
        }
        closed = 0
        for one, since in sorted(self._since.items(), key=lambda item: item[1]):
            used = one in self._used
            late = now - since >= (limits.idle_s if used else limits.headers_s)
            if not late and len(connections) - closed <= self._most:
                continue
            if late and not used and one.transport is not None:
                one.transport.write(self._too_slow)
            if one.transport is not None:
                self._closing[one] = (one.transport, now)
            one.force_close()
            closed += 1

    def make_room(self, connections: list[Any]) -> None:
        """To admit others, abort connections that are already closing, and the longest idle one if it is old enough."""
        self.look(connections)
        for transport, _ in self._closing.values():
            transport.abort()
        idle = [one for one in self._since if one.transport is not None]
        oldest = min(idle, key=self._since.__getitem__, default=None)
        if oldest is not None and self._clock() - self._since[oldest] >= _YOUNG_S:
            oldest.transport.abort()

    def _abort(self, connections: list[Any], now: float, limits: ConnectionLimits) -> None:
        """Abort connections that are still closing: a peer that does not read keeps the response from being sent.

        The peer has `headers_s` to read it, but no time if there are too many connections.
        """
        here = set(connections)
        self._closing = {one: left for one, left in self._closing.items() if one in here}
        for transport, since in self._closing.values():
            if now - since >= limits.headers_s or len(here) > self._most:
                transport.abort()


def all_descriptors() -> int:
    """Raise the process's descriptor limit to its maximum; return the number of connections that it permits.

    A request in progress takes two descriptors: the client's, and the one to tritonserver.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return max(_OTHERS, most // 2 - _OTHERS)


async def within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    """Await something in the same task with a time limit; 0 means no limit.

    Before Python 3.12, `wait_for` uses a separate task and, on failure, leaves a reference cycle: the objects
    in its frames, such as a request's body, would stay in memory until garbage collection.

    Raises:
        asyncio.TimeoutError: the limit is exceeded
    """
    async with timeout(timeout_s or None):
        return await awaitable


# ── Rate-limited log of errors that clients can cause; it counts them and never shows what clients sent ──


#: Minimum seconds between two lines of the same kind.
_LOG_INTERVAL_S = 10.0


class ErrorLog(logging.Handler):
    """Logs at most one line per kind every ten seconds.

    Also serves as a `logging` handler: messages of aiohttp and asyncio quote requests, including keys, so only the
    message template and the type of the exception are logged.
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._clock = clock
        self._kinds: dict[
            str, tuple[int, float]
        ] = {}  #: occurrences since its last line, and the time of that line

    def count(self, kind: str) -> None:
        """Count an occurrence, and log the number since the last line if the interval has passed."""
        now = self._clock()
        count, logged_at = self._kinds.get(kind, (0, now - _LOG_INTERVAL_S))
        count += 1
        if now - logged_at >= _LOG_INTERVAL_S:
            self._log(f"{kind}: {count}")
            count, logged_at = 0, now
        self._kinds[kind] = (count, logged_at)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record of a library without the arguments of its message."""
        error = record.exc_info[1] if record.exc_info else None
        what = "" if error is None else f" {type(error).__name__} {place_of(error)}"
        head = str(record.msg).partition("\n")[0][:100]
        self.count(f"{record.name}: {head}{what}")


def place_of(error: BaseException) -> str:
    """Return where an exception was raised, without its text, which may contain data from a client."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
