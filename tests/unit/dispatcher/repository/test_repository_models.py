"""Histories of a repository's models: loaded, reloaded and unloaded, while things fail."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle
from fakes.triton.repository_requests import ALL, load, reason, states, unload
from support.models import repositories

from pytriton._host.settings import reload
from pytriton._protocol import messages
from pytriton.dispatcher.upgrade.snapshot import RepositoriesState

Start = Callable[..., SimulatedDaemon]


NONE = dict.fromkeys(ALL, "unloaded")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ALL),
        ({"model_control_mode": "explicit"}, NONE),
        ({"model_control_mode": "explicit", "load_model": ("*",)}, ALL),
        (
            {"model_control_mode": "explicit", "load_model": ("own",)},
            {**NONE, "own": "ready tritonserver"},
        ),
        ({"model_control_mode": "explicit", "load_model": ("pair",)}, {**ALL, "odd": "unloaded"}),
    ],
    ids=["all", "none", "*", "one", "an ensemble with its steps"],
)
def test_models_loaded_at_startup(
    start: Start, settings: dict[str, object], expected: dict[str, str]
) -> None:
    sim = start(**settings)
    assert states(sim) == expected
    assert sim.server.gate_open == ("failed" not in expected.values())
    assert set(sim.server.models) == {name for name, one in expected.items() if "ready" in one}
    assert sim.persisted() == {}


def test_unservable_models_are_reported_and_load_once_fixed(start: Start, repository: Path) -> None:
    sim = start()
    assert "no backend 'tensorrt'" in reason(sim, "odd")
    assert "no backend 'tensorrt'" in load(sim, "odd")
    repositories.add(repository, "odd", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    assert load(sim, "odd") == ""
    assert states(sim)["odd"] == "ready tritonserver"
    assert reason(sim, "odd") == ""
    assert sim.server.gate_open


def _status(sim: SimulatedDaemon) -> messages.Status:
    answer = sim.answered(sim.client.ask(messages.GetStatus()))
    assert isinstance(answer, messages.Status)
    return answer


def _explained(sim: SimulatedDaemon, name: str) -> str:
    answer = sim.answered(sim.client.ask(messages.Explain(name)))
    assert isinstance(answer, messages.Explanation)
    return answer.verdict


def test_startup_load_failures_appear_in_status_and_log(start: Start, repository: Path) -> None:
    """As well as in explain and the events, with the reason why the server is not ready."""
    sim = start()
    status = _status(sim)
    odd = next(one for one in status.models if one.name == "odd")
    assert (odd.state, odd.served_by, odd.instances) == ("failed", "", [])
    assert "no backend 'tensorrt'" in (odd.error or "")
    (problem,) = status.problems
    assert "not ready, since models could not be loaded: odd." in problem
    reported = sim.answered(sim.client.ask(messages.GetEvents(kinds=["repository_load_failed"])))
    assert isinstance(reported, messages.EventList)
    assert [(one.model, one.who) for one in reported.events] == [("odd", "")]
    said = _explained(sim, "odd")
    assert said.startswith("odd is failed: it is in a model repository and could not be loaded: ")
    assert "no backend 'tensorrt'" in said
    sim.served(sim.client.register("odd"))
    assert [one.state for one in _status(sim).models if one.name == "odd"] == ["ready"]
    sim.answered(sim.client.ask(messages.Unregister("odd")))
    repositories.add(repository, "odd", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    assert load(sim, "odd") == ""
    sim.advance(1.0)
    assert _status(sim).problems == []
    assert _explained(sim, "odd").startswith("odd is ready")


def test_a_repository_that_cannot_be_read_is_reported_by_status(
    start: Start, repository: Path
) -> None:
    gone = repository.with_name("gone")
    sim = start(model_repository=(str(repository), str(gone)), readiness="all_attempted")
    (problem,) = _status(sim).problems
    assert problem.endswith(
        f"the model repository {gone} cannot be read: No such file or directory"
    )
    gone.mkdir()
    states(sim)  # checks them
    assert _status(sim).problems == []


@pytest.mark.parametrize("name", ["py", "own"])
def test_a_model_that_cannot_be_reloaded_keeps_serving(
    start: Start, repository: Path, name: str
) -> None:
    sim = start()
    before = sim.server.models[name]
    sim.server.obstacles[name] = Obstacle("refuse")
    assert "tritonserver did not load" in load(sim, name)
    assert sim.server.models[name] is before
    assert states(sim) == ALL
    assert "tritonserver did not load" in reason(sim, name)
    (repository / name / "config.pbtxt").write_text("{")
    assert "config.pbtxt" in load(sim, name)
    assert states(sim) == ALL
    assert unload(sim, name) == ""
    assert states(sim)[name] == "unloaded"
    assert reason(sim, name) == ""


def test_a_model_for_workers_is_reloaded_and_unloaded(start: Start) -> None:
    """Without a failed request: the previous version serves until then. Nothing of it is persisted."""
    sim = start()
    (old,) = sim.alive("py")
    assert load(sim, "py") == ""
    (new,) = sim.alive("py")
    assert new is not old
    assert sim.is_served("py")
    sim.served(sim.client.ask(messages.Scale("py", 2)))
    assert load(sim, "py") == ""  # it still belongs to the repository
    assert sim.persisted() == {}
    assert unload(sim, "py") == ""
    assert sim.is_clean("py")
    assert "no model named 'py' has been loaded from a model repository" in unload(sim, "py")


def test_a_model_of_tritonserver_leaves_no_link_behind(start: Start) -> None:
    sim = start()
    link = sim.rundir.models / "own"
    assert link.is_symlink()
    refused = sim.client.register("own")
    sim.settle()
    assert "tritonserver already serves a model named 'own'" in refused.failure
    sim.server.obstacles["own"] = Obstacle("refuse")
    load(sim, "own")
    assert link.is_symlink()
    assert unload(sim, "own") == ""
    assert not link.is_symlink()
    sim.server.obstacles["own"] = Obstacle("refuse")
    load(sim, "own")
    assert not link.is_symlink()
    assert sim.server.failures == set()
    sim.served(sim.client.register("own"))


def test_a_restarted_tritonserver_reloads_all_models(start: Start) -> None:
    """Steps of ensembles first."""
    sim = start()
    sim.server.history.clear()
    sim.server.end()
    sim.settle()
    assert {sim.state_of(name) for name in ("own", "pair", "py")} == {"not_ready"}
    sim.advance(10.0)
    assert states(sim) == ALL
    own_ones = [line for line in sim.server.history if line in ("load own", "load pair")]
    assert own_ones == ["load own", "load pair"]
    assert (sim.rundir.models / "own").is_symlink()


def test_a_hanging_load_after_a_restart_blocks_no_other_model(
    start: Start, repository: Path
) -> None:
    for name in ("other", "third"):
        repositories.add(repository, name, {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    sim = start()
    obstacle = Obstacle("hang")
    sim.server.obstacles["own"] = obstacle
    sim.server.end()
    sim.advance(10.0)
    assert {"other", "third"} <= set(sim.server.models)
    assert "own" not in sim.server.models
    sim.loop.ask(obstacle.gone.set)
    sim.advance(1.0)
    assert states(sim) == {**ALL, "other": "ready tritonserver", "third": "ready tritonserver"}


class LatePython:
    """Replaces `PythonOnDemand`: the python backend's Python becomes available when the test says so."""

    def __init__(self, *_: object) -> None:
        self.there = asyncio.Event()

    @property
    def is_there(self) -> bool:
        return self.there.is_set()

    def is_needed(self, backend: str) -> bool:
        return backend == "python"

    async def ensure(self, model: str) -> None:
        await self.there.wait()

    ensure_if_possible = ensure


