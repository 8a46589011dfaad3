"""Changes of models that nobody asked for: of their instances, and sleep. They give way to what a client wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pytriton.dispatcher.models.name_reservations import Reservations
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.workers.concurrent_loads import report_to_nobody


class BackgroundChanges:
    """The changes under way that the autoscaler wants, or the memory budget, by model.

    Args:
        reservations: of models that something is done with
        served: the models
        server: tritonserver
        grace_s: tells what batches get to end in
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
        """Give a model as many instances as its load takes; return whether it has them.

        With none, it falls asleep if nothing is under way. It gives way to whatever a client wants with the model: then
        it is as it was. It is not kept: after a start, the model begins with what was last asked for.

        Raises:
            RemoteFailure: a new worker failed; it is as it was.
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
                await registration.fall_asleep(idle_s, grace_s)

        return await self._make(registration.spec.name, change)

    async def put_to_sleep(self, registration: Registration, idle_s: float, why: str) -> bool:
        """Have a model sleep for others, if nothing is under way; return whether it does."""
        if not self.is_at_rest(registration):
            return False

        async def change() -> None:
            if registration.pool.at_rest() is not None:
                await registration.fall_asleep(idle_s, self._grace_s(), why)

        await self._make(registration.spec.name, change)
        return registration.pool.sleep.asleep

    def is_at_rest(self, registration: Registration) -> bool:
        """Whether nobody changes a registration, and it serves, or its workers crash."""
        is_there = self._serves(registration) or (
            self._is_current(registration)
            and registration.in_triton.is_out
            and registration.pool.is_hopeless
        )
        return is_there and self._reservations.is_free(registration.spec.name)

    def _serves(self, registration: Registration) -> bool:
        return self._is_current(registration) and registration.ready

    def _is_current(self, registration: Registration) -> bool:
        current = self._served.names.get(registration.spec.name)
        may_be = self._server.placed.is_set() and not (self._stopping or self._held)
        return current is registration and self._server.ready and may_be

    async def _make(self, name: str, change: Callable[[], Awaitable[object]]) -> bool:
        """Make a change, unless something is done with the model already; return whether it was made.

        Raises:
            RemoteFailure: it failed.
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

    async def give_way(self, name: str) -> None:
        """End a change of a model, since a client wants something with it, and wait until that is undone."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
            await self._reservations.until_free(name)

    def stop(self) -> None:
        """End all of them, and make no more."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()

    def hold(self) -> None:
        """End all of them, and make none until `release`; no model wakes meanwhile, and its batches wait."""
        self._held = True
        for task in self._tasks.values():
            task.cancel()
        for registration in self._served.keys.values():
            registration.pool.hold()

    async def release(self) -> None:
        """Make changes again, and wake models that batches wait for."""
        self._held = False
        for registration in list(self._served.keys.values()):
            registration.pool.sleep.held = False
            await registration.pool.wake()
