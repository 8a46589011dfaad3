"""When models allow an upgrade, until which background changes are held back. On a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from fakes.suspending_daemons import MIB, SLEEPY, Budgeted

from pytriton._protocol import messages


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.sim.close()


def hold(daemon: Budgeted) -> None:
    daemon.sim.loop.ask(daemon.sim.services.registry.background_changes.hold)
    daemon.sim.advance(0.5)


def release(daemon: Budgeted) -> None:
    registry = daemon.sim.services.registry
    daemon.sim.loop.run(asyncio.ensure_future(registry.background_changes.release()))


def why_not_quiescent(daemon: Budgeted) -> str:
    return _why_not_quiescent(daemon.sim)


def _why_not_quiescent(sim: SimulatedDaemon) -> str:
    why: str = sim.loop.ask(sim.services.registry.why_not_quiescent)
    return why


_REGISTERED = "model m is being registered, replaced or unregistered"
_WORKER = "a worker of model m is being started or stopped"


def test_a_change_under_way_prevents_a_handover(sim: SimulatedDaemon) -> None:
    sim.usual_plan = "hangs"
    registering = sim.client.register("m")
    sim.settle()
    assert _why_not_quiescent(sim) == _REGISTERED
    sim.alive("m")[0].end()
    sim.answered(registering)
    sim.plans = ["serves"]
    sim.served(sim.client.register("m"))
    assert _why_not_quiescent(sim) == ""
    scaling = sim.client.ask(messages.Scale("m", 2))
    sim.settle()
    assert _why_not_quiescent(sim) == _WORKER
    sim.alive("m")[-1].end()
    sim.answered(scaling)
    sim.alive("m")[0].end()
    sim.settle()
    assert _why_not_quiescent(sim) == _WORKER


def test_a_restore_prevents_a_handover(tmp_path: Path) -> None:
    with successive_daemons(tmp_path) as start:
        first = start()
        first.served(first.client.register("m"))
        second = start(usual_plan="hangs")
        assert _why_not_quiescent(second) == "model m is being restored"


def test_a_batch_waits_and_resumes_its_model_later(daemon: Budgeted) -> None:
    daemon.register("a", memory_request=100 * MIB)
    hold(daemon)
    batch = daemon.batch("a")
    daemon.sim.advance(100.0)
    assert not batch.done()
    assert (daemon.state("a"), why_not_quiescent(daemon)) == ("suspended", "")
    release(daemon)
    daemon.wait(batch, 2.0)
    assert daemon.loaded() == {"a"}


def test_models_waiting_for_memory_stay_suspended_and_are_retried(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=600 * MIB)
    worker = daemon.served("a")
    worker.begin()
    batch = daemon.batch("b")
    daemon.sim.advance(5.0)
    assert why_not_quiescent(daemon) != ""
    hold(daemon)
    assert why_not_quiescent(daemon) == ""
    assert daemon.status().memory[0].waiting == 0
    release(daemon)
    daemon.sim.advance(1.0)
    assert daemon.status().memory[0].waiting == 1
    worker.answer()
    daemon.wait(batch, 2.0)


def test_nothing_suspends_or_scales_during_the_quiesce(daemon: Budgeted) -> None:
    daemon.register("a", lazy=False, autoscale=SLEEPY, memory_request=600 * MIB)
    daemon.register("b", memory_request=600 * MIB)
    daemon.sim.advance(2.0)
    hold(daemon)
    daemon.sim.advance(100.0)
    assert (daemon.state("a"), why_not_quiescent(daemon)) == ("ready", "")
    release(daemon)
    daemon.served("b", 10.0)
    assert daemon.state("a") == "suspended"
