"""Daemons on a virtual clock whose models sleep, and wake when they are asked, or when memory is short."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.files.shared_entries import Entry
from pytriton.dispatcher.elastic.memory import MEMORY, Size
from pytriton.dispatcher.elastic.sharing import Room
from support.fakes.brain import Brain
from support.fakes.fake_clients import model_spec
from support.fakes.fake_worker import FakeWorker
from support.fakes.triton.fake_server import SERVER_PID

MIB = 1 << 20
SLEEPY = messages.Autoscale(0, 4, idle_after_s=60.0)
_SERIAL = itertools.count()


class AskedDaemon:
    """A daemon, and the batches that proxies have for its models."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.brain = Brain(folder, **{"parked_workers": 0, **settings})

    def batch(self, name: str = "m") -> asyncio.Task[Any]:
        """A proxy has a batch, and asks for a worker; return what it is told when it is."""
        key = self.brain.server.models[name].registration
        proxy = f"{name} asks {next(_SERIAL)}"
        message = messages.Attach(key, proxy, SERVER_PID, batch=True)
        task: asyncio.Task[Any] = self.brain.loop.create_task(self.brain.handle(message))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.brain.settle()
        return task

    def info(self, name: str = "m") -> messages.ModelInfo:
        models = self.brain.loop.ask(self.brain.daemon.model_infos)
        return next(one for one in models if one.name == name)

    def state(self, name: str = "m") -> str:
        return self.brain.state_of(name)

    def events(self, name: str = "m") -> list[messages.Event]:
        message = messages.GetEvents(model=name)
        answer = self.brain.answered(self.brain.client.ask(message))
        assert isinstance(answer, messages.EventList)
        return answer.events

    def event(self, kind: str, name: str = "m") -> messages.Event:
        """Return the newest event of a kind."""
        return next(one for one in reversed(self.events(name)) if one.kind == kind)


class Sleeper(AskedDaemon):
    """A daemon whose models fall asleep when nothing was asked of them for a minute.

    Attributes:
        queue: what waits in tritonserver.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.queue: dict[str, int] = {}
        autoscaler = self.brain.daemon.autoscaler
        autoscaler.room = lambda: Room(1000.0)
        autoscaler.queued = self._queued

    async def _queued(self) -> dict[str, int]:
        return self.queue

    def register(self, name: str = "m", **more: Any) -> None:
        spec = model_spec(name, **{"autoscale": SLEEPY, **more})
        self.brain.served(self.brain.client.ask(messages.Register(spec), [b"callable"]))

    def fall_asleep(self) -> None:
        self.brain.advance(70.0)
        assert self.state() == "asleep"


class Budgeted(AskedDaemon):
    """A daemon with a budget of 1,000 MiB; a worker takes what `sizes` says of its model, in MiB."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **{"memory_budget": "1000MiB", **settings})
        self.sizes: dict[str, int] = {}
        self.usual = 300
        self.shared: dict[str, Entry] = {}
        self.brain.daemon.autoscaler.room = lambda: Room(1000.0)
        self.brain.daemon.autoscaler.queued = None
        self.memory = self.brain.daemon.memory
        self.memory.memory = self._memory
        self.memory._shared = lambda: self.shared

    def _memory(self, pid: int) -> Size:
        worker = self.brain.workers[pid - 1]
        assert worker.pid == pid
        if not worker.alive or not worker.ready.done():
            return Size()
        return Size(self.sizes.get(worker._spec.name, self.usual) * MIB)

    def register(
        self, name: str, config: dict[str, Any] | None = None, **more: Any
    ) -> messages.AnyMessage:
        spec = model_spec(name, **{"lazy": True, **more})
        spec = msgspec.structs.replace(spec, config=config or {})
        return self.brain.answered(self.brain.client.ask(messages.Register(spec), [b"callable"]))

    def served(self, name: str, within_s: float = 10.0) -> FakeWorker:
        """A batch gets a worker, which answers it; return that."""
        task = self.batch(name)
        self.wait(task, within_s)
        worker = self.worker(task)
        worker.begin()
        worker.answer()
        self.brain.advance(0.5)
        return worker

    def wait(self, task: asyncio.Task[Any], within_s: float) -> None:
        end = self.brain.loop.time() + within_s
        while not task.done() and self.brain.loop.time() < end:
            self.brain.advance(0.1)
            assert self.taken() <= 1000
        assert task.done(), "it waits"

    def worker(self, task: asyncio.Task[Any]) -> FakeWorker:
        name = task.result().worker
        return next(one for one in self.brain.workers if one.name == name)

    def taken(self) -> int:
        """Return what living workers have, those that load included, in MiB."""
        return sum(self.sizes.get(one._spec.name, self.usual) for one in self.brain.alive())

    def loaded(self) -> set[str]:
        return {one._spec.name for one in self.brain.alive()}

    def status(self) -> messages.Status:
        return self.brain.loop.ask(self.brain.daemon.status)

    def used(self) -> int:
        return self.brain.loop.ask(self.memory.used)[MEMORY] // MIB
