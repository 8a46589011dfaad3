"""Changes of a model's instances that nobody asked for: the autoscaler's. They give way to what a client wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pytriton.dispatcher.models.name_reservations import Reservations


class Adaptations:
    """The autoscaler's changes that are under way, by model.

    Args:
        reservations: of models that something is done with
    """

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._tasks: dict[str, asyncio.Task[object]] = {}

    async def make(self, name: str, change: Callable[[], Awaitable[object]]) -> bool:
        """Make one, unless something is done with the model already; whether it was made.

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
        """A client wants something with a model: end what is done with it, and wait until that is undone."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
            await self._reservations.until_free(name)

    def stop(self) -> None:
        """End all of them."""
        for task in self._tasks.values():
            task.cancel()
