"""Models that sleep, wake and scale all the time, held so that the daemon can be upgraded: virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.suspending_daemons import MIB, SLEEPY, Budgeted


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.sim.close()


def hold(daemon: Budgeted) -> None:
    daemon.sim.loop.ask(daemon.sim.daemon.registry.adaptations.hold)
    daemon.sim.advance(0.5)


def release(daemon: Budgeted) -> None:
    registry = daemon.sim.daemon.registry
    daemon.sim.loop.run(asyncio.ensure_future(registry.adaptations.release()))


def why_not_quiescent(daemon: Budgeted) -> str:
    return daemon.sim.loop.ask(daemon.sim.daemon.registry.adoption.why_not_quiescent)


def test_a_batch_waits_and_wakes_its_model_later(daemon: Budgeted) -> None:
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
