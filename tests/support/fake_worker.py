"""A worker of the dispatcher's without a process: for tests of what is done about its end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pytriton.dispatcher.workers.worker import Worker
from pytriton.ipc import messages
from pytriton.ipc.lanes.gauge import Gauge

SPEC = messages.ModelSpec("m", 1, {}, messages.World("python"))


class FakeWorker(Worker):
    """A worker without a process: it ends when told to."""

    def __init__(self, number: int) -> None:
        gauge, fd = Gauge.create()
        self.own = Gauge(fd)
        super().__init__(
            f"w{number}", number, SPEC, 0, lane_path=Path("/nonexistent/lane"), gauge=gauge,
            exited=asyncio.get_running_loop().create_future(),
        )  # fmt: skip
        self.greeted.set_result(None)

    def end(self, *, in_batch: bool = False) -> None:
        if in_batch:
            self.own.begin(1)
        self.exited.set_result(1)

    def describe_end(self) -> str:
        return f"worker {self.name} exited"

    def end_record(self) -> messages.WorkerEnd:
        assert self._done is not None
        return messages.WorkerEnd(
            time.time(), self.name, self.pid, self.describe_end(), batches=self._done.answered,
            in_batch=self._done.begun > self._done.answered,
        )  # fmt: skip

    async def stop(self, grace_s: float) -> None:
        if self.alive:
            self.exited.set_result(0)
