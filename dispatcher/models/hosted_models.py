"""Models that run in threads of the process that registered them. They end with that process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.workers.hosted_worker import Registrant

_log = structlog.get_logger(__name__)


class HostedModels:
    """Unregisters models whose registrants have exited.

    Args:
        end: unregisters a model unless its name now belongs to another one
    """

    def __init__(self, end: Callable[[Registration], Awaitable[None]]) -> None:
        self._end = end
        self._ending: set[asyncio.Task[None]] = set()

    def expect(self, registration: Registration, registrant: Registrant) -> None:
        """Unregister a model when its registrant exits, unless the registrant was released first."""
        registrant.ended.add_done_callback(partial(self._orphaned, registration, registrant.pid))

    def _orphaned(self, registration: Registration, pid: int, ended: asyncio.Future[None]) -> None:
        if ended.cancelled():
            return
        task = asyncio.get_running_loop().create_task(
            self._unregister_after_exit(registration, pid)
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _unregister_after_exit(self, registration: Registration, pid: int) -> None:
        name = registration.spec.name
        _log.error("process that hosted a model exited", model=name, pid=pid)
        await registration.pool.disable(
            f"model {name}: process {pid}, which ran it in its threads (isolation='thread'), has ended"
        )
        try:
            await self._end(registration)
        except RemoteFailure as failure:
            _log.error("failed to unregister a model", model=name, reason=failure.text)
