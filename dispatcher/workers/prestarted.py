"""Worker processes that wait for a model: started and with all imports of our own, while the model sleeps.

A process that says hello is not told what to load before a request wakes the model. That saves what an interpreter
takes to start, and its imports, at the price of its memory; so only the models that fell asleep last have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, ItemsView

from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.process.worker import Worker


class PrestartedWorkers:
    """The parked workers of all models, by the account of the pool. The daemon has one.

    Attributes:
        most: as many are kept; who fell asleep first gives up its own.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._workers: dict[Account, Worker] = {}
        self._held = False
        self._ending = 0
        self._cleaning: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """How many are kept now."""
        return 0 if self._held else self.most

    @property
    def settled(self) -> bool:
        """Whether none is being ended, and none is there while none is to be."""
        return not self._ending and not (self._held and self._workers)

    async def hold(self) -> None:
        """Keep none until `release`, and end all of them."""
        self._held = True
        for owner in list(self._workers):
            await self.drop(owner)

    def release(self) -> None:
        """Keep those of models that fall asleep from now on."""
        self._held = False

    async def put(self, owner: Account, worker: Worker) -> None:
        """Keep a worker of a model that sleeps; end those that are too many."""
        await self.drop(owner)
        self._workers[owner] = worker
        worker.exited.add_done_callback(lambda _: self._ended(owner, worker))
        while len(self._workers) > self.room:
            await self.drop(next(iter(self._workers)))

    def take(self, owner: Account) -> Worker | None:
        """Return a model's own, if it lives; it is parked no longer."""
        worker = self._workers.get(owner)
        if worker is None or not worker.alive:
            return None  # whoever has ended goes by itself
        return self._workers.pop(owner)

    def _ended(self, owner: Account, worker: Worker) -> None:
        """Clean up behind one that has ended by itself, such as by the kernel where memory is short."""
        if self._workers.get(owner) is worker:
            task = asyncio.get_running_loop().create_task(self.drop(owner))
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)

    async def drop(self, owner: Account) -> None:
        """End a model's own, if it has one."""
        worker = self._workers.pop(owner, None)
        if worker is not None:
            worker.leave("idle")
            self._ending += 1
            try:
                await worker.stop(0)
            finally:
                self._ending -= 1

    async def drop_named(self, name: str) -> None:
        """End one by its name, if it is there: its memory is needed."""
        for owner, worker in list(self._workers.items()):
            if worker.name == name:
                await self.drop(owner)

    def items(self) -> ItemsView[Account, Worker]:
        """Return all of them, who fell asleep first at the beginning."""
        return self._workers.items()

    def workers(self) -> Collection[Worker]:
        """Return the workers alone."""
        return self._workers.values()
