"""Changes that the daemon makes on its own: autoscaling and suspension. Requests from clients preempt them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pytriton.dispatcher.models.deployer import Reservations
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.workers.pool import report_to_nobody


class BackgroundChanges:
    """The background changes in progress, for the autoscaler and the memory budget.

    Args:
        reservations: the names of models that are being changed
        served: the models
        server: tritonserver
        grace_s: returns the grace period for running batches, in seconds
    """

    def __init__(
        self,
        reservations: Reservations,
        served: ServedModels,
        server: TritonServer,
        grace_s: Callable[[], float],
    ) -> None:
        self._reservations = reservations
        self._served = served
        self._server = server
        self._grace_s = grace_s
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._stopping = self._held = False

    async def follow_load(
        self, registration: Registration, instances: int, *, idle_s: float = 0.0
    ) -> bool:
        """Scale a model to the number of instances that its load needs. Return whether it was scaled.

        With 0 instances, suspend the model if it is idle. A client's request for the model preempts and undoes the
        change. The number is not persisted: after a restart the model has the last number that a client set.

        Raises:
            RemoteFailure: a new worker failed; the change was undone.
        """
        rules = registration.spec.autoscale
        if rules is None or not self._serves(registration):
            return False
        grace_s = self._grace_s()

        async def change() -> None:
            count = max(1, instances)
            if instances > registration.instances or count != registration.spec.instances:
                await registration.scale(count, self._server, report_to_nobody, grace_s, rules)
            if not instances and registration.ready and not registration.pool.busy:
                await registration.suspend(idle_s, grace_s)

        return await self._apply(registration.spec.name, change)

    async def suspend(self, registration: Registration, idle_s: float, why: str) -> bool:
        """Suspend a model to free resources for others, if it is idle. Return whether it was suspended."""
        if not self.is_quiescent(registration):
            return False

        async def change() -> None:
            if registration.pool.answered_if_idle() is not None:
                await registration.suspend(idle_s, self._grace_s(), why)

        await self._apply(registration.spec.name, change)
        return registration.pool.suspension.suspended

    def is_quiescent(self, registration: Registration) -> bool:
        """Return whether no change is in progress and the model is either serving or in a crash loop."""
        is_there = self._serves(registration) or (
            self._is_current(registration)
            and registration.in_triton.is_unloaded_by_daemon
            and registration.pool.is_crash_looping
        )
        return is_there and self._reservations.is_free(registration.spec.name)

    def _serves(self, registration: Registration) -> bool:
        return self._is_current(registration) and registration.ready

    def _is_current(self, registration: Registration) -> bool:
        current = self._served.names.get(registration.spec.name)
        may_be = self._server.placed.is_set() and not (self._stopping or self._held)
        return current is registration and self._server.ready and may_be

    async def _apply(self, name: str, change: Callable[[], Awaitable[object]]) -> bool:
        """Make a change unless the model is being changed already. Return whether it was made.

        Raises:
            RemoteFailure: the change failed.
        """
        if not self._reservations.is_free(name):
            return False
        with self._reservations.reserve(name) as task:
            self._tasks[name] = task
            try:
                await change()
            except asyncio.CancelledError:
                return False
            finally:
                del self._tasks[name]
        return True

    async def preempt(self, name: str) -> None:
        """Make way for a client's change to a model: cancel the background change, and wait until it is undone."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
            await self._reservations.until_free(name)

    def stop(self) -> None:
        """Cancel all background changes and accept no more."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()

    def hold(self) -> None:
        """Cancel all background changes, and start none until `release` is called.

        No model is resumed in that time: batches for suspended models wait.
        """
        self._held = True
        for task in self._tasks.values():
            task.cancel()
        for registration in self._served.keys.values():
            registration.pool.hold()

    async def release(self) -> None:
        """Allow changes again, and resume the suspended models for which batches are waiting."""
        self._held = False
        for registration in list(self._served.keys.values()):
            registration.pool.suspension.held = False
            await registration.pool.notify_waiters()
