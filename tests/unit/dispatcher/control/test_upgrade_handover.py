"""The control socket during an upgrade of the daemon: a real ROUTER, and real client sockets."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing

import pytest

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient, ControlTimeout, identity_of
from pytriton.dispatcher.control.control_socket import ControlServer, Peer

CHANGE, LOOK = messages.Unregister("m"), messages.ListModels()


@pytest.fixture
def endpoint() -> Iterator[str]:
    """`tmp_path` may exceed the 107 bytes of a unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as path:
        yield f"ipc://{path}/c"


class Scene:
    """A control server running in a task, and the requests that it received."""

    def __init__(self, endpoint: str) -> None:
        self.heard: list[messages.AnyMessage] = []
        self.until: asyncio.Event | None = None  #: ... a change is finished
        self.server = ControlServer(endpoint, self._handle)
        self.server.bind()
        self.serving = asyncio.create_task(self.server.serve())
        self.endpoint = endpoint

    async def _handle(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage:
        self.heard.append(message)
        if message == CHANGE and self.until is not None:
            await self.until.wait()
        return messages.Done()

    def ask(self, message: messages.AnyMessage) -> asyncio.Task[messages.AnyMessage]:
        """Send a request from a thread, on a new connection."""

        def ask() -> messages.AnyMessage:
            with closing(ControlClient(self.endpoint)) as client:
                return client.ask(message, timeout_s=30)

        return asyncio.create_task(asyncio.to_thread(ask))


@asynccontextmanager
async def serving(endpoint: str) -> AsyncIterator[Scene]:
    scene = Scene(endpoint)
    try:
        yield scene
    finally:
        scene.serving.cancel()
        await scene.server.close()


async def test_connections_during_a_suspension_wait(endpoint: str) -> None:
    """Twice, because a failed upgrade may be retried."""
    async with serving(endpoint) as scene:
        for _ in range(2):
            assert await scene.ask(LOOK) == messages.Done()
            await scene.server.suspend()
            asked = scene.ask(LOOK)
            done, _ = await asyncio.wait([asked], timeout=0.2)
            assert not done
            scene.server.bind()
            assert await asked == messages.Done()
        assert not scene.serving.done()


async def test_another_version_listens_on_the_same_socket(endpoint: str) -> None:
    async with serving(endpoint) as scene:
        await scene.server.suspend()
        asked = scene.ask(LOOK)
        other = ControlServer(endpoint, scene._handle)
        other.bind(os.dup(scene.server.listener))  # its descriptors are not this one's
        task = asyncio.create_task(other.serve())
        assert await asked == messages.Done()
        task.cancel()
        await other.close()


async def test_changes_wait_during_an_upgrade_and_queries_do_not(endpoint: str) -> None:
    async with serving(endpoint) as scene:
        scene.server.hold()
        change = scene.ask(CHANGE)
        assert await scene.ask(LOOK) == messages.Done()
        assert scene.heard == [LOOK]
        assert scene.server.changing == 0
        scene.server.release()
        assert await change == messages.Done()
        assert scene.heard == [LOOK, CHANGE]


async def test_bound_sockets_are_not_rebound(endpoint: str) -> None:
    async with serving(endpoint) as scene:
        with pytest.raises(RuntimeError, match="is already bound"):
            scene.server.bind()
        assert await scene.ask(LOOK) == messages.Done()


async def test_a_pending_change_completes(endpoint: str) -> None:
    """For example, the callable of a model being registered loads another model."""
    async with serving(endpoint) as scene:
        scene.until = asyncio.Event()
        change = scene.ask(CHANGE)
        while not scene.heard:
            await asyncio.sleep(0.01)
        scene.server.hold()
        other = messages.LoadOther("w1", "other")
        assert await scene.ask(other) == messages.Done()
        scene.until.set()
        assert await change == messages.Done()
        late = scene.ask(other)
        assert await scene.ask(LOOK) == messages.Done()
        assert scene.heard == [CHANGE, other, LOOK]
        scene.server.release()
        assert await late == messages.Done()


async def test_a_broken_connection_is_noticed_and_the_worker_recognized(endpoint: str) -> None:
    async with serving(endpoint) as scene:
        client = ControlClient(endpoint, watched=True, identity=identity_of("w1"))
        try:
            answer = await asyncio.to_thread(client.ask, LOOK, timeout_s=30)
            assert answer == messages.Done()
            assert not client.broken
            await scene.server.suspend()

            def alive() -> bool:
                return not client.broken

            with pytest.raises(ControlTimeout):
                await asyncio.to_thread(
                    client.ask, LOOK, timeout_s=30, life_sign_s=0.05, is_alive=alive
                )
            scene.server.bind()
            worker = scene.server.worker("w1")
            reported = None
            while not isinstance(reported, messages.WithdrawLane):
                await worker.send(messages.WithdrawLane())  # dropped until it has connected
                received = await asyncio.to_thread(client.receive, 0.05)
                reported = None if received is None else received[1]
        finally:
            client.close()
