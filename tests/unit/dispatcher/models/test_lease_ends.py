"""The end of a lease when it fails, is interrupted, or is requested twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from fakes.fake_clients import model_spec
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.leases import LeaseManager
from pytriton.dispatcher.runtime.tasks import ChangeSignal

LEASE = messages.Lease("one", 10.0, 0.1)


class Registration:
    def __init__(self) -> None:
        self.key = "m#1"
        self.spec = model_spec("m", lease=LEASE)


class Registry(list[Any]):
    """The provisional model, and the outcomes of its ends, which take a second each."""

    def __init__(self) -> None:
        super().__init__([Registration()])
        self.restoring = self.served = self
        self.changes = ChangeSignal()
        self.fates: list[Exception] = []
        self.ends = 0
        self.is_placed = True

    def get(self, name: str) -> Any:
        return next((one for one in self if one.spec.name == name), None)

    def entry(self, name: str) -> None:
        """Return None: only served models are persisted here."""

    def failures(self) -> dict[str, Any]:
        return {}

    def is_deploying(self, name: str) -> bool:
        return not self.is_placed

    async def undo(self, name: str, still: Callable[[], object]) -> None:
        self.ends += 1
        await asyncio.sleep(1.0)
        still()
        if self.fates:
            raise self.fates.pop(0)
        self.clear()


class Scene:
    """A lease that began when its client was notified."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.registry = Registry()
        self.leases = LeaseManager(cast(Any, self.registry))
        self.running = self.loop.create_task(self.leases.run())
        self.loop.settle()

    def roll_back(self) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(self.leases.roll_back("m", "one"))
        self.loop.settle()
        return task

    def failure(self, task: asyncio.Task[None]) -> str:
        with pytest.raises((RemoteFailure, ValueError)) as failed:
            self.loop.run(task)
        return str(failed.value)


@pytest.fixture
def scene() -> Iterator[Scene]:
    one = Scene()
    yield one
    one.running.cancel()
    one.loop.settle()
    one.loop.close()
    asyncio.set_event_loop(None)


def test_concurrent_rollbacks_wait_for_the_same_one(scene: Scene) -> None:
    both = scene.roll_back(), scene.roll_back()
    for task in both:
        scene.loop.run(task)
    assert scene.registry.ends == 1
    assert "has no such lease" in scene.failure(scene.roll_back())


@pytest.mark.parametrize(
    "why", [RemoteFailure(ErrorKind.LOAD_FAILED, "no file"), ValueError("a fault")]
)
def test_a_failed_rollback_is_reported_and_retried(scene: Scene, why: Exception) -> None:
    scene.registry.fates = [why]
    assert scene.failure(scene.roll_back()) == str(why)
    scene.loop.run(scene.roll_back())
    assert scene.registry == []


def test_an_expiring_registration_cannot_be_renewed_or_confirmed(scene: Scene) -> None:
    taking = scene.roll_back()
    with pytest.raises(RemoteFailure, match="has no such lease"):
        scene.loop.ask(lambda: scene.leases.renew("m", "one"))
    with pytest.raises(RemoteFailure, match="has no such lease"):
        scene.loop.run(scene.leases.keep("m", "one"))
    scene.loop.run(taking)


def test_a_registration_confirmed_at_the_last_moment_stays(scene: Scene) -> None:
    taking = scene.roll_back()
    model = scene.registry[0]
    model.spec = msgspec.structs.replace(model.spec, lease=None)
    assert "has no such lease" in scene.failure(taking)
    assert scene.registry == [model]


def test_waiting_clients_are_notified_when_the_daemon_stops(scene: Scene) -> None:
    taking = scene.roll_back()
    scene.running.cancel()
    assert scene.failure(taking) == "model m was not rolled back: the daemon is stopping"


def test_a_lease_starts_when_its_client_is_notified(scene: Scene) -> None:
    scene.registry.is_placed = False
    scene.loop.advance(100.0)
    assert scene.registry.ends == 0
    scene.registry.is_placed = True
    scene.loop.advance(9.5)
    assert scene.registry.ends == 0
    scene.loop.advance(3.0)
    assert scene.registry.ends == 1


def test_expiry_is_reported_once_however_often_the_rollback_fails(scene: Scene) -> None:
    """It is retried after the same interval, not at every poll."""
    scene.registry.fates = [ValueError("a fault")] * 3
    scene.loop.advance(45.0)
    assert scene.registry.ends == 4
    assert scene.registry == []


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_an_invalid_share_changes_nothing(scene: Scene, share: float) -> None:
    scene.loop.advance(8.0)
    with pytest.raises(RemoteFailure):
        scene.loop.ask(lambda: scene.leases.renew("m", "one", share))
    assert scene.registry[0].spec.lease == LEASE
    scene.loop.advance(5.0)
    assert scene.registry == []  # nor was it renewed
