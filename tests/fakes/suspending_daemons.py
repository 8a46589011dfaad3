"""Daemons on a virtual clock whose models are suspended, and resumed by requests or when memory allows."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec

from fakes.fake_clients import model_spec
from fakes.fake_worker import FakeWorker
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import SERVER_PID
from pytriton._protocol import messages
from pytriton._protocol.files.shared_entries import SharedEntry
from pytriton.dispatcher.scaling.memory_policy import MEMORY, Size
from pytriton.dispatcher.scaling.policy import MachineResources

MIB = 1 << 20
SLEEPY = messages.Autoscale(0, 4, idle_after_s=60.0)
_SERIAL = itertools.count()


class SuspendingDaemon:
    """A daemon, and the batches of its models' proxies."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.sim = SimulatedDaemon(folder, **{"prestarted_workers": 0, **settings})

    def batch(self, name: str = "m") -> asyncio.Task[Any]:
        """Have a proxy ask for a worker for a batch; return the answer once there is one."""
        key = self.sim.server.models[name].registration
        proxy = f"{name} asks {next(_SERIAL)}"
        message = messages.Attach(key, proxy, SERVER_PID, batch=True)
        task: asyncio.Task[Any] = self.sim.loop.create_task(self.sim.handle(message))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.sim.settle()
        return task

    def info(self, name: str = "m") -> messages.ModelInfo:
        models = self.sim.loop.ask(self.sim.services.status.model_infos)
        return next(one for one in models if one.name == name)

    def state(self, name: str = "m") -> str:
        return self.sim.state_of(name)

    def events(self, name: str = "m") -> list[messages.Event]:
        message = messages.GetEvents(model=name)
        answer = self.sim.answered(self.sim.client.ask(message))
        assert isinstance(answer, messages.EventList)
        return answer.events

    def event(self, kind: str, name: str = "m") -> messages.Event:
        """Return the newest event of a kind."""
        return next(one for one in reversed(self.events(name)) if one.kind == kind)


class Sleeper(SuspendingDaemon):
    """A daemon whose models are suspended after a minute without requests.

    Attributes:
        queue: requests waiting in tritonserver.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.queue: dict[str, int] = {}
        autoscaler = self.sim.services.autoscaler
        autoscaler.resources = lambda: MachineResources(1000.0)
        autoscaler.queued = self._queued

    async def _queued(self) -> dict[str, int]:
        return self.queue

    def register(self, name: str = "m", **more: Any) -> None:
        spec = model_spec(name, **{"autoscale": SLEEPY, **more})
        self.sim.served(self.sim.client.ask(messages.Register(spec), [b"callable"]))

    def fall_asleep(self) -> None:
        self.sim.advance(70.0)
        assert self.state() == "suspended"


class Budgeted(SuspendingDaemon):
    """A daemon with a budget of 1,000 MiB; `sizes` gives the memory of each model's workers, in MiB."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **{"memory_budget": "1000MiB", **settings})
        self.sizes: dict[str, int] = {}
        self.usual = 300
        self.shared: dict[str, SharedEntry] = {}
        self.sim.services.autoscaler.resources = lambda: MachineResources(1000.0)
        self.sim.services.autoscaler.queued = self._queued
        self.memory = self.sim.services.memory
        self.memory.memory = self._memory
        self.memory._shared = lambda: self.shared

    async def _queued(self) -> dict[str, int]:
        return {}

    def _memory(self, pid: int) -> Size:
        worker = self.sim.workers[pid - 1]
        assert worker.pid == pid
        if not worker.alive or not worker.ready.done():
            return Size()
        return Size(self.sizes.get(worker._spec.name, self.usual) * MIB)

    def register(
        self, name: str, config: dict[str, Any] | None = None, **more: Any
    ) -> messages.AnyMessage:
        spec = model_spec(name, **{"lazy": True, **more})
        spec = msgspec.structs.replace(spec, config=config or {})
        return self.sim.answered(self.sim.client.ask(messages.Register(spec), [b"callable"]))

    def served(self, name: str, within_s: float = 10.0) -> FakeWorker:
        """Have a batch answered; return the worker that answered it."""
        task = self.batch(name)
        self.wait(task, within_s)
        worker = self.worker(task)
        worker.begin()
        worker.answer()
        self.sim.advance(0.5)
        return worker

    def wait(self, task: asyncio.Task[Any], within_s: float) -> None:
        end = self.sim.loop.time() + within_s
        while not task.done() and self.sim.loop.time() < end:
            self.sim.advance(0.1)
            assert self.taken() <= 1000
        assert task.done(), "it waits"

    def worker(self, task: asyncio.Task[Any]) -> FakeWorker:
        name = task.result().worker
        return next(one for one in self.sim.workers if one.name == name)

    def taken(self) -> int:
        """Return the memory of live workers, including loading ones, in MiB."""
        return sum(self.sizes.get(one._spec.name, self.usual) for one in self.sim.alive())

    def loaded(self) -> set[str]:
        return {one._spec.name for one in self.sim.alive()}

    def status(self) -> messages.Status:
        return self.sim.loop.ask(self.sim.services.status.status)

    def used(self) -> int:
        return self.sim.loop.ask(self.memory.used)[MEMORY] // MIB
