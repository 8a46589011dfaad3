"""Histories of kept models that rest: tritonserver gets one when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable

import msgspec
import pytest
from support.fakes.asked_daemons import SLEEPY
from support.fakes.brain import Brain
from support.fakes.fake_clients import model_spec
from support.fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages
from pytriton.dispatcher.models.server_starts import can_rest

Start = Callable[..., Brain]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon; the one before it has ended by then."""
    with ExitStack() as stack:
        brains: list[Brain] = []

        def make(**settings: Any) -> Brain:
            if brains:
                brains.pop().close()
            brains.append(Brain(tmp_path, **{"awaits": True, **settings}))
            brains[0].advance(2.0)
            return brains[0]

        stack.callback(lambda: brains.pop().close())
        yield make


@pytest.fixture
def brain(start: Start) -> Brain:
    """A daemon that keeps two lazy models and one that sleeps, which rest, and one that does not."""
    before = start()
    for name in ("a", "b"):
        before.served(before.client.register(name, lazy=True))
    before.served(before.client.register("sleepy", autoscale=SLEEPY))
    before.served(before.client.register("eager"))
    return start()


def info(brain: Brain, name: str) -> messages.ModelInfo:
    return next(one for one in brain.loop.ask(brain.daemon.model_infos) if one.name == name)


def resting(brain: Brain) -> list[str]:
    return [entry.spec.name for entry in brain.daemon.registry.restoring.resting()]


def ask_for(brain: Brain, name: str) -> None:
    """A request for a model waits in the front."""
    brain.loop.ask(lambda: brain.front.asked(name))
    brain.settle()


def test_tritonserver_is_ready_without_those_that_rest(brain: Brain) -> None:
    assert set(brain.server.models) == {"eager"}
    assert brain.server.gate_open
    assert resting(brain) == list(brain.loop.ask(brain.front.names).rest) == ["a", "b", "sleepy"]
    assert [brain.state_of(name) for name in ("a", "b", "sleepy", "eager")] == [
        *["asleep"] * 3,
        "ready",
    ]
    assert "on the first request" in info(brain, "a").scaling
    assert brain.daemon.registry.restoring.failures() == {}
    brain.advance(600.0)
    assert resting(brain) == ["a", "b", "sleepy"]


def test_a_request_brings_one(brain: Brain) -> None:
    ask_for(brain, "b")
    assert brain.is_served("b")
    assert brain.alive("b") == []  # it is asleep: a batch wakes it
    assert resting(brain) == ["a", "sleepy"]
    assert brain.front.forgotten == []  # the front has seen the load
    ask_for(brain, "b")  # of another process of tritonserver's, say
    assert brain.server.history.count("load b") == 1
    assert brain.front.forgotten == ["b"]


def test_one_that_cannot_be_restored_holds_up_no_request(brain: Brain) -> None:
    brain.server.obstacles["a"] = Obstacle("refuse")
    ask_for(brain, "a")
    assert brain.front.forgotten == ["a"]
    assert brain.state_of("a") == "failed"
    ask_for(brain, "a")
    assert brain.front.forgotten == ["a", "a"]


def test_one_that_is_unregistered_is_gone(brain: Brain) -> None:
    assert brain.answered(brain.client.ask(messages.Unregister("a"))) == messages.Done()
    assert brain.front.forgotten == ["a"]
    assert "a" not in brain.kept()
    assert brain.is_clean("a")


def test_one_that_is_unregistered_while_it_comes_is_gone(brain: Brain) -> None:
    brain.server.obstacles["a"] = hangs = Obstacle("hang")
    ask_for(brain, "a")
    gone = brain.client.ask(messages.Unregister("a"))
    brain.settle()
    assert gone.answer is None
    brain.loop.ask(hangs.gone.set)
    assert brain.answered(gone) == messages.Done()
    assert brain.front.forgotten == ["a"]
    assert brain.is_clean("a")


def test_clients_bring_what_they_change(brain: Brain) -> None:
    brain.served(brain.client.ask(messages.Scale("a", 2)))
    assert len(brain.alive("a")) == 2
    brain.served(brain.client.register("b", replace=True))
    assert brain.is_served("b")
    assert brain.answered(brain.client.ask(messages.LogRequests("sleepy", True))) == messages.Done()
    assert resting(brain) == []


