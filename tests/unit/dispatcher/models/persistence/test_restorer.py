"""What the state directory holds, and what becomes of it at the next start: histories of restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.fakes.brain import Brain, one_after_the_other
from support.fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages
from pytriton.dispatcher.models.load_slots import EXTRA_SLOT_AFTER_S, MAX_CONCURRENT_LOADS

Start = Callable[..., Brain]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one daemon after the other in the same folder."""
    with one_after_the_other(tmp_path) as start:
        yield start


def test_what_was_registered_is_served_again(start: Start) -> None:
    """As it was then: scaled, replaced, and without what was unregistered."""
    brain = start()
    for name in ("a", "b", "c", "d"):
        brain.served(brain.client.register(name, name.encode()))
    brain.served(brain.client.ask(messages.Scale("b", 3)))
    brain.served(brain.client.register("c", b"new", replace=True))
    brain.answered(brain.client.ask(messages.Unregister("d")))
    brain = start()
    assert [one.spec.name for one in brain.daemon.registry] == ["a", "b", "c"]
    assert [len(brain.alive(name)) for name in ("a", "b", "c")] == [1, 3, 1]
    assert brain.loop.ask(lambda: brain.daemon.registry.by_name("c")).payloads(0) == [b"new"]
    brain.served(brain.client.ask(messages.Rollback("c")))
    assert brain.kept()["c"].payloads == [b"c"]


@pytest.mark.parametrize("how", ["temporary", "thread"])
@pytest.mark.parametrize("replaces", [False, True])
def test_what_goes_with_a_process_is_not_kept(start: Start, how: str, replaces: bool) -> None:
    """Nor is what it has replaced, nor does scaling change that; nor can it be rolled back."""
    brain = start()
    client = brain.connect()
    if replaces:
        brain.served(brain.client.register("m", b"old"))
    isolation = "thread" if how == "thread" else "process"
    request = client.register(
        "m", replace=replaces, temporary=how == "temporary", isolation=isolation
    )
    brain.served(request)
    assert brain.kept() == {}
    brain.served(brain.client.ask(messages.Scale("m", 2)))
    assert brain.kept() == {}
    rollback = brain.client.ask(messages.Rollback("m"))
    brain.settle()
    assert "no previous version is kept" in rollback.failure
    client.end_process()
    brain.advance(10.0)
    assert brain.is_clean("m")


def test_a_temporary_model_that_somebody_replaces_is_kept(start: Start) -> None:
    """And does not go with the process that registered the former one."""
    brain = start()
    client = brain.connect()
    brain.served(client.register("m", temporary=True))
    brain.served(brain.client.register("m", b"new", replace=True))
    client.end_process()
    brain.advance(10.0)
    assert brain.is_served("m")
    assert brain.kept()["m"].payloads == [b"new"]


def test_what_waits_to_be_restored_is_shown_as_it_was_registered(start: Start) -> None:
    """All that the registration alone tells: python, versions, when it was."""

    def told(brain: Brain) -> messages.ModelInfo:
        (model,) = brain.loop.ask(brain.daemon.model_infos)
        return model

    brain = start()
    brain.served(brain.client.register("m", versions=[1, 3]))
    served = told(brain)
    waiting = told(start(usual_plan="hangs"))
    assert waiting.loading_since > served.registered_at
    assert msgspec.structs.replace(waiting, loading_since=0.0) == messages.ModelInfo(
        "m",
        1,
        "restoring",
        [],
        python="python",
        registered_at=served.registered_at,
        versions=[1, 3],
    )


def register_many(brain: Brain, names: list[str]) -> None:
    for name in names:
        brain.served(brain.client.register(name))


def loading(brain: Brain) -> list[str]:
    """The models of which a worker is there."""
    return [worker._spec.name for worker in brain.alive()]


