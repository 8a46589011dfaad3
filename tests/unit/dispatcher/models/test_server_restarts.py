"""Histories of models while tritonserver ends, starts again, or another one takes its place."""

from __future__ import annotations

import pytest
from support.fakes.brain import Brain
from support.fakes.fake_clients import model_spec
from support.fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages


def test_tritonserver_ends_and_has_all_models_again(brain: Brain) -> None:
    """Also those that it did not take at once; their workers notice nothing."""
    for name in ("a", "b", "c"):
        brain.served(brain.client.register(name))
    workers = brain.alive()
    brain.server.obstacles["b"] = Obstacle("refuse", 3)
    brain.server.starts_fail = 2
    brain.server.end()
    brain.settle()
    states = {brain.state_of(name) for name in ("a", "b", "c")}
    assert states == {"unready"}
    brain.advance(100.0)
    assert all(brain.is_served(name) for name in ("a", "b", "c"))
    assert {brain.state_of(name) for name in ("a", "b", "c")} == {"ready"}
    assert brain.alive() == workers
    assert brain.server.gate_open


def test_a_model_that_a_new_tritonserver_refuses_can_be_unregistered(brain: Brain) -> None:
    """The load that failed is forgotten with it: tritonserver would never be ready again."""
    brain.served(brain.client.register("m"))
    brain.server.obstacles["m"] = Obstacle("refuse", 100)
    brain.server.end()
    brain.advance(10.0)
    assert brain.server.failures == {"m"}
    assert brain.answered(brain.client.ask(messages.Unregister("m"))) == messages.Done()
    assert brain.is_clean("m")


def test_a_model_without_a_worker_does_not_hold_up_tritonservers_start(brain: Brain) -> None:
    for name in ("a", "b"):
        brain.served(brain.client.register(name))
    brain.usual_plan = "hangs"
    brain.alive("a")[0].end()
    brain.settle()
    brain.server.end()
    brain.advance(20.0)
    assert brain.is_served("b")
    assert "a" not in brain.server.models
    brain.alive("a")[0].loaded()
    brain.advance(10.0)
    assert brain.is_served("a")


@pytest.mark.parametrize("proxies", ["attached", "slow"])
def test_one_that_is_unregistered_while_tritonserver_starts_again_is_gone(
    brain: Brain, proxies: str
) -> None:
    """tritonserver has loaded it by then, and it is not known to be up yet."""
    brain.served(brain.client.register("m"))
    brain.served(brain.client.register("other"))
    brain.server.unseen_s = 5.0
    brain.server.end()
    brain.advance(2.0)
    assert set(brain.server.models) == {"m", "other"}
    assert not brain.server.ready
    if proxies == "slow":  # to say that they are there
        brain.loop.ask(lambda: brain.daemon.registry.by_name("m").in_triton.forget_proxies())
    request = brain.client.ask(messages.Unregister("m"))
    brain.advance(6.0)
    assert request.answer == messages.Done()
    assert set(brain.server.models) == {"other"}
    assert brain.is_served("other")
    assert brain.alive("m") == []


def test_one_whose_workers_end_while_tritonserver_starts_again_is_loaded_with_the_next(
    brain: Brain,
) -> None:
    brain.served(brain.client.register("m"))
    brain.server.unseen_s = 3.0 * brain.config.unready_after_s
    brain.plans = ["fails"] * 12
    brain.server.end()
    brain.advance(1.5)
    brain.alive("m")[0].end()
    brain.advance(brain.server.unseen_s)
    assert brain.state_of("m") == "unready"
    assert "m" not in brain.server.models
    brain.plans = []
    brain.advance(700.0)
    assert brain.is_served("m")


@pytest.mark.parametrize(
    ("message", "told"),
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
def test_models_do_not_change_while_another_tritonserver_takes_its_place(
    brain: Brain, message: messages.AnyMessage, told: str | None
) -> None:
    """What only one of the two is told would be lost with it."""
    brain.served(brain.client.register("m"))
    brain.server.history.clear()
    brain.server.placed.clear()
    payloads = [b"callable"] if isinstance(message, messages.Register) else []
    asked = brain.client.ask(message, payloads)
    brain.advance(50.0)
    assert (asked.answer, brain.server.history) == (None, [])
    brain.server.placed.set()
    brain.server.news.tell()
    brain.answered(asked)
    assert told is None or told in brain.server.history


def test_nor_with_a_client_or_with_load(brain: Brain) -> None:
    """A temporary model ends later, and the autoscaler waits."""
    brain.served(brain.client.register("m", autoscale=messages.Autoscale(1, 4)))
    other = brain.connect()
    brain.served(other.register("n", temporary=True))
    brain.server.history.clear()
    brain.server.placed.clear()
    other.end_process()
    registration = brain.daemon.registry.by_name("m")
    follow_load = brain.daemon.registry.adaptations.follow_load
    assert not brain.loop.run(follow_load(registration, 3))
    brain.advance(5.0)
    assert (brain.server.history, brain.is_served("n")) == ([], True)
    brain.server.placed.set()
    brain.server.news.tell()
    brain.settle()
    assert brain.loop.run(follow_load(registration, 3))
    assert brain.is_clean("n")
