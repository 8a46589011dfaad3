"""Histories of names that repositories and clients both have: who registers a model, has its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fakes.brain import Brain
from support.fakes.triton.repository_requests import ALL, load, states, unload
from support.models import repositories

from pytriton._protocol import messages
from pytriton.dispatcher.repository import model_loading

Start = Callable[..., Brain]


def test_a_name_that_somebody_has_registered_is_theirs(start: Start) -> None:
    brain = start(model_control_mode="explicit")
    for name in ("py", "own"):
        brain.served(brain.client.register(name))
        assert "is registered already: unregister it" in load(brain, name)
        brain.answered(brain.client.ask(messages.Unregister(name)))
        assert load(brain, name) == ""


def test_names_that_were_registered_count_before_those_of_repositories(start: Start) -> None:
    brain = start(model_control_mode="explicit")
    brain.served(brain.client.register("py", b"registered"))
    brain = start()
    assert states(brain)["py"].startswith("failed")
    registration = brain.loop.ask(lambda: brain.daemon.registry.by_name("py"))
    assert registration.payloads(0) == [b"registered"]


@pytest.mark.parametrize("how", ["replaces", "unregisters and registers"])
def test_a_model_of_a_clients_in_the_place_of_a_repositorys_is_theirs(
    start: Start, repository: Path, how: str
) -> None:
    brain = start(model_control_mode="poll", repository_poll_s=5.0)
    if how != "replaces":
        brain.answered(brain.client.ask(messages.Unregister("py")))
    brain.served(brain.client.register("py", b"a client's", replace=True))
    (theirs,) = brain.alive("py")
    assert states(brain) == {**ALL, "py": "unloaded"}
    assert "is registered already: unregister it" in load(brain, "py")
    (repository / "py" / "1" / "model.py").write_text("# another one")
    brain.advance(6.0)
    assert "no model 'py' of a model repository is loaded" in unload(brain, "py")
    (repository / "py").rename(repository / ".away")
    brain.advance(6.0)
    assert brain.alive("py") == [theirs]
    assert brain.is_served("py")
    assert list(brain.kept()) == ["py"]
    brain.stop()
    brain = start(model_control_mode="explicit")
    registration = brain.loop.ask(lambda: brain.daemon.registry.by_name("py"))
    assert registration.payloads(0) == [b"a client's"]


def test_a_client_registers_a_model_while_the_repositorys_is_prepared(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain = start()
    go_on = asyncio.Event()
    prepare: Any = vars(model_loading)["specification"]

    async def prepare_later(*arguments: object) -> object:
        await go_on.wait()
        return await prepare(*arguments)

    monkeypatch.setattr(model_loading, "specification", prepare_later)
    request = brain.client.ask(messages.LoadFromRepository("py"))
    brain.settle()
    brain.served(brain.client.register("py", replace=True))
    (theirs,) = brain.alive("py")
    brain.loop.ask(go_on.set)
    answer = brain.answered(request)
    assert isinstance(answer, messages.Failure)
    assert "is registered already: unregister it" in answer.text
    assert brain.alive("py") == [theirs]
    assert unload(brain, "py") != ""
    assert list(brain.kept()) == ["py"]


def test_unloading_leaves_what_a_client_has_kept_under_the_name(start: Start) -> None:
    """A registration that could not be restored waits for another start, while the repository's has its name."""
    brain = start(model_control_mode="explicit")
    brain.served(brain.client.register("py"))
    brain = start(model_control_mode="explicit", usual_plan="fails")
    brain.usual_plan = "serves"
    assert load(brain, "py") == ""
    assert unload(brain, "py") == ""
    assert brain.alive() == []
    assert list(brain.kept()) == ["py"]


def test_a_model_that_somebody_unregisters_is_unloaded(start: Start) -> None:
    """And can be loaded once more."""
    brain = start()
    brain.answered(brain.client.ask(messages.Unregister("py")))
    assert brain.is_clean("py")
    assert load(brain, "py") == ""
    assert brain.is_served("py")


def test_whose_a_name_is_stays_over_an_upgrade(start: Start) -> None:
    """A client's model that has taken a repository model's place is not the repository's afterwards."""
    brain = start()
    brain.served(brain.client.register("py", replace=True))
    models = brain.daemon.repository_models
    handed = models.hand_over()
    assert not models.known.serves("py")
    models.known.clear()
    models.adopt(handed)
    assert not models.known.serves("py")
    assert unload(brain, "py") != ""
    assert brain.is_served("py")


def test_a_name_that_is_being_restored_is_waited_for_and_no_other(start: Start) -> None:
    """Who has the name depends on whether that can be restored; the repository's other models do not wait for it."""
    for can_be_restored in (True, False):
        brain = start(model_control_mode="explicit")
        brain.served(brain.client.register("py", b"registered", replace=not can_be_restored))
        brain = start(usual_plan="silent")
        assert brain.state_of("py") == "restoring"
        assert states(brain) == {
            "own": "ready tritonserver",
            "odd": "failed",
            "pair": "loading",  # py is a step of it
            "py": "loading",
        }
        assert brain.state_of("pair") == "loading"
        worker = brain.alive("py")[0]
        brain.usual_plan = "serves"
        worker.greet()
        if can_be_restored:
            worker.loaded()
        else:
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        brain.advance(5.0)
        py = "failed" if can_be_restored else "ready workers"
        assert states(brain) == {**ALL, "py": py}
        payloads = brain.daemon.registry.names["py"].payloads(0)
        assert (payloads == [b"registered"]) is can_be_restored


def test_an_ensemble_waits_for_a_step_that_is_being_restored(
    start: Start, repository: Path
) -> None:
    """And for that alone."""
    repositories.add_ensemble(repository, "mixed", ["theirs", "own"])
    brain = start(model_control_mode="explicit")
    brain.served(brain.client.register("theirs"))
    brain.served(brain.client.register("stuck"))
    brain = start(usual_plan="hangs", model_control_mode="explicit", load_model=("mixed",))
    assert states(brain)["mixed"] == "loading"
    brain.alive("theirs")[0].loaded()
    brain.advance(1.0)
    assert states(brain)["mixed"] == "ready tritonserver"
    assert brain.state_of("stuck") == "restoring"


def test_status_shows_what_is_being_loaded(start: Start) -> None:
    """For how long, too; and what waits for its turn."""
    brain = start(usual_plan="hangs")
    infos = {one.name: one for one in brain.loop.ask(brain.daemon.model_infos)}
    assert (infos["py"].state, infos["pair"].state) == ("loading", "loading")
    assert infos["py"].loading_since > 0.0
    assert infos["pair"].loading_since == 0.0  # for py
    assert infos["own"].loading_since == 0.0
    text = brain.loop.ask(lambda: brain.daemon._status.for_service_manager().text)
    assert text == "ready: 1 of 4 models ready; loading py"
    brain.alive("py")[0].loaded()
    brain.advance(1.0)
    assert states(brain) == ALL
    assert not any(one.loading_since for one in brain.loop.ask(brain.daemon.model_infos))
