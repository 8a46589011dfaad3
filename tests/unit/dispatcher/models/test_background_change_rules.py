"""When a background change of a model is made, cancelled or skipped, depending on the state of everything involved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.fake_clients import model_spec
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.background_changes import BackgroundChanges
from pytriton.dispatcher.models.deployer import Reservations
from pytriton.dispatcher.models.registration import Registration


class Pool:
    """A pool with this many answered batches; None: a batch is in flight."""

    def __init__(self) -> None:
        self.suspension = SimpleNamespace(suspended=False, held=False)
        self.is_crash_looping = False
        self.rest: int | None = 3
        self.woken = 0

    @property
    def busy(self) -> bool:
        return self.rest is None

    def answered_if_idle(self) -> int | None:
        return self.rest

    def hold(self) -> None:
        self.suspension.held = True

    async def notify_waiters(self) -> None:
        self.woken += 1


class Model:
    """A registration that scales or suspends in a second, or not at all."""

    def __init__(self, name: str) -> None:
        self.spec = model_spec(name, instances=2, autoscale=messages.Autoscale(0, 8))
        self.ready = self.is_quiescent = True
        self.in_triton = SimpleNamespace(is_unloaded_by_daemon=False)
        self.pool = Pool()
        self.done: list[str] = []
        self.fails: RemoteFailure | None = None

    @property
    def instances(self) -> int:
        return 0 if self.pool.suspension.suspended else self.spec.instances

    async def scale(self, count: int, *_: object) -> None:
        await asyncio.sleep(1.0)
        if self.fails is not None:
            raise self.fails
        self.done.append(f"scaled to {count}")

    async def suspend(self, idle_s: float, grace_s: float, why: str = "") -> None:
        await asyncio.sleep(1.0)
        self.pool.suspension.suspended = True
        self.done.append("suspended")


class Daemon:
    """The services that a change needs."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.model = Model("m")
        self.reservations = Reservations()
        self.served = SimpleNamespace(names={"m": self.model}, keys={"m#1": self.model})
        self.server = SimpleNamespace(ready=True, placed=asyncio.Event())
        self.server.placed.set()
        self.background_changes = BackgroundChanges(
            self.reservations, cast(Any, self.served), cast(Any, self.server), lambda: 30.0
        )

    @property
    def registration(self) -> Registration:
        return cast(Registration, self.model)

    def follow(self, instances: int) -> asyncio.Task[bool]:
        return self._begun(self.background_changes.follow_load(self.registration, instances))

    def sleep(self) -> asyncio.Task[bool]:
        return self._begun(self.background_changes.suspend(self.registration, 5.0, "for others"))

    def _begun(self, doing: Any) -> asyncio.Task[bool]:
        task: asyncio.Task[bool] = self.loop.create_task(doing)
        self.loop.settle()
        return task

    def set(self, state: str) -> None:
        if state == "tritonserver is down":
            self.server.ready = False
        elif state == "tritonserver is being replaced":
            self.server.placed.clear()
        elif state == "it was replaced":
            self.served.names["m"] = Model("m")
        elif state == "it is not ready":
            self.model.ready = False
        elif state == "its workers crash":
            self.model.ready, self.model.pool.is_crash_looping = False, True
            self.model.in_triton.is_unloaded_by_daemon = True
        elif state == "a batch is under way":
            self.model.pool.rest = None
        elif state == "the daemon stops":
            self.background_changes.stop()
        elif state == "an upgrade begins":
            self.background_changes.hold()
        else:
            assert state == "all is well"


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    one = Daemon()
    yield one
    one.loop.settle()
    assert one.reservations.is_free("m")
    one.loop.close()
    asyncio.set_event_loop(None)


NEVER = [
    "tritonserver is down",
    "tritonserver is being replaced",
    "it was replaced",
    "the daemon stops",
    "an upgrade begins",
]


@pytest.mark.parametrize(
    ("state", "scales", "sleeps"),
    [
        ("all is well", True, True),
        ("it is not ready", False, False),
        ("its workers crash", False, True),  # others have more of the memory
        ("a batch is under way", True, False),
        *((state, False, False) for state in NEVER),
    ],
)
def test_changes_allowed_per_state(daemon: Daemon, state: str, scales: bool, sleeps: bool) -> None:
    daemon.set(state)
    assert daemon.loop.run(daemon.follow(4)) is scales
    assert daemon.model.done == ["scaled to 4"] * scales
    assert daemon.loop.run(daemon.sleep()) is sleeps
    assert daemon.model.done[scales:] == ["suspended"] * sleeps


@pytest.mark.parametrize("state", ["the daemon stops", "an upgrade begins"])
def test_a_running_change_is_cancelled(daemon: Daemon, state: str) -> None:
    following = daemon.follow(4)
    daemon.set(state)
    assert daemon.loop.run(following) is False
    assert daemon.model.done == []
    if state == "an upgrade begins":
        assert daemon.model.pool.suspension.held
        daemon.loop.run(daemon.background_changes.release())  # it was given up, too
        assert (daemon.model.pool.suspension.held, daemon.model.pool.woken) == (False, 1)
        assert daemon.loop.run(daemon.follow(4)) is True


def test_a_batch_at_the_last_moment_prevents_the_suspension(daemon: Daemon) -> None:
    daemon.model.spec = model_spec("m", instances=1, autoscale=messages.Autoscale(0, 8))
    daemon.set("a batch is under way")
    assert daemon.loop.run(daemon.follow(0)) is True
    assert daemon.model.done == []
    daemon.model.pool.rest = 4
    assert daemon.loop.run(daemon.follow(0)) is True
    assert daemon.model.done == ["suspended"]


def test_of_two_concurrent_changes_the_second_is_skipped(daemon: Daemon) -> None:
    first, second = daemon.follow(4), daemon.sleep()
    assert daemon.loop.run(second) is False
    assert daemon.loop.run(first) is True
    assert daemon.model.done == ["scaled to 4"]


def test_a_client_gets_exclusive_access_after_a_cancellation(daemon: Daemon) -> None:
    following = daemon.follow(4)
    daemon.loop.run(daemon.background_changes.preempt("m"))
    assert daemon.reservations.is_free("m")
    assert following.result() is False
    daemon.loop.run(daemon.background_changes.preempt("m"))  # nothing is under way
    daemon.loop.run(daemon.background_changes.preempt("other"))


def test_a_failed_change_is_reported_and_releases_the_model(daemon: Daemon) -> None:
    daemon.model.fails = RemoteFailure(ErrorKind.LOAD_FAILED, "no file")
    with pytest.raises(RemoteFailure, match="no file"):
        daemon.loop.run(daemon.follow(4))
    daemon.model.fails = None
    assert daemon.loop.run(daemon.follow(4)) is True
