"""Waits on behalf of a request until tritonserver is up, or until a model is restored.

Boot scripts register models as soon as the control socket exists. Because of this wait, they need no retry loops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.server.tritonserver import TritonServer

#: Interval between progress reports to a waiting client.
_REPORT_INTERVAL_S = 5.0

Report = Callable[[messages.Progress], Awaitable[None]]


class ServerWait:
    """Waits on behalf of one request, at most `limit_s` seconds in total, and tells its client what it is waiting for.

    Args:
        what: the beginning of the timeout error, such as "model m was not registered"
        server: tritonserver
        restoring: the models that are being restored
        report: sends progress to the client
        limit_s: time limit of all waits together, in seconds
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
        """Wait until tritonserver is up and not about to be replaced.

        Raises:
            RemoteFailure: the time limit was exceeded, or the daemon is stopping.
        """
        while True:
            change = self._server.changes.next
            if self._server.ready and self._server.placed.is_set():
                return
            if self._server.is_stopping:
                raise RemoteFailure(ErrorKind.UNAVAILABLE, f"{self._what}: the daemon is stopping")
            await self._wait(change, "tritonserver is being started")

    async def until_restored(self, name: str) -> None:
        """Wait until a model is restored or has failed.

        Raises:
            RemoteFailure: the time limit was exceeded, or the daemon is stopping.
        """
        while True:
            await self.until_up()
            self._restoring.restore_now(name)
            change = self._restoring.changes.next
            if not self._restoring.is_restoring(name):
                return
            await self._wait(change, f"model {name} is being restored")

    async def _wait(self, change: asyncio.Event, why: str) -> None:
        left_s = self._deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"{self._what}: timed out after {self._limit_s:g} s, because {why}. pytriton-daemon status shows the "
                "progress",
            )
        await self._report(messages.Progress("waiting", f"waiting: {why}"))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(change.wait(), min(left_s, _REPORT_INTERVAL_S))
