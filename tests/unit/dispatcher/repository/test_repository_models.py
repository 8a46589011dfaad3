"""Histories of models that lie in a repository: loaded, loaded anew, unloaded, while things end or are refused."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.fakes.brain import Brain
from support.fakes.triton.fake_server import Obstacle
from support.fakes.triton.repository_requests import ALL, load, reason, states, unload
from support.models import repositories

from pytriton._host.settings import reload
from pytriton._protocol import messages
from pytriton.dispatcher.runtime.upgrade_snapshot import RepositoriesState

Start = Callable[..., Brain]


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
def test_what_is_loaded_at_the_start(
    start: Start, settings: dict[str, object], expected: dict[str, str]
) -> None:
    brain = start(**settings)
    assert states(brain) == expected
    assert brain.server.gate_open == ("failed" not in expected.values())
    assert set(brain.server.models) == {name for name, one in expected.items() if "ready" in one}
    assert brain.kept() == {}


def test_what_cannot_be_served_is_told_and_can_be_loaded_when_mended(
    start: Start, repository: Path
) -> None:
    brain = start()
    assert "no backend 'tensorrt'" in reason(brain, "odd")
    assert "no backend 'tensorrt'" in load(brain, "odd")
    repositories.add(repository, "odd", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    assert load(brain, "odd") == ""
    assert states(brain)["odd"] == "ready tritonserver"
    assert reason(brain, "odd") == ""
    assert brain.server.gate_open


def _explained(brain: Brain, name: str) -> str:
    answer = brain.answered(brain.client.ask(messages.Explain(name)))
    assert isinstance(answer, messages.Explanation)
    return answer.verdict


def test_what_cannot_be_loaded_at_the_start_is_told_where_one_looks(
    start: Start, repository: Path
) -> None:
    """Not only by the index: status, explain and the events have it, and why the server is not ready."""
    brain = start()
    answer = brain.answered(brain.client.ask(messages.GetStatus()))
    assert isinstance(answer, messages.Status)
    odd = next(one for one in answer.models if one.name == "odd")
    assert (odd.state, odd.served_by, odd.instances) == ("failed", "", [])
    assert "no backend 'tensorrt'" in (odd.error or "")
    (problem,) = answer.problems
    assert "not ready, since models could not be loaded: odd." in problem
    told = brain.answered(brain.client.ask(messages.GetEvents(kinds=["not_loaded"])))
    assert isinstance(told, messages.EventList)
    assert [(one.model, one.who) for one in told.events] == [("odd", "")]
    said = _explained(brain, "odd")
    assert said.startswith("odd is failed: it is in a model repository and could not be loaded: ")
    assert "no backend 'tensorrt'" in said
    brain.served(brain.client.register("odd"))
    states_of_it = [
        one.state for one in brain.loop.ask(brain.daemon.model_infos) if one.name == "odd"
    ]
    assert states_of_it == ["ready"]
    unregistered = brain.client.ask(messages.Unregister("odd"))
    brain.answered(unregistered)
    repositories.add(repository, "odd", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    assert load(brain, "odd") == ""
    brain.advance(1.0)
    answer = brain.answered(brain.client.ask(messages.GetStatus()))
    assert isinstance(answer, messages.Status)
    assert answer.problems == []
    assert _explained(brain, "odd").startswith("odd is ready")


def test_a_repository_that_cannot_be_read_is_told_by_status(start: Start, repository: Path) -> None:
    gone = repository.with_name("gone")
    brain = start(model_repository=(str(repository), str(gone)), ready_when="tried")
    answer = brain.answered(brain.client.ask(messages.GetStatus()))
    assert isinstance(answer, messages.Status)
    (problem,) = answer.problems
    assert problem.endswith(
        f"the model repository {gone} cannot be read: No such file or directory"
    )
    gone.mkdir()
    states(brain)  # looks them through
    answer = brain.answered(brain.client.ask(messages.GetStatus()))
    assert isinstance(answer, messages.Status)
    assert answer.problems == []


@pytest.mark.parametrize("name", ["py", "own"])
def test_a_model_that_cannot_be_loaded_anew_serves_on(
    start: Start, repository: Path, name: str
) -> None:
    brain = start()
    before = brain.server.models[name]
    brain.server.obstacles[name] = Obstacle("refuse")
    assert "tritonserver did not load" in load(brain, name)
    assert brain.server.models[name] is before
    assert states(brain) == ALL
    assert "tritonserver did not load" in reason(brain, name)
    (repository / name / "config.pbtxt").write_text("{")
    assert "config.pbtxt" in load(brain, name)
    assert states(brain) == ALL
    assert unload(brain, name) == ""
    assert states(brain)[name] == "unloaded"
    assert reason(brain, name) == ""


def test_a_model_for_workers_is_loaded_anew_and_unloaded(start: Start) -> None:
    """Without a failed request: the former one serves until then. Nothing of it is kept."""
    brain = start()
    (old,) = brain.alive("py")
    assert load(brain, "py") == ""
    (new,) = brain.alive("py")
    assert new is not old
    assert brain.is_served("py")
    brain.served(brain.client.ask(messages.Scale("py", 2)))
    assert load(brain, "py") == ""  # it is the repository's still
    assert brain.kept() == {}
    assert unload(brain, "py") == ""
    assert brain.is_clean("py")
    assert "no model 'py' of a model repository is loaded" in unload(brain, "py")


def test_a_model_of_tritonservers_own_leaves_no_link_behind(start: Start) -> None:
    brain = start()
    link = brain.rundir.models / "own"
    assert link.is_symlink()
    refused = brain.client.register("own")
    brain.settle()
    assert "tritonserver itself serves a model named 'own'" in refused.failure
    brain.server.obstacles["own"] = Obstacle("refuse")
    load(brain, "own")
    assert link.is_symlink()
    assert unload(brain, "own") == ""
    assert not link.is_symlink()
    brain.server.obstacles["own"] = Obstacle("refuse")
    load(brain, "own")
    assert not link.is_symlink()
    assert brain.server.failures == set()
    brain.served(brain.client.register("own"))


def test_tritonserver_ends_and_has_all_of_them_again(start: Start) -> None:
    """Models first that ensembles are made of."""
    brain = start()
    brain.server.history.clear()
    brain.server.end()
    brain.settle()
    assert {brain.state_of(name) for name in ("own", "pair", "py")} == {"unready"}
    brain.advance(10.0)
    assert states(brain) == ALL
    own_ones = [line for line in brain.server.history if line in ("load own", "load pair")]
    assert own_ones == ["load own", "load pair"]
    assert (brain.rundir.models / "own").is_symlink()


def test_a_load_that_hangs_after_a_restart_holds_up_no_other_model(
    start: Start, repository: Path
) -> None:
    for name in ("other", "third"):
        repositories.add(repository, name, {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    brain = start()
    obstacle = Obstacle("hang")
    brain.server.obstacles["own"] = obstacle
    brain.server.end()
    brain.advance(10.0)
    assert {"other", "third"} <= set(brain.server.models)
    assert "own" not in brain.server.models
    brain.loop.ask(obstacle.gone.set)
    brain.advance(1.0)
    assert states(brain) == {**ALL, "other": "ready tritonserver", "third": "ready tritonserver"}


def test_the_model_that_ends_tritonserver_at_each_start_is_found_among_many(
    start: Start, repository: Path
) -> None:
    """The others, which it took along, are served."""
    for name in ("other", "third"):
        repositories.add(repository, name, {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    brain = start()
    brain.server.obstacles["other"] = Obstacle("end", times=9)
    brain.server.end()
    brain.advance(60.0)
    told = states(brain)
    assert told.pop("other").startswith("failed")
    assert told == {**ALL, "third": "ready tritonserver"}


class LatePython:
    """In the place of `PythonOnDemand`: the python backend's Python takes until a test says that it is there."""

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


