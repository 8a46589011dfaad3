"""A worker without a process: it greets, loads, fails, serves and ends when a test says so."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pytriton._protocol import messages
from pytriton._protocol.lanes.stats_page import Gauge
from pytriton.dispatcher.workers.process.worker import Worker

SPEC = messages.ModelSpec("m", 1, {}, messages.World("python"))


class FakeWorker(Worker):
    """A worker as the dispatcher sees it; `gauge_of_worker` is its own end of the gauge.

    Args:
        number: its number among all workers
        spec: what it serves
        slot: its place in the registration
        greeted: whether it has said hello already

    Attributes:
        lanes_withdrawn: how often it was asked to send a proxy elsewhere
        told_to_end: somebody wants it to end after its batch
    """

    def __init__(
        self,
        number: int,
        spec: messages.ModelSpec = SPEC,
        slot: int = 0,
        *,
        greeted: bool = True,
    ) -> None:
        gauge, descriptor = Gauge.create()
        self.gauge_of_worker = Gauge(descriptor)
        self.slot = slot
        self.lanes_withdrawn = 0
        self.told_to_end = False
        super().__init__(
            f"w{number}",
            number,
            spec,
            slot,
            lane_path=Path("/nonexistent/lane"),
            gauge=gauge,
            exited=asyncio.get_running_loop().create_future(),
        )
        if greeted:
            self.greet()

    def greet(self) -> None:
        """Say hello."""
        self.greeted.set_result(None)

    def begin(self) -> None:
        """Take a batch."""
        self._begun_ns = self.gauge_of_worker.begin(1)

    def answer(self) -> None:
        """Answer it."""
        self.gauge_of_worker.end(self._begun_ns)

    def end(self, *, in_batch: bool = False) -> None:
        """End by itself, as in a crash."""
        if in_batch:
            self.begin()
        self.exited.set_result(1)

    def _ended(self, exited: asyncio.Future[int]) -> None:
        super()._ended(exited)
        self.gauge_of_worker.close()

    def describe_end(self) -> str:
        return f"worker {self.name} exited"

    def end_record(self) -> messages.WorkerEnd:
        assert self._done is not None
        return messages.WorkerEnd(
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
        self.told_to_end = True
        await asyncio.wait([self.exited])

    async def end_hung(self, why: str) -> None:
        if self.alive:
            self.end()

    async def stop(self, grace_s: float) -> None:
        if self.alive:
            self.exited.set_result(0)
