"""Models that end with a process: ephemeral ones, and those that run in its threads."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from structlog.testing import capture_logs

from pytriton._protocol import messages


def test_nothing_stays_of_replaced_ephemeral_models(sim: SimulatedDaemon) -> None:
    """Payloads may take hundreds of megabytes, and the process may live for months."""
    there = []
    for name in "nmm":
        sim.served(sim.client.register(name, replace=True, ephemeral=True))
        there.append(weakref.ref(sim.services.registry.served.by_name(name)))
    sim.answered(sim.client.ask(messages.Unregister("n")))
    sim.advance(60.0)
    gc.collect()
    assert [one() for one in there] == [None, None, sim.services.registry.served.by_name("m")]
    sim.client.end_process()
    sim.advance(60.0)
    assert sim.is_clean("m")


@pytest.mark.parametrize("options", [{"ephemeral": True}, {"isolation": "thread"}], ids=str)
def test_a_process_that_exits_after_its_model_is_not_reported(
    sim: SimulatedDaemon, options: dict[str, Any]
) -> None:
    client = sim.connect()
    sim.served(client.register("m", **options))
    with capture_logs() as logged:
        sim.answered(client.ask(messages.Unregister("m")))
        client.end_process()
        sim.advance(10.0)
    assert [one for one in logged if one["log_level"] == "error"] == []
    assert sim.is_clean("m")


@pytest.mark.parametrize("options", [{"ephemeral": True}, {"isolation": "thread"}], ids=str)
def test_a_process_exits_while_its_model_is_being_unregistered(
    sim: SimulatedDaemon, options: dict[str, Any]
) -> None:
    client, other = sim.connect(), sim.connect()
    sim.served(client.register("m", **options))
    sim.server.hold_proxies = True
    unregistered = other.ask(messages.Unregister("m"))
    sim.settle()
    client.end_process()
    sim.settle()
    sim.let_batches_end()
    assert sim.answered(unregistered) == messages.Done()
    sim.advance(10.0)
    assert sim.is_clean("m")
