"""Waiting on behalf of a request: until tritonserver is up, or until a model is restored.

Boot scripts register as soon as there is a control socket. If the daemon refused them "for a moment", each of them
would need the retry loop that is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.server.tritonserver import TritonServer

#: How often a client that waits is told so.
_TELL_EVERY_S = 5.0

Report = Callable[[messages.Progress], Awaitable[None]]


class ServerWait:
    """Waits for one request, at most `limit_s` seconds in all; `report` tells its client what for.

    Args:
        what: of the request, for the error when the time is over, such as "model m was not registered"
        server: the tritonserver that has to be up
        restoring: the models that are to be served again
        report: to the client
        limit_s: see above; the setting `busy_timeout_s`
    """

    def __init__(
        self,
        what: str,
        server: TritonServer,
        restoring: Restorer,
        report: Report,
        limit_s: float,
    ) -> None:
        self._what = what
        self._server = server
        self._restoring = restoring
        self._report = report
        self._limit_s = limit_s
        self._deadline = asyncio.get_running_loop().time() + limit_s

    async def until_up(self) -> None:
        """Return when tritonserver is up, and no other one is about to take its place.

        Raises:
            RemoteFailure: it was not in time, or the daemon stops.
        """
        while True:
            change = self._server.news.next
            if self._server.ready and self._server.placed.is_set():
                return
            if self._server.ends:
                raise RemoteFailure(ErrorKind.UNAVAILABLE, f"{self._what}: the daemon is stopping")
            await self._wait(change, "tritonserver is being started")

    async def until_restored(self, name: str) -> None:
        """Return when a model is restored, or could not be.

        Raises:
            RemoteFailure: that was not over in time, or the daemon stops.
        """
        while True:
            await self.until_up()
            self._restoring.ask_for(name)
            change = self._restoring.news.next
            if not self._restoring.waits(name):
                return
            await self._wait(change, f"model {name} is being restored")

    async def _wait(self, change: asyncio.Event, why: str) -> None:
        left_s = self._deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"{self._what}: for {self._limit_s:g} s (busy_timeout_s), {why}. pytriton-daemon status tells how far "
                "it is",
            )
        await self._report(messages.Progress("waiting", f"waiting: {why}"))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(change.wait(), min(left_s, _TELL_EVERY_S))