def test_models_are_restored_several_at_once_while_clients_ask(start: Start) -> None:
    brain = start()
    register_many(brain, ["a", "b", "c"])
    brain = start(usual_plan="hangs")
    assert [brain.state_of(name) for name in ("a", "b", "c")] == ["restoring"] * 3
    assert loading(brain) == ["a", "b", "c"]
    taken = brain.client.register("b")
    scaled = brain.client.ask(messages.Scale("b", 2))
    gone = brain.client.ask(messages.Unregister("c"))
    brain.plans = ["serves"]
    brain.served(brain.client.register("new"))
    assert "is about to be served again" in taken.failure
    assert gone.answer == messages.Done()
    assert scaled.answer is None
    brain.usual_plan = "serves"
    brain.alive("b")[0].loaded()
    brain.served(scaled)
    assert {one.text for one in scaled.progress} >= {"waiting: model b is being restored"}
    assert brain.state_of("a") == "restoring"
    brain.alive("a")[0].loaded()
    brain.settle()
    # In the order of registration, whichever is the first to be restored.
    assert [one.spec.name for one in brain.daemon.registry] == ["new", "a", "b"]
    assert len(brain.alive("b")) == 2
    assert sorted(brain.kept()) == ["a", "b", "new"]


def test_a_load_that_hangs_holds_up_no_other_model(start: Start) -> None:
    names = [f"m{number:02}" for number in range(MAX_CONCURRENT_LOADS + 4)]
    brain = start()
    register_many(brain, names)
    brain = start(usual_plan="hangs")
    first, rest = names[:MAX_CONCURRENT_LOADS], names[MAX_CONCURRENT_LOADS:]
    assert loading(brain) == first
    infos = {one.name: one for one in brain.loop.ask(brain.daemon.model_infos)}
    assert [name for name in names if infos[name].loading_since] == first
    brain.usual_plan = "serves"
    brain.alive(first[0])[0].loaded()
    brain.advance(1.0)  # its slot is enough for all others
    assert [brain.state_of(name) for name in rest] == ["ready"] * 4
    assert [brain.state_of(name) for name in first] == ["ready"] + ["restoring"] * 7


def test_many_loads_that_hang_delay_the_others_by_seconds(start: Start) -> None:
    """And not at all one that somebody waits for."""
    names = [f"m{number:02}" for number in range(MAX_CONCURRENT_LOADS + 4)]
    brain = start()
    register_many(brain, names)
    brain = start(usual_plan="hangs", awaits=True)
    assert loading(brain) == names[:MAX_CONCURRENT_LOADS]
    brain.plans = ["serves"]
    brain.loop.ask(lambda: brain.front.asked(names[-1]))
    brain.settle()
    assert brain.state_of(names[-1]) == "ready"
    brain.usual_plan = "serves"
    assert brain.state_of(names[-2]) == "restoring"
    brain.advance(EXTRA_SLOT_AFTER_S)
    assert [brain.state_of(name) for name in names[MAX_CONCURRENT_LOADS:]] == ["ready"] * 4


def test_a_daemon_with_a_hanging_load_is_as_ready_as_the_settings_say(start: Start) -> None:
    """`served` waits for it, and repositories do not."""
    brain = start()
    register_many(brain, ["stuck", "sound"])
    brain = start(usual_plan="serves")
    assert brain.server.gate_open
    brain.usual_plan = "hangs"
    brain = start(usual_plan="hangs")
    brain.alive("sound")[0].loaded()
    brain.advance(60.0)
    assert brain.is_served("sound")
    assert not brain.server.gate_open
    assert cast(Any, brain.daemon.repository_models).tried


@pytest.mark.parametrize("again", [False, True], ids=["forgotten", "registered anew"])
def test_a_model_is_unregistered_while_it_is_restored(start: Start, again: bool) -> None:
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain = start(usual_plan="hangs")
    gone = brain.client.ask(messages.Unregister("m"))
    brain.settle()
    assert gone.answer == messages.Done()
    assert brain.is_clean("m")
    assert brain.daemon.registry.restoring.outcomes == {}
    brain.usual_plan = "serves"
    if again:
        brain.served(brain.client.register("m", b"new"))
        brain.server.end()
        brain.advance(10.0)
        assert brain.kept()["m"].payloads == [b"new"]
        assert len(brain.alive("m")) == 1


