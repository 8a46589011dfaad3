"""DrainController: drain the daemon before its host goes away, without failing requests.

not ready, registrations refused ──▶ keeps serving until balancers have noticed ──▶ stops: answers in-flight requests
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Optional

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.readiness import ReadinessController
from pytriton.dispatcher.shutdown import ShutdownController
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events

_DAY_S = 86400
#: The answer to clients that try to change models.
REFUSAL = "the daemon is draining because its host is going away; use another daemon"


class DrainController:
    """The drain of one daemon. A second request changes its delays.

    Args:
        status: shows the drain
        readiness: is withdrawn
        registry: refuses further registrations
        ending: stops the daemon at the end
        events: receives the decision
        use_grace: sets the grace period for in-flight requests, in seconds
    """

    def __init__(
        self,
        status: DaemonStatus,
        readiness: ReadinessController,
        registry: Registry,
        ending: ShutdownController,
        events: Events,
        use_grace: Callable[[float], None],
    ) -> None:
        self._status = status
        self._readiness = readiness
        self._registry = registry
        self._ending = ending
        self._events = events
        self._use_grace = use_grace
        self._settle_task: Optional[asyncio.Task[None]] = None

    @property
    def under_way(self) -> bool:
        """Return whether the daemon is draining."""
        return self._status.phase == "draining"

    async def begin(self, request: messages.Drain) -> None:
        """Begin to drain. Return at once if the daemon should stop, otherwise when the settle time is over.

        A daemon that is still starting serves no clients, so it can stop at once.

        Raises:
            RemoteFailure: a time is out of range.
        """
        for seconds in (request.settle_s, request.timeout_s or 0.0):
            if not 0 <= seconds <= _DAY_S:
                raise RemoteFailure(ErrorKind.INVALID, f"{seconds} is not between 0 and {_DAY_S} s")
        if self._ending.asked.is_set():
            return
        if request.timeout_s is not None:
            self._use_grace(request.timeout_s)
        settle_s = request.settle_s if self._status.phase in ("ready", "draining") else 0.0
        numbers = {"settle_s": settle_s, "stop": int(request.stop)}
        self._events.emit(kinds.DRAINING, numbers=numbers)
        if self._status.phase == "ready":
            self._status.phase = "draining"
        self._registry.refusal = REFUSAL
        await self._readiness.withdraw()
        if self._settle_task is not None:
            self._settle_task.cancel()
        self._settle_task = asyncio.create_task(self._settle(settle_s, stop=request.stop))
        while not (request.stop or self._settle_task.done()):
            await asyncio.wait([self._settle_task])  # a further request replaces this task

    async def _settle(self, settle_s: float, *, stop: bool) -> None:
        await asyncio.sleep(settle_s)
        if stop:
            self._ending.request("it was drained")
