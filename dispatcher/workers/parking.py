"""Worker processes that wait for a model: started and with all imports of our own, while the model sleeps.

A process that says hello is not told what to load before a request wakes the model. That saves what an interpreter
takes to start, and its imports, at the price of its memory; so only the models that fell asleep last have one.
"""

from __future__ import annotations

from pytriton.dispatcher.workers.one_worker.worker import Worker


class Parking:
    """The parked workers of all models, by the registration's key. The daemon has one.

    Attributes:
        most: as many are kept; who fell asleep first gives up its own.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._workers: dict[object, Worker] = {}

    async def put(self, owner: object, worker: Worker) -> None:
        """Keep a worker of a model that sleeps; end those that are too many."""
        await self.drop(owner)
        self._workers[owner] = worker
        while len(self._workers) > self.most:
            await self.drop(next(iter(self._workers)))

    def take(self, owner: object) -> Worker | None:
        """Return a model's own, if it lives; it is parked no longer."""
        worker = self._workers.pop(owner, None)
        return worker if worker is not None and worker.alive else None

    async def drop(self, owner: object) -> None:
        """End a model's own, if it has one."""
        worker = self._workers.pop(owner, None)
        if worker is not None:
            worker.leave("idle")
            await worker.stop(0)
