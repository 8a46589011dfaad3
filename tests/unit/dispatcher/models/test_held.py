"""Models that sleep, wake and scale all the time, held so that the daemon can be upgraded: virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes.asked_daemons import MIB, SLEEPY, Budgeted


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.brain.close()


def hold(daemon: Budgeted) -> None:
    daemon.brain.loop.ask(daemon.brain.daemon.registry.adaptations.hold)
    daemon.brain.advance(0.5)


def release(daemon: Budgeted) -> None:
    registry = daemon.brain.daemon.registry
    daemon.brain.loop.run(asyncio.ensure_future(registry.adaptations.release()))


def unsettled(daemon: Budgeted) -> str:
    return daemon.brain.loop.ask(daemon.brain.daemon.registry.adoption.unsettled)


def test_a_batch_waits_and_wakes_its_model_later(daemon: Budgeted) -> None:
    daemon.register("a", memory=100 * MIB)
    hold(daemon)
    batch = daemon.batch("a")
    daemon.brain.advance(100.0)
    assert not batch.done()
    assert (daemon.state("a"), unsettled(daemon)) == ("asleep", "")
    release(daemon)
    daemon.wait(batch, 2.0)
    assert daemon.loaded() == {"a"}


def test_what_waits_for_memory_sleeps_on_and_is_asked_again(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=600 * MIB)
    worker = daemon.served("a")
    worker.begin()
    batch = daemon.batch("b")
    daemon.brain.advance(5.0)
    assert unsettled(daemon) != ""
    hold(daemon)
    assert unsettled(daemon) == ""
    assert daemon.status().memory[0].waiting == 0
    release(daemon)
    daemon.brain.advance(1.0)
    assert daemon.status().memory[0].waiting == 1
    worker.answer()
    daemon.wait(batch, 2.0)


def test_nobody_falls_asleep_or_scales_meanwhile(daemon: Budgeted) -> None:
    daemon.register("a", lazy=False, autoscale=SLEEPY, memory=600 * MIB)
    daemon.register("b", memory=600 * MIB)
    daemon.brain.advance(2.0)
    hold(daemon)
    daemon.brain.advance(100.0)
    assert (daemon.state("a"), unsettled(daemon)) == ("ready", "")
    release(daemon)
    daemon.served("b", 10.0)
    assert daemon.state("a") == "asleep"
