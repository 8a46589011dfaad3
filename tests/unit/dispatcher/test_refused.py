"""A model that tritonserver does not take, though workers could serve it, is loaded again until it does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.fake_worker import SPEC, FakeWorker

from pytriton.dispatcher.models import model_in_triton
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.state_dir import Entry
from pytriton.dispatcher.workers.backoff import RestartPolicy
from pytriton.dispatcher.workers.worker import Worker
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure


class Server:
    """Refuses to load as often as it is told to."""

    ready = True

    def __init__(self) -> None:
        self.refusals = 0
        self.loads = 0
        self.loaded = asyncio.Event()

    async def load(self, name: str, config: Any) -> None:
        self.loads += 1
        if self.refusals:
            self.refusals -= 1
            raise RemoteFailure(ErrorKind.LOAD_FAILED, "no memory")
        self.loaded.set()

    async def unload(self, name: str) -> None:
        pass

    async def until_up(self) -> None:
        """Of patience, which there is no need for here."""


def test_a_model_that_was_refused_after_a_restart_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_in_triton, "_LOAD_AGAIN_S", 0.01)

    async def start(spec: messages.ModelSpec, slot: int, registrant: object) -> Worker:
        worker = FakeWorker(slot)
        worker.loaded()
        return worker

    async def report(_: messages.Progress) -> None:
        pass

    async def test() -> None:
        server: Any = Server()
        policy = RestartPolicy(10.0, None, 0.1, 0.1)
        entry = Entry(1, 0.0, SPEC, [b""])
        one = Registration("r", entry, start, policy, "ipc://nowhere")
        await one.start(server, tmp_path, report, server, unready_after_s=1000, grace_s=1)
        server.refusals = 3
        server.loaded.clear()
        one.forget_proxies()
        await one.load_again(server, loaded=False)
        await server.loaded.wait()
        await one.pool.until(lambda: one.ready)
        assert server.loads == 1 + 3 + 1
        assert one.state == "ready"
        one.begin_stop()
        await one.stop(0, "the test is over")

    asyncio.run(asyncio.wait_for(test(), 60))