def test_a_model_is_replaced_while_it_is_restored(start: Start) -> None:
    """It waits until that is over."""
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain = start(usual_plan="hangs")
    request = brain.client.register("m", b"new", replace=True)
    brain.advance(10.0)
    assert request.answer is None
    brain.usual_plan = "serves"
    brain.alive("m")[0].loaded()
    brain.served(request)
    assert brain.kept()["m"].payloads == [b"new"]
    brain.served(brain.client.ask(messages.Rollback("m")))
    assert brain.kept()["m"].payloads == [b"old"]


def test_a_model_is_rolled_back_while_it_is_restored(start: Start) -> None:
    """The same; it goes back to what it had before, and there again."""
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain.served(brain.client.register("m", b"new", replace=True))
    brain = start(usual_plan="hangs")
    request = brain.client.ask(messages.Rollback("m"))
    brain.advance(10.0)
    assert request.answer is None
    assert {one.text for one in request.progress} == {"waiting: model m is being restored"}
    brain.usual_plan = "serves"
    brain.alive("m")[0].loaded()
    brain.served(request)
    assert brain.kept()["m"].payloads == [b"old"]
    brain.served(brain.client.ask(messages.Rollback("m")))
    assert brain.kept()["m"].payloads == [b"new"]


def test_a_model_that_cannot_be_restored_is_kept_and_tried_again(start: Start) -> None:
    """In the next tritonserver, and at the next start of the daemon; whoever asks is told why it is not there."""
    brain = start()
    for name in ("a", "b"):
        brain.served(brain.client.register(name))
    brain = start(usual_plan="fails")
    assert [brain.state_of(name) for name in ("a", "b")] == ["failed", "failed"]
    assert not brain.server.gate_open
    scaled = brain.client.ask(messages.Scale("a", 2))
    brain.settle()
    assert "could not be restored (model a could not be loaded: no file)" in scaled.failure
    brain.server.obstacles["b"] = Obstacle("refuse")
    brain.usual_plan = "serves"
    brain.server.end()
    brain.advance(5.0)
    assert [brain.state_of(name) for name in ("a", "b")] == ["ready", "failed"]
    brain = start()
    assert [brain.state_of(name) for name in ("a", "b")] == ["ready", "ready"]
    assert brain.server.gate_open


@pytest.mark.parametrize("temporary", [False, True])
def test_a_name_that_could_not_be_restored_can_be_registered(start: Start, temporary: bool) -> None:
    """It is not restored into the place of what has the name now, when tritonserver is started again."""
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain = start(usual_plan="fails")
    brain.usual_plan = "serves"
    client = brain.connect()
    brain.served(client.register("m", b"new", temporary=temporary))
    brain.server.end()
    brain.advance(10.0)
    assert len(brain.alive("m")) == 1
    assert brain.is_served("m")
    assert {name: one.payloads for name, one in brain.kept().items()} == (
        {} if temporary else {"m": [b"new"]}
    )
    client.end_process()
    brain.advance(10.0)
    assert bool(brain.alive("m")) is not temporary


def test_a_refused_unregister_forgets_nothing(start: Start) -> None:
    """A model that could not be restored is being registered anew, so its name cannot be unregistered; nobody
    loses sight of its file meanwhile."""
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain = start(usual_plan="fails")
    brain.advance(10.0)
    assert brain.state_of("m") == "failed"
    brain.usual_plan = "hangs"
    other = brain.connect()
    registering = other.register("m", b"new", replace=True)
    brain.settle()
    refused = brain.client.ask(messages.Unregister("m"))
    brain.settle()
    assert "by another client" in refused.failure
    other.give_up(registering)
    brain.settle()
    assert brain.state_of("m") == "failed"
    assert brain.kept()["m"].payloads == [b"old"]
    assert brain.answered(brain.client.ask(messages.Unregister("m"))) == messages.Done()
    assert brain.is_clean("m")


