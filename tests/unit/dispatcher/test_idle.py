"""What an idle daemon does: as good as nothing, however many models it serves."""

from __future__ import annotations

import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages

_PERIOD_S = 60.0


@pytest.mark.parametrize("models", [0, 3, 20])
def test_an_idle_daemon_wakes_up_every_five_seconds(sim: SimulatedDaemon, models: int) -> None:
    for number in range(models):
        spec = model_spec(f"m{number}", lazy=number % 2 == 1)
        sim.served(sim.client.ask(messages.Register(spec), [b"callable"]))
    sim.advance(30.0)
    before = sim.loop.wakeups
    sim.advance(_PERIOD_S)
    assert sim.loop.wakeups - before <= _PERIOD_S / 5.0 + 1