@pytest.mark.parametrize("is_reported", [True, False], ids=["by this version", "by one before"])
def test_tritonserver_exits_before_an_upgraded_daemon_has_its_python(
    start: Start, repository: Path, monkeypatch: pytest.MonkeyPatch, is_reported: bool
) -> None:
    """Reloads of models that need the python backend wait for it."""
    monkeypatch.setattr("pytriton.dispatcher.services.PythonOnDemand", LatePython)
    repositories.add(repository, "stock", {"1/model.py": b""}, 'backend: "python"')
    sim = start(python_backend_model=("stock",))
    models = sim.services.repository_models
    python = cast(LatePython, models._python)
    sim.loop.ask(python.there.set)
    sim.advance(10.0)
    expected = {**ALL, "stock": "ready tritonserver"}
    assert states(sim) == expected
    left = msgspec.to_builtins(models.hand_over())
    python.there.clear()
    for one in left["models"]:
        if not is_reported:
            del one["backend"]
    models.records.clear()
    models.adopt(msgspec.convert(left, type=RepositoriesState))
    assert models.hand_over().python  # to the version after this one, too
    sim.server.history.clear()
    sim.server.end()
    sim.advance(10.0)
    assert "load stock" not in sim.server.history
    assert not models.is_quiescent
    sim.loop.ask(python.there.set)
    sim.advance(10.0)
    assert "load stock" in sim.server.history
    assert states(sim) == expected


