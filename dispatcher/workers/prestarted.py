"""Prestarted workers: processes, kept for suspended models, that have already imported our modules.

A prestarted worker connects to the daemon, but loads its model only when a request resumes the model. This saves the
start of an interpreter and its imports, but costs memory. So only the most recently suspended models have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, ItemsView

from pytriton.dispatcher.runtime.tasks import run_in_background
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.worker import Worker


class PrestartedWorkers:
    """The prestarted workers of all models. The memory account of a pool identifies its worker.

    Attributes:
        max_workers: Maximum number of workers. Beyond it, the worker of the longest-suspended model is stopped.
    """

    def __init__(self, max_workers: int) -> None:
        self.max_workers = max_workers
        self._workers: dict[Account, Worker] = {}
        self._held = False
        self._stopping = 0
        self._cleanup_tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """Current maximum number of prestarted workers; 0 between `hold` and `release`."""
        return 0 if self._held else self.max_workers

    @property
    def is_quiescent(self) -> bool:
        """Whether no prestarted worker is being stopped or, between `hold` and `release`, still running."""
        return not self._stopping and not (self._held and self._workers)

    async def hold(self) -> None:
        """Stop all prestarted workers. Keep none until `release` is called."""
        self._held = True
        for owner in list(self._workers):
            await self.drop(owner)

    def release(self) -> None:
        """Allow prestarted workers again after `hold`."""
        self._held = False

    async def put(self, owner: Account, worker: Worker) -> None:
        """Keep a prestarted worker for a suspended model. Stop the oldest ones beyond the limit."""
        await self.drop(owner)
        self._workers[owner] = worker
        worker.exited.add_done_callback(lambda _: self._on_exit(owner, worker))
        while len(self._workers) > self.room:
            await self.drop(next(iter(self._workers)))

    def take(self, owner: Account) -> Worker | None:
        """Remove and return a model's prestarted worker; None if it has none or the worker has exited."""
        worker = self._workers.get(owner)
        if worker is None or not worker.alive:
            return None  # `_on_exit` removes a worker that exited
        return self._workers.pop(owner)

    def _on_exit(self, owner: Account, worker: Worker) -> None:
        """Clean up after a worker that exited unexpectedly, for example because the OOM killer killed it."""
        if self._workers.get(owner) is worker:
            run_in_background(self._cleanup_tasks, self.drop(owner))

    async def drop(self, owner: Account) -> None:
        """Stop the prestarted worker of a model, if there is one."""
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
        """Return the accounts and their workers, starting with the model that has been suspended longest."""
        return self._workers.items()

    def workers(self) -> Collection[Worker]:
        """Return all prestarted workers."""
        return self._workers.values()
