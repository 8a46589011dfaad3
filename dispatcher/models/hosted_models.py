"""Models that run in threads of the process that registered them: when that ends, they are gone, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.workers.process.registrant import Registrant

_log = structlog.get_logger(__name__)


class HostedModels:
    """Ends the registrations whose registrants have ended.

    Args:
        end: unregisters one of them, unless another one has its name by now
    """

    def __init__(self, end: Callable[[Registration], Awaitable[None]]) -> None:
        self._end = end
        self._ending: set[asyncio.Task[None]] = set()

    def expect(self, registration: Registration, registrant: Registrant) -> None:
        """End a registration when its registrant ends, unless that has been released by then."""
        registrant.ended.add_done_callback(partial(self._orphaned, registration, registrant.pid))

    def _orphaned(self, registration: Registration, pid: int, ended: asyncio.Future[None]) -> None:
        if ended.cancelled():
            return
        task = asyncio.get_running_loop().create_task(self._bury(registration, pid))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _bury(self, registration: Registration, pid: int) -> None:
        name = registration.spec.name
        _log.error("the process that ran a model in its threads has ended", model=name, pid=pid)
        await registration.pool.give_up(
            f"model {name}: process {pid}, which ran it in its threads (isolation='thread'), has ended"
        )
        try:
            await self._end(registration)
        except RemoteFailure as failure:
            _log.error("model was not unregistered in order", model=name, reason=failure.text)
