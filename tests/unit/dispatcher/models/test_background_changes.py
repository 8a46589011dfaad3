"""The daemon's own changes of models: when they are made, and that they give way to clients' requests."""

from __future__ import annotations

import asyncio

import pytest
from fakes.simulated_daemon import PlannedWorker, SimulatedDaemon

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registration import Registration


class SlowToEnd(PlannedWorker):
    """A worker whose last output arrives late, as with real ones."""

    async def stop(self, grace_s: float) -> None:
        await asyncio.sleep(1.0)
        await super().stop(grace_s)


def registered(sim: SimulatedDaemon, instances: int = 2) -> Registration:
    sim.served(sim.client.register("m", instances=instances, autoscale=messages.Autoscale(0, 8)))
    return sim.services.registry.served.by_name("m")


def follow(sim: SimulatedDaemon, registration: Registration, instances: int) -> asyncio.Task[bool]:
    """Let the daemon scale a model, as the autoscaler does."""
    changes = sim.services.registry.background_changes
    task = sim.loop.create_task(changes.follow_load(registration, instances))
    sim.settle()
    return task


def suspend(sim: SimulatedDaemon, registration: Registration) -> asyncio.Task[bool]:
    """Let the daemon suspend a model, as the memory budget does."""
    changes = sim.services.registry.background_changes
    task = sim.loop.create_task(changes.suspend(registration, 5.0, "for others"))
    sim.settle()
    return task


def bring_about(sim: SimulatedDaemon, state: str) -> None:
    changes = sim.services.registry.background_changes
    if state == "tritonserver is down":
        sim.server.starts_fail = 100
        sim.server.end()
    elif state == "tritonserver is being replaced":
        sim.server.placed.clear()
    elif state == "it was replaced":
        sim.served(sim.client.register("m", replace=True))
    elif state in ("it is not ready", "its workers crash"):
        sim.usual_plan = "hangs" if state == "it is not ready" else "crashes"
        for worker in sim.alive("m"):
            worker.end()
        sim.advance(30.0)
        assert sim.state_of("m") == "not_ready"
    elif state == "a batch is under way":
        sim.alive("m")[0].begin()
    elif state == "the daemon stops":
        sim.loop.ask(changes.stop)
    elif state == "an upgrade begins":
        sim.loop.ask(changes.hold)
    else:
        assert state == "all is well"
    sim.settle()


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
def test_changes_allowed_per_state(
    sim: SimulatedDaemon, state: str, scales: bool, sleeps: bool
) -> None:
    registration = registered(sim)
    bring_about(sim, state)
    assert sim.loop.run(follow(sim, registration, 4)) is scales
    assert registration.spec.instances == (4 if scales else 2)
    assert sim.loop.run(suspend(sim, registration)) is sleeps
    assert registration.pool.suspension.suspended is sleeps
    assert sim.being_changed() == set()
    sim.server.placed.set()


@pytest.mark.parametrize("state", ["the daemon stops", "an upgrade begins"])
def test_a_running_change_is_cancelled(sim: SimulatedDaemon, state: str) -> None:
    registration = registered(sim)
    sim.plans = ["hangs", "hangs"]
    following = follow(sim, registration, 4)
    bring_about(sim, state)
    assert sim.loop.run(following) is False
    assert len(sim.alive("m")) == 2
    if state == "an upgrade begins":
        sim.loop.run(sim.services.registry.background_changes.release())  # it was given up, too
        assert sim.loop.run(follow(sim, registration, 4)) is True


def test_a_batch_at_the_last_moment_prevents_the_suspension(sim: SimulatedDaemon) -> None:
    registration = registered(sim, instances=1)
    (worker,) = sim.alive("m")
    worker.begin()
    assert sim.loop.run(follow(sim, registration, 0)) is True
    assert sim.state_of("m") == "ready"
    worker.answer()
    assert sim.loop.run(follow(sim, registration, 0)) is True
    assert sim.state_of("m") == "suspended"


def test_while_one_change_is_made_others_are_skipped(sim: SimulatedDaemon) -> None:
    registration = registered(sim)
    sim.plans = ["hangs", "hangs"]
    first = follow(sim, registration, 4)
    assert sim.loop.run(suspend(sim, registration)) is False
    assert sim.loop.run(follow(sim, registration, 3)) is False
    for worker in sim.alive("m")[2:]:
        worker.loaded()
    assert sim.loop.run(first) is True
    assert len(sim.alive("m")) == 4


def test_a_failed_change_is_reported_and_releases_the_model(sim: SimulatedDaemon) -> None:
    registration = registered(sim)
    sim.plans = ["fails"]
    with pytest.raises(RemoteFailure, match="no file"):
        sim.loop.run(follow(sim, registration, 4))
    assert sim.loop.run(follow(sim, registration, 4)) is True


def test_two_clients_at_once_do_not_leave_a_change_half_undone(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.served(sim.client.register("m", autoscale=messages.Autoscale(1, 4)))
    registration = sim.services.registry.served.by_name("m")
    monkeypatch.setattr("fakes.simulated_daemon.PlannedWorker", SlowToEnd)
    sim.plans = ["hangs", "hangs"]
    following = follow(sim, registration, 3)
    asked = []
    for on in (True, False):
        asked.append(sim.client.ask(messages.LogRequests("m", on)))
        sim.advance(0.1)
    assert [sim.answered(one) for one in asked] == [messages.Done()] * 2
    assert following.result() is False
    assert [one.state for one in sim.loop.ask(registration.pool.infos)] == ["ready"]
    assert sim.loop.ask(lambda: registration.is_quiescent)
    model = sim.served(sim.client.ask(messages.Scale("m", 3)))
    assert [one.state for one in model.instances] == ["ready"] * 3
