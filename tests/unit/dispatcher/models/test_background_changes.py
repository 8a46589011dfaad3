"""Background changes give way to clients' requests, and leave the model as it was."""

from __future__ import annotations

import asyncio

import pytest
from fakes.simulated_daemon import PlannedWorker, SimulatedDaemon

from pytriton._protocol import messages


class SlowToEnd(PlannedWorker):
    """A worker whose last output arrives late, as with real ones."""

    async def stop(self, grace_s: float) -> None:
        await asyncio.sleep(1.0)
        await super().stop(grace_s)


def test_two_clients_at_once_do_not_leave_a_change_half_undone(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.served(sim.client.register("m", autoscale=messages.Autoscale(1, 4)))
    registration = sim.services.registry.served.by_name("m")
    monkeypatch.setattr("fakes.simulated_daemon.PlannedWorker", SlowToEnd)
    sim.plans = ["hangs", "hangs"]
    following = sim.loop.create_task(
        sim.services.registry.background_changes.follow_load(registration, 3)
    )
    sim.settle()
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