@pytest.mark.parametrize("is_told", [True, False], ids=["by this version", "by one before"])
def test_tritonserver_ends_before_the_next_version_has_laid_out_its_python(
    start: Start, repository: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Whoever loads a model again that needs the python backend waits for that."""
    monkeypatch.setattr("pytriton.dispatcher.services.PythonOnDemand", LatePython)
    repositories.add(repository, "stock", {"1/model.py": b""}, 'backend: "python"')
    brain = start(python_backend_model=("stock",))
    models = brain.daemon.repository_models
    python = cast(LatePython, models._python)
    brain.loop.ask(python.there.set)
    brain.advance(10.0)
    expected = {**ALL, "stock": "ready tritonserver"}
    assert states(brain) == expected
    left = msgspec.to_builtins(models.hand_over())
    python.there.clear()
    for one in left["models"]:
        if not is_told:
            del one["backend"]
    models.known.clear()
    models.adopt(msgspec.convert(left, type=RepositoriesState))
    assert models.hand_over().python  # to the version after this one, too
    brain.server.history.clear()
    brain.server.end()
    brain.advance(10.0)
    assert "load stock" not in brain.server.history
    assert not models.settled
    brain.loop.ask(python.there.set)
    brain.advance(10.0)
    assert "load stock" in brain.server.history
    assert states(brain) == expected


def test_an_ensemble_is_as_ready_as_its_steps(start: Start) -> None:
    brain = start()
    brain.usual_plan = "hangs"
    brain.alive("py")[0].end()
    brain.advance(10.0)
    assert brain.state_of("py") == "unready"
    assert brain.state_of("pair") == "unready"
    assert brain.state_of("own") == "ready"
    brain.alive("py")[0].loaded()
    brain.advance(10.0)
    assert brain.state_of("pair") == "ready"


def test_a_step_that_cannot_be_loaded_is_told_by_its_ensemble(
    start: Start, repository: Path
) -> None:
    (repository / "py" / "spoilt").touch()
    brain = start()
    assert states(brain)["pair"] == "failed"
    assert reason(brain, "pair") == (
        "ensemble pair: its step py cannot be loaded: model py: its files are spoilt"
    )


@pytest.mark.parametrize("name", ["py", "own", "pair"])
def test_a_client_of_tritonserver_unloads_and_loads_a_model(start: Start, name: str) -> None:
    brain = start()
    loaded = brain.server.models[name]
    brain.loop.run(brain.server.unload(name))
    brain.advance(6.0)
    assert states(brain)[name].startswith("unloaded")
    brain.loop.run(brain.server.load(name, dict(loaded.config)))
    brain.advance(6.0)
    assert states(brain)[name].startswith("ready")


def test_a_repository_is_polled(start: Start, repository: Path) -> None:
    """What comes is loaded, what changes loaded anew, what goes unloaded; what is spoilt serves on."""
    brain = start(model_control_mode="poll", repository_poll_s=5.0)
    repositories.add(repository, "late", {"1/model.py": b""}, 'backend: "python"')
    brain.advance(6.0)
    assert brain.is_served("late")
    (old,) = brain.alive("late")
    (repository / "late" / "spoilt").touch()
    brain.advance(6.0)
    assert old.alive
    assert states(brain)["late"] == "ready workers"
    (repository / "late" / "spoilt").rename(repository / "late" / "mended")
    brain.advance(6.0)
    assert not old.alive
    (repository / "late").rename(repository / ".away")
    brain.advance(6.0)
    assert brain.is_clean("late")
    assert states(brain)["late"] == "unloaded"


def test_what_changes_during_an_upgrade_is_loaded_afterwards(
    start: Start, repository: Path
) -> None:
    """The next version goes on from what the former one has seen, and knows what that has loaded."""
    brain = start(model_control_mode="poll", repository_poll_s=5.0)
    models = brain.daemon.repository_models
    before = {name: dataclasses.replace(one) for name, one in models.known.items()}
    (old,) = brain.alive("py")
    models.watch.hold()
    handed = msgspec.msgpack.encode(models.hand_over())
    (repository / "py" / "1" / "model.py").write_text("# another one")
    (repository / "py" / os.fsdecode(b"no text: \xff")).touch()
    brain.advance(20.0)
    assert old.alive
    models.known.clear()
    models.adopt(msgspec.msgpack.decode(handed, type=RepositoriesState))
    for name, one in models.known.items():
        before[name].lock = one.lock
    assert dict(models.known) == before
    models.watch.release()
    brain.advance(6.0)
    assert not old.alive
    assert brain.is_served("py")
    assert states(brain) == ALL


@pytest.mark.parametrize("is_reloaded", [True, False], ids=["reloaded", "drained"])
def test_a_stop_gives_tritonservers_own_models_the_grace_that_holds(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_reloaded: bool
) -> None:
    brain = start(grace_period_s=30.0)
    brain.server.answers_for_s = 60.0
    if is_reloaded:
        wanted = msgspec.structs.replace(brain.config, grace_period_s=600.0)
        monkeypatch.setattr(reload, "_load", lambda _: wanted)
        brain.answered(brain.client.ask(messages.Reload()))
        brain.daemon.ending.request("the test is over")
    else:
        brain.answered(brain.client.ask(messages.Drain(settle_s=0.0, timeout_s=600.0)))
    brain.advance(59.0)
    assert {"unload own", "unload pair"} <= set(brain.server.history)
    assert brain.server.ready
    brain.advance(5.0)
    assert brain.main.done()


def test_nothing_is_handed_over_while_models_are_loaded(start: Start) -> None:
    brain = start(usual_plan="hangs")
    assert not brain.daemon.repository_models.settled


def test_the_daemon_stops_while_models_are_loaded(start: Start) -> None:
    brain = start(usual_plan="hangs")
    assert states(brain)["py"] == "loading"
    brain.stop()
    assert brain.alive() == []
    assert brain.server.models.keys() <= {"own"}  # it goes with tritonserver