def test_an_ensemble_is_as_ready_as_its_steps(start: Start) -> None:
    sim = start()
    sim.usual_plan = "hangs"
    sim.alive("py")[0].end()
    sim.advance(10.0)
    assert sim.state_of("py") == "not_ready"
    assert sim.state_of("pair") == "not_ready"
    assert sim.state_of("own") == "ready"
    sim.alive("py")[0].loaded()
    sim.advance(10.0)
    assert sim.state_of("pair") == "ready"


def test_a_step_that_cannot_be_loaded_is_reported_by_its_ensemble(
    start: Start, repository: Path
) -> None:
    (repository / "py" / "spoilt").touch()
    sim = start()
    assert states(sim)["pair"] == "failed"
    assert reason(sim, "pair") == (
        "ensemble pair: its step py cannot be loaded: model py: its files are spoilt"
    )


@pytest.mark.parametrize("name", ["py", "own", "pair"])
def test_a_client_of_tritonserver_unloads_and_loads_a_model(start: Start, name: str) -> None:
    sim = start()
    loaded = sim.server.models[name]
    sim.loop.run(sim.server.unload(name))
    sim.advance(6.0)
    assert states(sim)[name].startswith("unloaded")
    sim.loop.run(sim.server.load(name, dict(loaded.config)))
    sim.advance(6.0)
    assert states(sim)[name].startswith("ready")


def test_a_repository_is_polled(start: Start, repository: Path) -> None:
    """Added models are loaded, changed ones reloaded, removed ones unloaded; broken ones keep serving."""
    sim = start(model_control_mode="poll", tritonserver_options={"repository-poll-secs": "5"})
    repositories.add(repository, "late", {"1/model.py": b""}, 'backend: "python"')
    sim.advance(6.0)
    assert sim.is_served("late")
    (old,) = sim.alive("late")
    (repository / "late" / "spoilt").touch()
    sim.advance(6.0)
    assert old.alive
    assert states(sim)["late"] == "ready workers"
    (repository / "late" / "spoilt").rename(repository / "late" / "mended")
    sim.advance(6.0)
    assert not old.alive
    (repository / "late").rename(repository / ".away")
    sim.advance(6.0)
    assert sim.is_clean("late")
    assert states(sim)["late"] == "unloaded"


def test_changes_during_an_upgrade_are_loaded_afterwards(start: Start, repository: Path) -> None:
    """The next version continues from the previous one's snapshot and loaded models."""
    sim = start(model_control_mode="poll", tritonserver_options={"repository-poll-secs": "5"})
    models = sim.services.repository_models
    before = {name: dataclasses.replace(one) for name, one in models.records.items()}
    (old,) = sim.alive("py")
    models.watch.hold()
    handed = msgspec.msgpack.encode(models.hand_over())
    (repository / "py" / "1" / "model.py").write_text("# another one")
    (repository / "py" / os.fsdecode(b"no text: \xff")).touch()
    sim.advance(20.0)
    assert old.alive
    models.records.clear()
    models.adopt(msgspec.msgpack.decode(handed, type=RepositoriesState))
    for name, one in models.records.items():
        before[name].lock = one.lock
    assert dict(models.records) == before
    models.watch.release()
    sim.advance(6.0)
    assert not old.alive
    assert sim.is_served("py")
    assert states(sim) == ALL


@pytest.mark.parametrize("is_reloaded", [True, False], ids=["reloaded", "drained"])
def test_a_stop_gives_tritonservers_own_models_the_current_grace_period(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_reloaded: bool
) -> None:
    sim = start(grace_period_s=30.0)
    sim.server.answers_for_s = 60.0
    if is_reloaded:
        wanted = msgspec.structs.replace(sim.config, grace_period_s=600.0)
        monkeypatch.setattr(reload, "_load", lambda _: wanted)
        sim.answered(sim.client.ask(messages.Reload()))
        sim.services.shutdown.request("the test is over")
    else:
        sim.answered(sim.client.ask(messages.Drain(settle_s=0.0, timeout_s=600.0)))
    sim.advance(59.0)
    assert {"unload own", "unload pair"} <= set(sim.server.history)
    assert sim.server.ready
    sim.advance(5.0)
    assert sim.main.done()


def test_nothing_is_handed_over_while_models_are_loaded(start: Start) -> None:
    sim = start(usual_plan="hangs")
    assert not sim.services.repository_models.is_quiescent


def test_the_daemon_stops_while_models_are_loaded(start: Start) -> None:
    sim = start(usual_plan="hangs")
    assert states(sim)["py"] == "loading"
    sim.stop()
    assert sim.alive() == []
    assert sim.server.models.keys() <= {"own"}  # it goes with tritonserver