def test_its_name_is_taken(brain: Brain) -> None:
    answer = brain.answered(brain.client.register("a"))
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "exists"
    assert resting(brain) == ["a", "b", "sleepy"]


def test_another_daemon_is_told_of_all(brain: Brain) -> None:
    answer = brain.answered(brain.client.ask(messages.GetRegistrations([], payloads=True)))
    assert isinstance(answer, messages.Registrations)
    assert {one.spec.name for one in answer.registrations} == {"a", "b", "sleepy", "eager"}
    assert all(one.payloads for one in answer.registrations)
    known = brain.client.ask(messages.GetRegistrations([], known=answer.state))
    assert brain.answered(known) == messages.Registrations([], answer.state)


def test_a_model_that_calls_one_waits_for_it(brain: Brain) -> None:
    task = brain.loop.create_task(brain.handle(messages.AskReadiness("a")))
    brain.settle()
    assert task.result() == messages.Readiness(True)
    assert brain.is_served("a")
    task = brain.loop.create_task(brain.handle(messages.AskReadiness("nobody")))
    brain.settle()
    assert task.result() == messages.Readiness(False)


def test_one_that_comes_while_tritonserver_ends_is_loaded_in_the_next_one(brain: Brain) -> None:
    brain.server.obstacles["a"] = Obstacle("end")
    ask_for(brain, "a")
    # Requests wait for it in the next one, too.
    assert "a" in brain.loop.ask(brain.front.names).rest
    brain.advance(10.0)
    assert brain.is_served("a")
    assert resting(brain) == ["b", "sleepy"]


def test_they_rest_on_when_tritonserver_ends(brain: Brain) -> None:
    ask_for(brain, "a")
    brain.loop.ask(brain.server.end)
    brain.advance(10.0)
    assert brain.is_served("a")
    assert resting(brain) == ["b", "sleepy"]
    ask_for(brain, "b")
    assert brain.is_served("b")


def test_a_stop_ends_what_comes(brain: Brain) -> None:
    brain.server.obstacles["a"] = Obstacle("hang")
    ask_for(brain, "a")
    brain.loop.ask(brain.daemon.registry.restoring.stop)
    ask_for(brain, "b")  # its client is told when tritonserver ends
    assert "load b" not in brain.server.history
    assert brain.front.forgotten == []
    brain.stop()
    assert set(brain.kept()) == {"a", "b", "sleepy", "eager"}


def test_none_rests_where_requests_cannot_wait(start: Start) -> None:
    before = start()
    before.served(before.client.register("a", lazy=True))
    brain = start(awaits=False)
    assert resting(brain) == []
    assert brain.is_served("a")


@pytest.mark.parametrize(
    "settings",
    [
        {"model_repository": ("/nowhere",)},
        {"tritonserver_options": {"allow-vertex-ai": "true", "vertex-ai-default-model": "a"}},
    ],
)
def test_none_rests_that_others_may_need(start: Start, settings: dict[str, Any]) -> None:
    before = start()
    before.served(before.client.register("a", lazy=True))
    assert resting(start(**settings)) == []


@pytest.mark.parametrize(
    ("spec", "can"),
    [
        ({}, False),
        ({"lazy": True}, True),
        ({"autoscale": SLEEPY}, True),
        ({"autoscale": messages.Autoscale(1, 4)}, False),
        ({"lazy": True, "trial": messages.Trial("one", 10.0)}, False),  # its time would not pass
        (
            {"lazy": True, "openai": messages.OpenAICard(["chat"])},
            False,
        ),  # the front lists what is served
        ({"lazy": True, "isolation": "thread"}, False),
        ({"lazy": True, "config": {"sequence_batching": {}}}, False),
    ],
)
def test_which_models_tritonserver_need_not_have(spec: dict[str, Any], can: bool) -> None:
    config = spec.pop("config", {})
    assert can_rest(msgspec.structs.replace(model_spec("m", **spec), config=config)) is can
