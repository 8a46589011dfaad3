"""Connections of clients that send nothing, or too slowly, end; so do the oldest of them where there are too many."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import web

__all__ = ["Connections", "Limits", "all_descriptors"]

#: Seconds from one look at all connections to the next; a quarter of a shorter limit.
_LOOK_S = 1.0
#: Seconds for which no connection has to make room: what was sent with its beginning is read until then.
_YOUNG_S = 1.0
#: Descriptors of the process that are no connections.
_OTHERS = 64


class Limits(Protocol):
    """Seconds that a new connection has for its first headers, and one that was answered to take that and ask again."""

    @property
    def headers_s(self) -> float: ...
    @property
    def idle_s(self) -> float: ...


class Connections:
    """The connections of one server. One is idle from its beginning, or from an answer, until it has sent headers.

    Args:
        limits: they are asked for anew each time
        most: how many there may be; beyond, those that are idle the longest are closed
        too_slow: JSON, the answer to headers that did not come in time
    """

    def __init__(
        self,
        limits: Callable[[], Limits],
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
        self._asked: set[Any] = set()
        self._closing: dict[Any, tuple[Any, float]] = {}

    def begins(self, request: web.Request) -> None:
        """Note that the headers of a request have come."""
        self._busy.add(request.protocol)
        self._asked.add(request.protocol)

    def ends(self, request: web.Request) -> None:
        """Note that a request has been answered."""
        self._busy.discard(request.protocol)
        self._since[request.protocol] = self._clock()

    @web.middleware
    async def around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note both: a middleware."""
        self.begins(request)
        try:
            return await handler(request)
        finally:
            self.ends(request)

    async def watch(self, server: web.Server) -> None:
        """Look again and again."""
        while True:
            limits = self._limits()
            await asyncio.sleep(min(_LOOK_S, limits.headers_s / 4, limits.idle_s / 4))
            self.look(server.connections)

    def look(self, connections: list[Any]) -> None:
        """Close what has to be closed of the connections that there are."""
        now = self._clock()
        limits = self._limits()
        self._asked.intersection_update(connections)
        self._abort(connections, now, limits)
        self._since = {
            one: self._since.get(one, now) for one in connections if one not in self._busy
        }
        closed = 0
        for one, since in sorted(self._since.items(), key=lambda item: item[1]):
            asked = one in self._asked
            late = now - since >= (limits.idle_s if asked else limits.headers_s)
            if not late and len(connections) - closed <= self._most:
                continue
            if late and not asked and one.transport is not None:
                one.transport.write(self._too_slow)
            if one.transport is not None:
                self._closing[one] = (one.transport, now)
            one.force_close()
            closed += 1

    def make_room(self, connections: list[Any]) -> None:
        """End the one that is idle the longest, if it is old enough, and what was closed before: others wait."""
        self.look(connections)
        for transport, _ in self._closing.values():
            transport.abort()
        idle = [one for one in self._since if one.transport is not None]
        oldest = min(idle, key=self._since.__getitem__, default=None)
        if oldest is not None and self._clock() - self._since[oldest] >= _YOUNG_S:
            oldest.transport.abort()

    def _abort(self, connections: list[Any], now: float, limits: Limits) -> None:
        """End what was closed before and is still there: a peer that does not read keeps what was written to it.

        It has as long as for its headers to read that, and until now where there are too many connections.
        """
        here = set(connections)
        self._closing = {one: left for one, left in self._closing.items() if one in here}
        for transport, since in self._closing.values():
            if now - since >= limits.headers_s or len(here) > self._most:
                transport.abort()


def all_descriptors() -> int:
    """Let the process have as many descriptors as it may; return the connections that leaves room for.

    A request that is under way takes two of them: its client's, and the one to tritonserver.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return max(_OTHERS, most // 2 - _OTHERS)
