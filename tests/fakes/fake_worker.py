"""A worker without a process: it says hello, loads, fails, serves and exits when the test says so."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pytriton._protocol import messages
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.dispatcher.workers.worker import Worker

SPEC = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))


class FakeWorker(Worker):
    """A worker as the dispatcher sees it; `stats_of_worker` is the worker's end of the statistics page.

    Args:
        number: its number among all workers
        spec: the model that it serves
        slot: its place in the registration
        greeted: whether it has already said hello

    Attributes:
        lanes_withdrawn: how often it was asked to give up a proxy
        is_ending: whether it was asked to exit after its batch
    """

    def __init__(
        self, number: int, spec: messages.ModelSpec = SPEC, slot: int = 0, *, greeted: bool = True
    ) -> None:
        stats, descriptor = WorkerStatsPage.create()
        self.stats_of_worker = WorkerStatsPage(descriptor)
        self.slot = slot
        self.lanes_withdrawn = 0
        self.is_ending = False
        super().__init__(
            f"w{number}",
            number,
            spec,
            slot,
            lane_path=Path("/nonexistent/lane"),
            stats=stats,
            exited=asyncio.get_running_loop().create_future(),
        )
        if greeted:
            self.greet()

    def greet(self) -> None:
        """Say hello."""
        self.greeted.set_result(None)

    def begin(self) -> None:
        """Start a batch."""
        self._begun_ns = self.stats_of_worker.begin(1)

    def answer(self) -> None:
        """Finish the batch."""
        self.stats_of_worker.end(self._begun_ns)

    def become_due(
        self, reason: messages.RecycleReason = messages.RecycleReason.MAX_BATCHES
    ) -> None:
        """Become due for recycling."""
        self.request_recycle(messages.WorkerRecycleDue(self.name, reason, reason.value))

    def end(self, *, in_batch: bool = False) -> None:
        """Exit by itself, as in a crash."""
        if in_batch:
            self.begin()
        self.exited.set_result(1)

    def _ended(self, exited: asyncio.Future[int]) -> None:
        super()._ended(exited)
        self.stats_of_worker.close()

    def describe_end(self) -> str:
        return f"worker {self.name} exited"

    def end_record(self) -> messages.WorkerExit:
        assert self._done is not None
        return messages.WorkerExit(
            time.time(),
            self.name,
            self.pid,
            self.describe_end(),
            batches=self._done.answered,
            in_batch=self._done.begun > self._done.answered,
        )

    async def withdraw_lane(self) -> None:
        self.lanes_withdrawn += 1

    async def end_after_batch(self) -> None:
        self.is_ending = True
        await asyncio.wait([self.exited])

    async def end_hung(self, why: str) -> None:
        if self.alive:
            self.end()

    async def stop(self, grace_s: float) -> None:
        if self.alive:
            self.exited.set_result(0)