def test_what_a_repository_serves_is_not_the_state_directorys_business(start: Start) -> None:
    """A kept one of the same name that could not be restored stays kept, and is not served over it."""
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain = start(usual_plan="fails")
    brain.usual_plan = "serves"

    async def report(progress: messages.Progress) -> None:
        """Nobody listens."""

    spec = messages.ModelSpec("m", 1, {}, messages.World("python"))
    registering = brain.daemon.registry.register(
        messages.Register(spec), [b"repository's"], report, keep=False
    )
    served = brain.loop.run(registering)
    brain.server.end()
    brain.advance(10.0)
    brain.served(brain.client.ask(messages.Scale("m", 2)))
    assert brain.daemon.registry.get("m") is served
    assert len(brain.alive("m")) == 2
    assert brain.kept()["m"].payloads == [b"old"]
    assert brain.kept()["m"].spec.instances == 1


def test_tritonserver_ends_while_models_are_restored(start: Start) -> None:
    brain = start()
    for name in ("a", "b"):
        brain.served(brain.client.register(name))
    brain = start(usual_plan="hangs")
    brain.server.end()
    brain.alive("a")[0].loaded()
    brain.advance(10.0)
    assert brain.is_served("a")
    brain.alive("b")[0].loaded()
    brain.advance(10.0)
    assert brain.is_served("b")
    assert sorted(brain.kept()) == ["a", "b"]


def test_the_daemon_stops_while_models_are_restored(start: Start) -> None:
    """They are kept as they were."""
    brain = start()
    for name in ("a", "b"):
        brain.served(brain.client.register(name))
    brain = start(usual_plan="hangs")
    brain.stop()
    assert brain.daemon.ending.code == 0
    brain = start()
    assert [brain.state_of(name) for name in ("a", "b")] == ["ready", "ready"]


def test_what_cannot_be_restored_can_be_rolled_back(start: Start) -> None:
    """Where there is something to go back to; once more brings it back again."""
    brain = start()
    brain.served(brain.client.register("m", b"old"))
    brain.served(brain.client.register("m", b"new", replace=True))
    brain.served(brain.client.register("first"))
    brain = start(usual_plan="fails")
    assert [brain.state_of(name) for name in ("m", "first")] == ["failed", "failed"]
    refused = [brain.client.ask(messages.Rollback(name)) for name in ("m", "first")]
    brain.advance(1.0)
    assert "model m could not be loaded" in refused[0].failure
    assert "has not been replaced" in refused[1].failure
    assert brain.kept()["m"].payloads == [b"new"]
    brain.usual_plan = "serves"
    for payload in (b"old", b"new"):
        brain.served(brain.client.ask(messages.Rollback("m")))
        assert brain.kept()["m"].payloads == [payload]
    assert brain.is_served("m")


def test_requests_wait_for_models_that_are_being_restored(start: Start) -> None:
    """And no longer for one that could not be, or that somebody unregisters meanwhile."""
    brain = start()
    register_many(brain, ["a", "b", "c"])
    brain = start(usual_plan="hangs", awaits=True)
    assert brain.loop.ask(brain.front.names) == ([], ["a", "b", "c"])
    assert brain.answered(brain.client.ask(messages.Unregister("b"))) == messages.Done()
    assert brain.front.forgotten == ["b"]
    brain.loop.ask(lambda: brain.front.asked("c"))  # it is being loaded already
    brain.settle()
    assert loading(brain) == ["a", "c"]
    assert brain.loop.ask(brain.front.names) == ([], ["a", "c"])
    brain.usual_plan = "fails"
    brain.alive("a")[0].loaded()
    worker = brain.alive("c")[0]
    worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
    brain.advance(60.0)
    assert brain.loop.ask(brain.front.names) == ([], [])
    assert brain.front.forgotten == ["b", "c"]
    assert [brain.state_of(name) for name in ("a", "c")] == ["ready", "failed"]
