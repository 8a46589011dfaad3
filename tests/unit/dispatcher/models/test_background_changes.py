"""Changes that nobody asked for give way to what clients want, and leave the model as it was."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes.brain import Brain, ObedientWorker

from pytriton._protocol import messages


class SlowToEnd(ObedientWorker):
    """Its last lines take a while to arrive, as those of real ones do."""

    async def stop(self, grace_s: float) -> None:
        await asyncio.sleep(1.0)
        await super().stop(grace_s)


def test_two_clients_at_once_do_not_leave_a_change_half_undone(
    brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain.served(brain.client.register("m", autoscale=messages.Autoscale(1, 4)))
    registration = brain.daemon.registry.by_name("m")
    monkeypatch.setattr("support.fakes.brain.ObedientWorker", SlowToEnd)
    brain.plans = ["hangs", "hangs"]
    following = brain.loop.create_task(
        brain.daemon.registry.adaptations.follow_load(registration, 3)
    )
    brain.settle()
    asked = []
    for on in (True, False):
        asked.append(brain.client.ask(messages.LogRequests("m", on)))
        brain.advance(0.1)
    assert [brain.answered(one) for one in asked] == [messages.Done()] * 2
    assert following.result() is False
    assert [one.state for one in brain.loop.ask(registration.pool.infos)] == ["ready"]
    assert brain.loop.ask(lambda: registration.settled)
    model = brain.served(brain.client.ask(messages.Scale("m", 3)))
    assert [one.state for one in model.instances] == ["ready"] * 3
