"""When tritonserver says that it is ready, and when the service manager is told that the daemon is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fakes.brain import Brain, one_after_the_other
from support.fakes.triton.fake_server import FakeServer, Obstacle
from support.models import repositories

from pytriton._protocol import messages
from pytriton.dispatcher.readiness import Readiness

Start = Callable[..., Brain]
_VERTEX = {"allow-vertex-ai": "true", "vertex-ai-default-model": "m"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one daemon after the other in the same folder; the first keeps the models `m` and `n`."""
    with one_after_the_other(tmp_path) as start:
        first = start()
        for name in ("m", "n"):
            first.served(first.client.register(name))
        yield start


def readiness(brain: Brain) -> Readiness:
    return brain.daemon._readiness


@pytest.mark.parametrize(
    ("when", "while_hanging", "when_failed"),
    [("up", True, True), ("tried", False, True), ("served", False, False)],
)
def test_it_is_ready_when_the_setting_says_so(
    start: Start, when: str, while_hanging: bool, when_failed: bool
) -> None:
    brain = start(ready_when=when, usual_plan="hangs")
    assert brain.server.gate_open is while_hanging
    assert readiness(brain).announced is while_hanging
    brain.alive("m")[0].loaded()
    worker = brain.alive("n")[0]
    worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
    brain.advance(1.0)
    assert [brain.state_of(name) for name in ("m", "n")] == ["ready", "failed"]
    assert brain.server.gate_open is when_failed
    assert readiness(brain).announced  # all were tried
    brain.usual_plan = "serves"
    brain.served(brain.client.register("n"))
    brain.advance(1.0)
    assert brain.server.gate_open


@pytest.mark.parametrize("when", ["up", "tried", "served"])
def test_a_tritonserver_that_is_started_again_is_ready_when_it_has_its_models(
    start: Start, when: str
) -> None:
    brain = start(ready_when=when)
    assert brain.server.gate_open
    brain.server.obstacles["m"] = obstacle = Obstacle("hang")
    brain.server.end()
    brain.settle()
    assert not brain.server.gate_open
    brain.advance(5.0)
    assert brain.server.ready
    assert brain.server.gate_open is (when == "up")
    obstacle.gone.set()
    brain.advance(5.0)
    assert brain.server.gate_open
    assert brain.is_served("m")


def test_a_model_given_up_does_not_keep_it_waiting(start: Start) -> None:
    brain = start(usual_plan="fails")
    assert not brain.server.gate_open
    for name in ("m", "n"):
        brain.answered(brain.client.ask(messages.Unregister(name)))
    brain.advance(1.0)
    assert brain.server.gate_open


def test_models_of_repositories_are_waited_for_too(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    repositories.add(folder, "own", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    repositories.add(folder, "odd", {"1/model.plan": b""}, 'platform: "tensorrt_plan"')
    brain = start(model_repository=(str(folder),))
    assert not brain.server.gate_open
    repositories.add(folder, "odd", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    brain.answered(brain.client.ask(messages.LoadFromRepository("odd")))
    brain.advance(1.0)
    assert brain.server.gate_open


@pytest.mark.parametrize("when", ["up", "tried", "served"])
def test_vertex_ais_frontend_comes_up_when_its_model_is_served(start: Start, when: str) -> None:
    """That takes another start of tritonserver; a client that registers the model waits for it."""
    brain = start()
    brain.answered(brain.client.ask(messages.Unregister("m")))
    brain = start(tritonserver_options=_VERTEX, ready_when=when)
    assert (brain.server.starts, brain.server.vertex_model) == (1, None)
    assert brain.server.gate_open is (when == "up")
    request = brain.client.register("m")
    brain.settle()
    assert request.answer is None
    brain.served(request)
    assert (brain.server.starts, brain.server.vertex_model) == (2, "m")
    brain.advance(5.0)
    assert brain.server.gate_open
    assert brain.is_served("m")
    assert brain.is_served("n")


def test_a_front_that_has_vertex_ais_endpoint_is_not_ready_without_its_model(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not started a second time."""
    brain = start()
    brain.answered(brain.client.ask(messages.Unregister("m")))
    monkeypatch.setattr(FakeServer, "vertex_needs_model", False)
    brain = start(tritonserver_options=_VERTEX)
    brain.advance(5.0)
    assert (brain.server.vertex_model, brain.server.gate_open) == ("m", False)
    brain.served(brain.client.register("m"))
    brain.advance(5.0)
    assert (brain.server.starts, brain.server.gate_open) == (1, True)


def test_a_client_does_not_wait_for_ever_for_vertex_ais_frontend(start: Start) -> None:
    brain = start()
    brain.answered(brain.client.ask(messages.Unregister("m")))
    brain = start(tritonserver_options=_VERTEX, busy_timeout_s=20.0)
    brain.server.starts_fail = 100
    request = brain.client.register("m")
    brain.advance(25.0)
    assert isinstance(request.answer, messages.Registered)
    assert brain.server.vertex_model is None


def test_whoever_registers_another_model_does_not_wait(start: Start) -> None:
    brain = start(tritonserver_options={**_VERTEX, "vertex-ai-default-model": "later"})
    request = brain.client.register("x")
    brain.settle()
    assert isinstance(request.answer, messages.Registered)
