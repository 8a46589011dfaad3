"""Histories of models while tritonserver exits, restarts, or is replaced by another one."""

from __future__ import annotations

import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages


def test_a_restarted_tritonserver_gets_all_models_again(sim: SimulatedDaemon) -> None:
    """Including those that it refused at first; their workers notice nothing."""
    for name in ("a", "b", "c"):
        sim.served(sim.client.register(name))
    workers = sim.alive()
    sim.server.obstacles["b"] = Obstacle("refuse", 3)
    sim.server.starts_fail = 2
    sim.server.end()
    sim.settle()
    states = {sim.state_of(name) for name in ("a", "b", "c")}
    assert states == {"not_ready"}
    sim.advance(100.0)
    assert all(sim.is_served(name) for name in ("a", "b", "c"))
    assert {sim.state_of(name) for name in ("a", "b", "c")} == {"ready"}
    assert sim.alive() == workers
    assert sim.server.gate_open


def test_a_model_refused_after_a_restart_can_be_unregistered(sim: SimulatedDaemon) -> None:
    """Its failed load is cleared, too, because it would keep tritonserver from being ready."""
    sim.served(sim.client.register("m"))
    sim.server.obstacles["m"] = Obstacle("refuse", 100)
    sim.server.end()
    sim.advance(10.0)
    assert sim.server.failures == {"m"}
    assert sim.answered(sim.client.ask(messages.Unregister("m"))) == messages.Done()
    assert sim.is_clean("m")


def test_a_model_without_a_worker_does_not_delay_tritonservers_start(
    sim: SimulatedDaemon,
) -> None:
    for name in ("a", "b"):
        sim.served(sim.client.register(name))
    sim.usual_plan = "hangs"
    sim.alive("a")[0].end()
    sim.settle()
    sim.server.end()
    sim.advance(20.0)
    assert sim.is_served("b")
    assert "a" not in sim.server.models
    sim.alive("a")[0].loaded()
    sim.advance(10.0)
    assert sim.is_served("a")


@pytest.mark.parametrize("proxies", ["attached", "slow"])
def test_a_model_unregistered_during_a_restart_is_gone(sim: SimulatedDaemon, proxies: str) -> None:
    """tritonserver has loaded it by then, but is not known to be up yet."""
    sim.served(sim.client.register("m"))
    sim.served(sim.client.register("other"))
    sim.server.unseen_s = 5.0
    sim.server.end()
    sim.advance(2.0)
    assert set(sim.server.models) == {"m", "other"}
    assert not sim.server.ready
    if proxies == "slow":  # to say that they are there
        sim.loop.ask(lambda: sim.services.registry.served.by_name("m").in_triton.forget_proxies())
    request = sim.client.ask(messages.Unregister("m"))
    sim.advance(6.0)
    assert request.answer == messages.Done()
    assert set(sim.server.models) == {"other"}
    assert sim.is_served("other")
    assert sim.alive("m") == []


def test_a_model_whose_workers_exit_during_a_restart_is_loaded_with_the_next_worker(
    sim: SimulatedDaemon,
) -> None:
    sim.served(sim.client.register("m"))
    sim.server.unseen_s = 3.0 * sim.config.not_ready_after_s
    sim.plans = ["fails"] * 12
    sim.server.end()
    sim.advance(1.5)
    sim.alive("m")[0].end()
    sim.advance(sim.server.unseen_s)
    assert sim.state_of("m") == "not_ready"
    assert "m" not in sim.server.models
    sim.plans = []
    sim.advance(700.0)
    assert sim.is_served("m")


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        (messages.Register(model_spec("m"), replace=True), "load m"),
        (messages.Register(model_spec("n")), "load n"),
        (messages.Scale("m", 2), "load m"),
        (messages.Unregister("m"), "unload m"),
        (messages.LoadFromRepository("n"), None),
        (messages.UnloadFromRepository("n"), None),
    ],
    ids=["replace", "register", "scale", "unregister", "load", "unload"],
)
def test_models_do_not_change_while_tritonserver_is_replaced(
    sim: SimulatedDaemon, message: messages.AnyMessage, reported: str | None
) -> None:
    """A change sent to only one of the two would be lost with it."""
    sim.served(sim.client.register("m"))
    sim.server.history.clear()
    sim.server.placed.clear()
    payloads = [b"callable"] if isinstance(message, messages.Register) else []
    asked = sim.client.ask(message, payloads)
    sim.advance(50.0)
    assert (asked.answer, sim.server.history) == (None, [])
    sim.server.placed.set()
    sim.server.changes.notify()
    sim.answered(asked)
    assert reported is None or reported in sim.server.history


def test_background_changes_wait_while_tritonserver_is_replaced(sim: SimulatedDaemon) -> None:
    """An ephemeral model ends later, and the autoscaler waits."""
    sim.served(sim.client.register("m", autoscale=messages.Autoscale(1, 4)))
    other = sim.connect()
    sim.served(other.register("n", ephemeral=True))
    sim.server.history.clear()
    sim.server.placed.clear()
    other.end_process()
    registration = sim.services.registry.served.by_name("m")
    follow_load = sim.services.registry.background_changes.follow_load
    assert not sim.loop.run(follow_load(registration, 3))
    sim.advance(5.0)
    assert (sim.server.history, sim.is_served("n")) == ([], True)
    sim.server.placed.set()
    sim.server.changes.notify()
    sim.settle()
    assert sim.loop.run(follow_load(registration, 3))
    assert sim.is_clean("n")
