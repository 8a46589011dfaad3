"""Histories of persisted lazy models: tritonserver loads one on its first request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import msgspec
import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from fakes.suspending_daemons import SLEEPY
from fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages
from pytriton.dispatcher.models.server_starts import can_load_lazily

Start = Callable[..., SimulatedDaemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon after the previous one has stopped."""
    with successive_daemons(tmp_path, queues_requests=True) as start:
        yield start


@pytest.fixture
def sim(start: Start) -> SimulatedDaemon:
    """A daemon that persists two lazy models, a suspended one, and a model that is loaded at the start."""
    before = start()
    for name in ("a", "b"):
        before.served(before.client.register(name, lazy=True))
    before.served(before.client.register("sleepy", autoscale=SLEEPY))
    before.served(before.client.register("eager"))
    return start()


def info(sim: SimulatedDaemon, name: str) -> messages.ModelInfo:
    return next(one for one in sim.loop.ask(sim.services.status.model_infos) if one.name == name)


def deferred(sim: SimulatedDaemon) -> list[str]:
    return [entry.spec.name for entry in sim.services.registry.restoring.lazy_entries()]


def ask_for(sim: SimulatedDaemon, name: str) -> None:
    """Let a request for a model wait in the frontend."""
    sim.loop.ask(lambda: sim.frontend.on_request(name))
    sim.settle()


def test_tritonserver_is_ready_without_lazy_models(sim: SimulatedDaemon) -> None:
    assert set(sim.server.models) == {"eager"}
    assert sim.server.gate_open
    assert deferred(sim) == list(sim.loop.ask(sim.frontend.names).lazy) == ["a", "b", "sleepy"]
    assert [sim.state_of(name) for name in ("a", "b", "sleepy", "eager")] == [
        *["suspended"] * 3,
        "ready",
    ]
    assert "on the first request" in info(sim, "a").scaling
    assert sim.services.registry.restoring.failures() == {}
    sim.advance(600.0)
    assert deferred(sim) == ["a", "b", "sleepy"]


def test_a_request_loads_a_lazy_model(sim: SimulatedDaemon) -> None:
    ask_for(sim, "b")
    assert sim.is_served("b")
    assert sim.alive("b") == []  # it is suspended: a batch resumes it
    assert deferred(sim) == ["a", "sleepy"]
    assert sim.frontend.forgotten == []  # the frontend has seen the load
    ask_for(sim, "b")  # for example of another tritonserver process
    assert sim.server.history.count("load b") == 1
    assert sim.frontend.forgotten == ["b"]


def test_a_failed_restore_blocks_no_request(sim: SimulatedDaemon) -> None:
    sim.server.obstacles["a"] = Obstacle("refuse")
    ask_for(sim, "a")
    assert sim.frontend.forgotten == ["a"]
    assert sim.state_of("a") == "failed"
    ask_for(sim, "a")
    assert sim.frontend.forgotten == ["a", "a"]


def test_an_unregistered_lazy_model_is_gone(sim: SimulatedDaemon) -> None:
    assert sim.answered(sim.client.ask(messages.Unregister("a"))) == messages.Done()
    assert sim.frontend.forgotten == ["a"]
    assert "a" not in sim.persisted()
    assert sim.is_clean("a")


def test_a_lazy_model_unregistered_during_its_load_is_gone(sim: SimulatedDaemon) -> None:
    sim.server.obstacles["a"] = hangs = Obstacle("hang")
    ask_for(sim, "a")
    gone = sim.client.ask(messages.Unregister("a"))
    sim.settle()
    assert gone.answer is None
    sim.loop.ask(hangs.gone.set)
    assert sim.answered(gone) == messages.Done()
    assert sim.frontend.forgotten == ["a"]
    assert sim.is_clean("a")


def test_a_client_change_loads_the_model(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.ask(messages.Scale("a", 2)))
    assert len(sim.alive("a")) == 2
    sim.served(sim.client.register("b", replace=True))
    assert sim.is_served("b")
    assert sim.answered(sim.client.ask(messages.LogRequests("sleepy", True))) == messages.Done()
    assert deferred(sim) == []


