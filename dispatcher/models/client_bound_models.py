"""Models that are unregistered when a process exits, because they are bound to it or run in its threads."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.control.pending_requests import when_exited
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.workers.hosted_worker import Registrant

_log = structlog.get_logger(__name__)


class ClientBoundModels:
    """Models that are served until the process that registered them exits.

    Args:
        end: unregisters a model, unless it has been unregistered already
    """

    def __init__(self, end: Callable[[Registration], Awaitable[None]]) -> None:
        self._end = end
        #: Weak references, so that a replaced or unregistered model and its payloads are freed before the process
        #: exits.
        self._of: dict[int, weakref.WeakSet[Registration]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, registration: Registration, pid: int) -> None:
        """Unregister a model when the process exits. If the process cannot be watched, the model stays registered."""
        if pid in self._of:
            self._of[pid].add(registration)
            return

        def vanished() -> None:
            stop_watching()
            for registration in self._of.pop(pid):
                task = loop.create_task(self._take_down(registration))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

        loop = asyncio.get_running_loop()
        self._of[pid] = weakref.WeakSet([registration])
        stop_watching = when_exited(pid, vanished)

    def owner_of(self, registration: Registration) -> int | None:
        """Return the pid of the process that a registration is bound to, or None."""
        return next((pid for pid, those in self._of.items() if registration in those), None)

    @property
    def ending(self) -> bool:
        """Whether a client-bound model is being unregistered, or is about to be."""
        return bool(self._ending)

    async def _take_down(self, registration: Registration) -> None:
        try:
            await self._end(registration)
        except RemoteFailure as failure:
            _log.error(
                "client-bound model was not unregistered",
                model=registration.spec.name,
                reason=failure.text,
            )


class HostedModels:
    """Models that run in threads of their registrant, the process that registered them.

    Args:
        end: unregisters a model, unless another one has replaced it
    """

    def __init__(self, end: Callable[[Registration], Awaitable[None]]) -> None:
        self._end = end
        self._ending: set[asyncio.Task[None]] = set()

    def expect(self, registration: Registration, registrant: Registrant) -> None:
        """Unregister a model when its registrant exits, unless the registrant is released first."""
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
            f"model {name}: process {pid}, which ran the model in its threads (isolation='thread'), has exited"
        )
        try:
            await self._end(registration)
        except RemoteFailure as failure:
            _log.error("could not unregister a model", model=name, reason=failure.text)
