"""Prestarted workers: processes that have started and imported our modules while their model is suspended.

A prestarted worker connects to the daemon, but loads its model only when a request wakes the model. This saves the
start of the interpreter and its imports, at the price of memory. So only the models that were suspended most recently
have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, ItemsView

from pytriton.dispatcher.runtime.tasks import run_in_background
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.worker import Worker


class PrestartedWorkers:
    """The prestarted workers of all models, by the account of the pool. The daemon has one of these.

    Attributes:
        max_workers: Maximum number of prestarted workers. Beyond it, the worker of the model that has been suspended
            longest is stopped.
    """

    def __init__(self, max_workers: int) -> None:
        self.max_workers = max_workers
        self._workers: dict[Account, Worker] = {}
        self._held = False
        self._stopping = 0
        self._cleanup_tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """Maximum number of prestarted workers now; 0 while held."""
        return 0 if self._held else self.max_workers

    @property
    def is_quiescent(self) -> bool:
        """Whether no worker is being stopped, and, while held, none is left."""
        return not self._stopping and not (self._held and self._workers)

    async def hold(self) -> None:
        """Stop all prestarted workers, and keep none until `release`."""
        self._held = True
        for owner in list(self._workers):
            await self.drop(owner)

    def release(self) -> None:
        """Keep workers of models that are suspended from now on."""
        self._held = False

    async def put(self, owner: Account, worker: Worker) -> None:
        """Keep a worker for a suspended model, and stop the oldest workers beyond the limit."""
        await self.drop(owner)
        self._workers[owner] = worker
        worker.exited.add_done_callback(lambda _: self._on_exit(owner, worker))
        while len(self._workers) > self.room:
            await self.drop(next(iter(self._workers)))

    def take(self, owner: Account) -> Worker | None:
        """Remove and return a model's prestarted worker if it is alive, otherwise None."""
        worker = self._workers.get(owner)
        if worker is None or not worker.alive:
            return None  # `_on_exit` removes a worker that exited
        return self._workers.pop(owner)

    def _on_exit(self, owner: Account, worker: Worker) -> None:
        """Clean up after a worker that exited unexpectedly, for example killed by the OOM killer."""
        if self._workers.get(owner) is worker:
            run_in_background(self._cleanup_tasks, self.drop(owner))

    async def drop(self, owner: Account) -> None:
        """Stop a model's prestarted worker, if it has one."""
        worker = self._workers.pop(owner, None)
        if worker is not None:
            worker.expect_exit("idle")
            self._stopping += 1
            try:
                await worker.stop(0)
            finally:
                self._stopping -= 1

    async def drop_named(self, name: str) -> None:
        """Stop the prestarted worker with this name, if there is one, because its memory is needed."""
        for owner, worker in list(self._workers.items()):
            if worker.name == name:
                await self.drop(owner)

    def items(self) -> ItemsView[Account, Worker]:
        """Return all accounts and workers, the longest-suspended model first."""
        return self._workers.items()

    def workers(self) -> Collection[Worker]:
        """Return all prestarted workers."""
        return self._workers.values()
