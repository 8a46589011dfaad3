"""When tritonserver reports that it is ready, and when the service manager is notified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from fakes.triton.fake_server import FakeServer, Obstacle
from support.models import repositories

from pytriton._protocol import messages
from pytriton.dispatcher.readiness import ReadinessController

Start = Callable[..., SimulatedDaemon]
_VERTEX = {"allow-vertex-ai": "true", "vertex-ai-default-model": "m"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one daemon after another in the same folder; the first one persists the models `m` and `n`."""
    with successive_daemons(tmp_path) as start:
        first = start()
        for name in ("m", "n"):
            first.served(first.client.register(name))
        yield start


def readiness(sim: SimulatedDaemon) -> ReadinessController:
    return sim.services.readiness


@pytest.mark.parametrize(
    ("when", "while_hanging", "when_failed"),
    [("server_up", True, True), ("all_attempted", False, True), ("all_loaded", False, False)],
)
def test_it_is_ready_when_the_setting_says_so(
    start: Start, when: str, while_hanging: bool, when_failed: bool
) -> None:
    sim = start(readiness=when, usual_plan="hangs")
    assert sim.server.gate_open is while_hanging
    assert readiness(sim).announced is while_hanging
    sim.alive("m")[0].loaded()
    worker = sim.alive("n")[0]
    worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
    sim.advance(1.0)
    assert [sim.state_of(name) for name in ("m", "n")] == ["ready", "failed"]
    assert sim.server.gate_open is when_failed
    assert readiness(sim).announced  # all were tried
    sim.usual_plan = "serves"
    sim.served(sim.client.register("n"))
    sim.advance(1.0)
    assert sim.server.gate_open


@pytest.mark.parametrize("when", ["server_up", "all_attempted", "all_loaded"])
def test_a_restarted_tritonserver_is_ready_when_it_has_its_models(start: Start, when: str) -> None:
    sim = start(readiness=when)
    assert sim.server.gate_open
    sim.server.obstacles["m"] = obstacle = Obstacle("hang")
    sim.server.end()
    sim.settle()
    assert not sim.server.gate_open
    sim.advance(5.0)
    assert sim.server.ready
    assert sim.server.gate_open is (when == "server_up")
    obstacle.gone.set()
    sim.advance(5.0)
    assert sim.server.gate_open
    assert sim.is_served("m")


def test_a_disabled_model_does_not_delay_readiness(start: Start) -> None:
    sim = start(usual_plan="fails")
    assert not sim.server.gate_open
    for name in ("m", "n"):
        sim.answered(sim.client.ask(messages.Unregister(name)))
    sim.advance(1.0)
    assert sim.server.gate_open


def test_repository_models_delay_readiness_too(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    repositories.add(folder, "own", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    repositories.add(folder, "odd", {"1/model.plan": b""}, 'platform: "tensorrt_plan"')
    sim = start(model_repository=(str(folder),))
    assert not sim.server.gate_open
    repositories.add(folder, "odd", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    sim.answered(sim.client.ask(messages.LoadFromRepository("odd")))
    sim.advance(1.0)
    assert sim.server.gate_open


@pytest.mark.parametrize("when", ["server_up", "all_attempted", "all_loaded"])
def test_vertex_ais_frontend_starts_when_its_model_is_served(start: Start, when: str) -> None:
    """That requires a restart of tritonserver; a client that registers the model waits for it."""
    sim = start()
    sim.answered(sim.client.ask(messages.Unregister("m")))
    sim = start(tritonserver_options=_VERTEX, readiness=when)
    assert (sim.server.starts, sim.server.vertex_model) == (1, None)
    assert sim.server.gate_open is (when == "server_up")
    request = sim.client.register("m")
    sim.settle()
    assert request.answer is None
    sim.served(request)
    assert (sim.server.starts, sim.server.vertex_model) == (2, "m")
    sim.advance(5.0)
    assert sim.server.gate_open
    assert sim.is_served("m")
    assert sim.is_served("n")


def test_a_frontend_with_vertex_ais_endpoint_is_not_ready_without_its_model(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not restarted."""
    sim = start()
    sim.answered(sim.client.ask(messages.Unregister("m")))
    monkeypatch.setattr(FakeServer, "vertex_needs_model", False)
    sim = start(tritonserver_options=_VERTEX)
    sim.advance(5.0)
    assert (sim.server.vertex_model, sim.server.gate_open) == ("m", False)
    sim.served(sim.client.register("m"))
    sim.advance(5.0)
    assert (sim.server.starts, sim.server.gate_open) == (1, True)


def test_a_client_does_not_wait_forever_for_vertex_ais_frontend(start: Start) -> None:
    sim = start()
    sim.answered(sim.client.ask(messages.Unregister("m")))
    sim = start(tritonserver_options=_VERTEX, server_wait_timeout_s=20.0)
    sim.server.starts_fail = 100
    request = sim.client.register("m")
    sim.advance(25.0)
    assert isinstance(request.answer, messages.Registered)
    assert sim.server.vertex_model is None


def test_registering_another_model_does_not_wait(start: Start) -> None:
    sim = start(tritonserver_options={**_VERTEX, "vertex-ai-default-model": "later"})
    request = sim.client.register("x")
    sim.settle()
    assert isinstance(request.answer, messages.Registered)
