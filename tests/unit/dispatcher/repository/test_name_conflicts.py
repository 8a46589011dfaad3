"""Histories of names used by both a repository and a client: a client's registration has the name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.repository_requests import ALL, load, states, unload
from support.models import repositories

from pytriton._protocol import messages
from pytriton.dispatcher.repository import model_loader

Start = Callable[..., SimulatedDaemon]


def test_a_registered_name_belongs_to_its_client(start: Start) -> None:
    sim = start(model_control_mode="explicit")
    for name in ("py", "own"):
        sim.served(sim.client.register(name))
        assert "is already registered: unregister it" in load(sim, name)
        sim.answered(sim.client.ask(messages.Unregister(name)))
        assert load(sim, name) == ""


def test_registered_names_take_precedence_over_repositories(start: Start) -> None:
    sim = start(model_control_mode="explicit")
    sim.served(sim.client.register("py", b"registered"))
    sim = start()
    assert states(sim)["py"].startswith("failed")
    registration = sim.loop.ask(lambda: sim.services.registry.served.by_name("py"))
    assert registration.payloads(0) == [b"registered"]


@pytest.mark.parametrize("how", ["replaces", "unregisters and registers"])
def test_a_clients_replacement_of_a_repositorys_model_belongs_to_the_client(
    start: Start, repository: Path, how: str
) -> None:
    sim = start(model_control_mode="poll", tritonserver_options={"repository-poll-secs": "5"})
    if how != "replaces":
        sim.answered(sim.client.ask(messages.Unregister("py")))
    sim.served(sim.client.register("py", b"a client's", replace=True))
    (theirs,) = sim.alive("py")
    assert states(sim) == {**ALL, "py": "unloaded"}
    assert "is already registered: unregister it" in load(sim, "py")
    (repository / "py" / "1" / "model.py").write_text("# another one")
    sim.advance(6.0)
    assert "no model named 'py' has been loaded from a model repository" in unload(sim, "py")
    (repository / "py").rename(repository / ".away")
    sim.advance(6.0)
    assert sim.alive("py") == [theirs]
    assert sim.is_served("py")
    assert list(sim.persisted()) == ["py"]
    sim.stop()
    sim = start(model_control_mode="explicit")
    registration = sim.loop.ask(lambda: sim.services.registry.served.by_name("py"))
    assert registration.payloads(0) == [b"a client's"]


def test_a_client_registers_a_model_while_the_repositorys_is_prepared(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = start()
    go_on = asyncio.Event()
    prepare: Any = vars(model_loader)["specification"]

    async def prepare_later(*arguments: object) -> object:
        await go_on.wait()
        return await prepare(*arguments)

    monkeypatch.setattr(model_loader, "specification", prepare_later)
    request = sim.client.ask(messages.LoadFromRepository("py"))
    sim.settle()
    sim.served(sim.client.register("py", replace=True))
    (theirs,) = sim.alive("py")
    sim.loop.ask(go_on.set)
    answer = sim.answered(request)
    assert isinstance(answer, messages.Failure)
    assert "is already registered: unregister it" in answer.text
    assert sim.alive("py") == [theirs]
    assert unload(sim, "py") != ""
    assert list(sim.persisted()) == ["py"]


def test_unloading_leaves_a_persisted_registration_of_the_same_name(start: Start) -> None:
    """A failed restore waits for another start, while the repository's model has its name."""
    sim = start(model_control_mode="explicit")
    sim.served(sim.client.register("py"))
    sim = start(model_control_mode="explicit", usual_plan="fails")
    sim.usual_plan = "serves"
    assert load(sim, "py") == ""
    assert unload(sim, "py") == ""
    assert sim.alive() == []
    assert list(sim.persisted()) == ["py"]


def test_a_model_unregistered_by_a_client_is_unloaded(start: Start) -> None:
    """It can be loaded again."""
    sim = start()
    sim.answered(sim.client.ask(messages.Unregister("py")))
    assert sim.is_clean("py")
    assert load(sim, "py") == ""
    assert sim.is_served("py")


def test_owners_of_names_survive_an_upgrade(start: Start) -> None:
    """A client's replacement of a repository's model does not become the repository's."""
    sim = start()
    sim.served(sim.client.register("py", replace=True))
    models = sim.services.repository_models
    handed = models.hand_over()
    assert not models.records.serves("py")
    models.records.clear()
    models.adopt(handed)
    assert not models.records.serves("py")
    assert unload(sim, "py") != ""
    assert sim.is_served("py")


def test_a_load_waits_only_for_a_restore_of_the_same_name(start: Start) -> None:
    """The name's owner depends on that restore; other models of the repository do not wait."""
    for can_be_restored in (True, False):
        sim = start(model_control_mode="explicit")
        sim.served(sim.client.register("py", b"registered", replace=not can_be_restored))
        sim = start(usual_plan="silent")
        assert sim.state_of("py") == "restoring"
        assert states(sim) == {
            "own": "ready tritonserver",
            "odd": "failed",
            "pair": "loading",  # py is a step of it
            "py": "loading",
        }
        assert sim.state_of("pair") == "loading"
        worker = sim.alive("py")[0]
        sim.usual_plan = "serves"
        worker.greet()
        if can_be_restored:
            worker.loaded()
        else:
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        sim.advance(5.0)
        py = "failed" if can_be_restored else "ready workers"
        assert states(sim) == {**ALL, "py": py}
        payloads = sim.services.registry.served.names["py"].payloads(0)
        assert (payloads == [b"registered"]) is can_be_restored


def test_an_ensemble_waits_for_a_step_that_is_being_restored(
    start: Start, repository: Path
) -> None:
    """And for nothing else."""
    repositories.add_ensemble(repository, "mixed", ["theirs", "own"])
    sim = start(model_control_mode="explicit")
    sim.served(sim.client.register("theirs"))
    sim.served(sim.client.register("stuck"))
    sim = start(usual_plan="hangs", model_control_mode="explicit", load_model=("mixed",))
    assert states(sim)["mixed"] == "loading"
    sim.alive("theirs")[0].loaded()
    sim.advance(1.0)
    assert states(sim)["mixed"] == "ready tritonserver"
    assert sim.state_of("stuck") == "restoring"


def test_status_shows_loading_models(start: Start) -> None:
    """With the duration, and the models waiting for a slot."""
    sim = start(usual_plan="hangs")
    infos = {one.name: one for one in sim.loop.ask(sim.services.status.model_infos)}
    assert (infos["py"].state, infos["pair"].state) == ("loading", "loading")
    assert infos["py"].loading_since > 0.0
    assert infos["pair"].loading_since == 0.0  # for py
    assert infos["own"].loading_since == 0.0
    text = sim.loop.ask(lambda: sim.services.status.for_service_manager().text)
    assert text == "ready: 1 of 4 models ready; loading py"
    sim.alive("py")[0].loaded()
    sim.advance(1.0)
    assert states(sim) == ALL
    assert not any(one.loading_since for one in sim.loop.ask(sim.services.status.model_infos))
