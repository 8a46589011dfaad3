"""Histories of a tritonserver that crashes while loading a repository's models: all but the culprit are served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle
from fakes.triton.repository_requests import ALL, load, reason, states
from support.models import repositories

from pytriton._protocol import messages

Start = Callable[..., SimulatedDaemon]
OWN = "ready tritonserver"


def add_own(repository: Path, *names: str) -> None:
    """Add models that tritonserver serves itself."""
    for name in names:
        repositories.add(repository, name, {"1/libtriton_mine.so": b""}, 'backend: "mine"')


@pytest.mark.parametrize("name", ["own", "pair"])
def test_tritonserver_exits_again_during_the_reload(start: Start, name: str) -> None:
    sim = start()
    sim.server.end()
    sim.server.obstacles[name] = Obstacle("end")
    sim.advance(30.0)
    assert states(sim) == ALL
    assert {"own", "pair", "py"} == set(sim.server.models)
    assert sim.server.starts == 3


def test_only_the_model_that_crashes_tritonserver_fails(start: Start, repository: Path) -> None:
    """It is retried only on request."""
    add_own(repository, "a", "z")
    sim = start()
    all_of_them = {**ALL, "a": OWN, "z": OWN}
    assert states(sim) == all_of_them
    sim.server.end()
    sim.server.obstacles["own"] = Obstacle("end", times=99)
    sim.advance(60.0)
    assert states(sim) == {**all_of_them, "own": "failed tritonserver"}
    assert "exited 2 times in a row while loading model own" in reason(sim, "own")
    assert {"a", "z", "py"} <= set(sim.server.models)
    assert sim.server.starts == 4
    assert sim.services.repository_models.records.failed
    sim.server.end()
    sim.advance(120.0)
    assert sim.server.starts == 5
    assert states(sim)["own"] == "failed tritonserver"
    sim.server.obstacles.clear()
    assert load(sim, "own") == ""
    sim.server.end()
    sim.advance(120.0)
    assert states(sim) == all_of_them
    assert reason(sim, "own") == ""


def test_a_client_may_retry_the_model_that_crashes_tritonserver(start: Start) -> None:
    """As often as it wants; the daemon itself does not load it again."""
    sim = start()
    sim.server.obstacles["own"] = Obstacle("end", times=2)
    asked = [sim.client.ask(messages.LoadFromRepository("own")) for _ in range(2)]
    for one in asked:
        assert isinstance(sim.answered(one), messages.Failure)
    sim.advance(60.0)
    assert states(sim)["own"] == "failed tritonserver"
    assert "py" in sim.server.models
    assert load(sim, "own") == ""
    assert states(sim)["own"] == OWN


def test_a_model_refused_at_one_start_is_retried_at_the_next(start: Start) -> None:
    sim = start()
    sim.server.end()
    sim.server.obstacles["own"] = Obstacle("refuse")
    sim.advance(30.0)
    assert states(sim)["own"] == "failed tritonserver"
    sim.server.end()
    sim.advance(30.0)
    assert states(sim) == ALL


@pytest.mark.parametrize(
    ("times", "own", "starts"), [(1, OWN, 2), (99, "failed", 3)], ids=["once", "each time"]
)
def test_tritonserver_exits_during_the_first_loads(
    start: Start,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    own: str,
    starts: int,
) -> None:
    """Models loaded at the same time, and those added during its restart, are served."""
    add_own(repository, "a", "b", "y", "z")
    made = SimulatedDaemon._make_server

    def make_server(self: SimulatedDaemon, *arguments: object, **callbacks: object) -> object:
        server = made(self, *arguments, **callbacks)  # type: ignore[arg-type]
        server.obstacles["own"] = Obstacle("end", times)
        return server

    monkeypatch.setattr(SimulatedDaemon, "_make_server", make_server)
    sim = start()
    sim.advance(120.0)
    found = states(sim)
    assert found["own"] == own
    assert {found[name] for name in ("a", "b", "y", "z")} == {OWN}
    assert found["py"] == "ready workers"
    assert found["pair"] == (OWN if times == 1 else "failed")
    assert sim.server.starts == starts
    assert sim.services.repository_models.tried
    if times > 1:
        assert "tritonserver exited 2 times in a row while loading model own" in reason(sim, "pair")


def test_tritonserver_exits_while_file_changes_are_loaded(start: Start, repository: Path) -> None:
    """The next one loads what changed, and what was added in between."""
    sim = start(model_control_mode="poll", tritonserver_options={"repository-poll-secs": "5"})
    sim.server.obstacles["own"] = Obstacle("end")
    sim.server.history.clear()
    (repository / "own" / "1" / "libtriton_mine.so").write_bytes(b"another one")
    for _ in range(100):
        if sim.server.ready:
            sim.advance(0.1)
    assert not sim.server.ready
    add_own(repository, "late")
    sim.advance(30.0)
    assert states(sim) == {**ALL, "late": OWN}
    # By the crashed server, by its successor as a served model, and as a changed one.
    assert sim.server.history.count("load own") == 3


def test_a_failed_replacement_changes_nothing(start: Start) -> None:
    sim = start()
    models = sim.services.repository_models
    models.records.server_lost = True
    sim.server.obstacles["own"] = Obstacle("refuse")
    sim.loop.run(models.reload_all())
    assert states(sim)["own"] == "failed tritonserver"
    models.records.server_lost = True
    sim.loop.ask(models.undo_reload)
    assert states(sim) == ALL
    assert not models.records.server_lost
    assert sim.answered(sim.client.ask(messages.UnloadFromRepository("own"))) == messages.Done()
