"""Client-bound models: each is served until the process that registered it exits."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.control.pending_requests import when_exited
from pytriton.dispatcher.models.registration import Registration

_log = structlog.get_logger(__name__)


class ClientBoundModels:
    """Maps processes to the registrations that are bound to them.

    Args:
        end: unregisters a model unless that has already happened
    """

    def __init__(self, end: Callable[[Registration], Awaitable[None]]) -> None:
        self._end = end
        #: Weak references, so that a replaced or unregistered model and its payloads are freed before the process
        #: exits.
        self._of: dict[int, weakref.WeakSet[Registration]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, registration: Registration, pid: int) -> None:
        """Unregister a model when the process exits. If the kernel cannot watch the process, the model stays."""
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
        """Return the pid that a registration is bound to, or None."""
        return next((pid for pid, those in self._of.items() if registration in those), None)

    @property
    def ending(self) -> bool:
        """Return whether a model is being unregistered, or is about to be."""
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
