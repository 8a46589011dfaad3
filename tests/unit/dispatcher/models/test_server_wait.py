"""What a request waits for, and how long: tritonserver, or a model's restore."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.load_slots import LoadSlots
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Content, Entry
from pytriton.dispatcher.models.server_wait import ServerWait
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.server.tritonserver import TritonServer


class Server:
    """The part of a tritonserver that is awaited."""

    def __init__(self) -> None:
        self.ready = self.is_stopping = False
        self.changes = ChangeSignal()
        self.placed = asyncio.Event()
        self.placed.set()

    def be(self, *, ready: bool = False, is_stopping: bool = False) -> None:
        self.ready, self.is_stopping = ready, is_stopping
        self.changes.notify()


class Client:
    """Records what it is told to wait for."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reported = asyncio.Event()

    async def __call__(self, event: messages.Progress) -> None:
        self.texts.append(event.text)
        self.reported.set()


def _kept(*names: str, slots: LoadSlots | None = None) -> Restorer:
    world = messages.WorkerEnvironment("python")
    return Restorer(
        Content(
            [Entry(0, 0.0, messages.ModelSpec(name, 1, {}, world), [b""]) for name in names], []
        ),
        slots=slots,
    )


def _patience(
    server: Server, client: Client, restoring: Restorer, limit_s: float = 60
) -> ServerWait:
    what = "model m was not registered"
    return ServerWait(what, cast(TritonServer, server), restoring, client, limit_s)


async def _after(
    waiting: Coroutine[Any, Any, None], client: Client, *changes: tuple[Server, dict[str, bool]]
) -> None:
    task = asyncio.ensure_future(waiting)
    await client.reported.wait()
    assert not task.done()
    for server, change in changes:
        server.be(**change)
    await task


def test_a_request_waits_until_tritonserver_is_up() -> None:
    async def main() -> list[str]:
        server, client = Server(), Client()
        patience = _patience(server, client, _kept())
        await _after(patience.until_up(), client, (server, {}), (server, {"ready": True}))
        await patience.until_up()
        return client.texts

    assert set(asyncio.run(main())) == {"waiting: tritonserver is being started"}


def test_a_stop_ends_the_wait() -> None:
    """For example, if tritonserver never starts."""

    async def main() -> None:
        server, client = Server(), Client()
        waiting = _patience(server, client, _kept()).until_up()
        await _after(waiting, client, (server, {"is_stopping": True}))

    with pytest.raises(RemoteFailure, match="model m was not registered: the daemon is stopping"):
        asyncio.run(main())


def test_the_wait_is_limited() -> None:
    async def main() -> None:
        await _patience(Server(), Client(), _kept(), 0.01).until_up()

    with pytest.raises(RemoteFailure) as caught:
        asyncio.run(main())
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert "timed out after 0.01 s, because tritonserver is being started" in str(caught.value)


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_waits_until_a_restore_succeeds_or_fails(fails: bool) -> None:
    async def main() -> list[str]:
        server, client = Server(), Client()
        server.be(ready=True)
        restoring = _kept("first", "m")
        waiting = asyncio.ensure_future(_patience(server, client, restoring).until_restored("m"))

        async def register(entry: Entry) -> None:
            await client.reported.wait()
            if fails:
                raise RemoteFailure(ErrorKind.LOAD_FAILED, "no")

        await restoring.run(register)
        await waiting
        assert restoring.is_restoring("m") is False
        return client.texts

    assert set(asyncio.run(main())) == {"waiting: model m is being restored"}


def test_a_restore_can_be_cancelled_at_any_time() -> None:
    """A running one is rolled back first, a queued one is dropped; the others are restored."""

    async def main() -> list[str]:
        restoring = _kept("now", "later", "last", slots=LoadSlots(most=1))
        begun, undone, served = asyncio.Event(), list[str](), list[str]()

        async def register(entry: Entry) -> None:
            if entry.spec.name == "now":
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    undone.append("now")
            served.append(entry.spec.name)

        running = asyncio.ensure_future(restoring.run(register))
        await begun.wait()
        await restoring.cancel("later")
        assert restoring.forget("later")
        await restoring.cancel("now")
        assert undone == ["now"]
        assert restoring.forget("now")
        await restoring.cancel("never")
        await running
        return served

    assert asyncio.run(main()) == ["last"]
