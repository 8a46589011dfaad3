"""A daemon with models that sleep and wake, on a virtual clock, and the batches that proxies have for them."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from pytriton.dispatcher.elastic.sharing import Room
from pytriton.ipc import messages
from support.fakes.brain import Brain
from support.fakes.fake_clients import model_spec
from support.fakes.fake_server import SERVER_PID

SLEEPY = messages.Autoscale(0, 4, idle_after_s=60.0)
_SERIAL = itertools.count()


class Sleeper:
    """A daemon, and the batches that proxies have for its models.

    Attributes:
        queue: what waits in tritonserver.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.brain = Brain(folder, **{"parked_workers": 0, **settings})
        self.queue: dict[str, int] = {}
        autoscaler = self.brain.daemon.autoscaler
        autoscaler.room = lambda: Room(1000.0)
        autoscaler.queued = self._queued

    async def _queued(self) -> dict[str, int]:
        return self.queue

    def register(self, name: str = "m", **more: Any) -> None:
        spec = model_spec(name, **{"autoscale": SLEEPY, **more})
        self.brain.served(self.brain.client.ask(messages.Register(spec), [b"callable"]))

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

    def event(self, kind: str) -> messages.Event:
        return next(one for one in reversed(self.events()) if one.kind == kind)

    def fall_asleep(self) -> None:
        self.brain.advance(70.0)
        assert self.state() == "asleep"