def test_a_lazy_models_name_is_in_use(sim: SimulatedDaemon) -> None:
    answer = sim.answered(sim.client.register("a"))
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "exists"
    assert deferred(sim) == ["a", "b", "sleepy"]


def test_lazy_models_are_synchronized_to_another_daemon(sim: SimulatedDaemon) -> None:
    answer = sim.answered(sim.client.ask(messages.GetRegistrations([], payloads=True)))
    assert isinstance(answer, messages.Registrations)
    assert {one.spec.name for one in answer.registrations} == {"a", "b", "sleepy", "eager"}
    assert all(one.payloads for one in answer.registrations)
    known = sim.client.ask(messages.GetRegistrations([], known=answer.state))
    assert sim.answered(known) == messages.Registrations([], answer.state)


def test_a_model_that_calls_one_waits_for_it(sim: SimulatedDaemon) -> None:
    task = sim.loop.create_task(sim.handle(messages.AskReadiness("a")))
    sim.settle()
    assert task.result() == messages.Readiness(True)
    assert sim.is_served("a")
    task = sim.loop.create_task(sim.handle(messages.AskReadiness("nobody")))
    sim.settle()
    assert task.result() == messages.Readiness(False)


def test_a_load_interrupted_by_tritonservers_exit_is_repeated_in_the_next(
    sim: SimulatedDaemon,
) -> None:
    sim.server.obstacles["a"] = Obstacle("end")
    ask_for(sim, "a")
    # Requests wait for it in the next one, too.
    assert "a" in sim.loop.ask(sim.frontend.names).lazy
    sim.advance(10.0)
    assert sim.is_served("a")
    assert deferred(sim) == ["b", "sleepy"]


def test_lazy_models_stay_unloaded_after_tritonserver_restarts(sim: SimulatedDaemon) -> None:
    ask_for(sim, "a")
    sim.loop.ask(sim.server.end)
    sim.advance(10.0)
    assert sim.is_served("a")
    assert deferred(sim) == ["b", "sleepy"]
    ask_for(sim, "b")
    assert sim.is_served("b")


def test_a_stop_cancels_the_load(sim: SimulatedDaemon) -> None:
    sim.server.obstacles["a"] = Obstacle("hang")
    ask_for(sim, "a")
    sim.loop.ask(sim.services.registry.restoring.stop)
    ask_for(sim, "b")  # its client is notified when tritonserver exits
    assert "load b" not in sim.server.history
    assert sim.frontend.forgotten == []
    sim.stop()
    assert set(sim.persisted()) == {"a", "b", "sleepy", "eager"}


def test_no_model_is_lazy_where_requests_cannot_wait(start: Start) -> None:
    before = start()
    before.served(before.client.register("a", lazy=True))
    sim = start(queues_requests=False)
    assert deferred(sim) == []
    assert sim.is_served("a")


@pytest.mark.parametrize(
    "settings",
    [
        {"model_repository": ("/nowhere",)},
        {"tritonserver_options": {"allow-vertex-ai": "true", "vertex-ai-default-model": "a"}},
    ],
)
def test_models_needed_by_others_are_not_lazy(start: Start, settings: dict[str, Any]) -> None:
    before = start()
    before.served(before.client.register("a", lazy=True))
    assert deferred(start(**settings)) == []


@pytest.mark.parametrize(
    ("spec", "can"),
    [
        ({}, False),
        ({"lazy": True}, True),
        ({"autoscale": SLEEPY}, True),
        ({"autoscale": messages.Autoscale(1, 4)}, False),
        ({"lazy": True, "lease": messages.Lease("one", 10.0)}, False),  # its time would not pass
        # The frontend lists what is served.
        ({"lazy": True, "openai": messages.OpenAICard(["chat"])}, False),
        ({"lazy": True, "isolation": "thread"}, False),
        ({"lazy": True, "config": {"sequence_batching": {}}}, False),
    ],
)
def test_which_models_are_lazy(spec: dict[str, Any], can: bool) -> None:
    config = spec.pop("config", {})
    assert can_load_lazily(msgspec.structs.replace(model_spec("m", **spec), config=config)) is can
