"""What the state directory contains, and how it is restored at the next start: histories of restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages
from pytriton.dispatcher.models.load_slots import EXTRA_SLOT_AFTER_S, MAX_CONCURRENT_LOADS

Start = Callable[..., SimulatedDaemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one daemon after another in the same folder."""
    with successive_daemons(tmp_path) as start:
        yield start


def register_many(sim: SimulatedDaemon, names: list[str]) -> None:
    for name in names:
        sim.served(sim.client.register(name))


def loading(sim: SimulatedDaemon) -> list[str]:
    """The models that have a worker."""
    return [worker._spec.name for worker in sim.alive()]


def test_registrations_are_served_after_a_restart(start: Start) -> None:
    """With their last scale and replacement, and without unregistered ones."""
    sim = start()
    for name in ("a", "b", "c", "d"):
        sim.served(sim.client.register(name, name.encode()))
    sim.served(sim.client.ask(messages.Scale("b", 3)))
    sim.served(sim.client.register("c", b"new", replace=True))
    sim.answered(sim.client.ask(messages.Unregister("d")))
    sim = start()
    assert [one.spec.name for one in sim.services.registry.served] == ["a", "b", "c"]
    assert [len(sim.alive(name)) for name in ("a", "b", "c")] == [1, 3, 1]
    assert sim.loop.ask(lambda: sim.services.registry.served.by_name("c")).payloads(0) == [b"new"]
    sim.served(sim.client.ask(messages.Rollback("c")))
    assert sim.persisted()["c"].payloads == [b"c"]


@pytest.mark.parametrize("how", ["ephemeral", "thread"])
@pytest.mark.parametrize("replaces", [False, True])
def test_client_bound_models_are_not_persisted(start: Start, how: str, replaces: bool) -> None:
    """Nor are the models that they replaced; scaling does not change that, and they cannot be rolled back."""
    sim = start()
    client = sim.connect()
    if replaces:
        sim.served(sim.client.register("m", b"old"))
    isolation = "thread" if how == "thread" else "process"
    request = client.register(
        "m", replace=replaces, ephemeral=how == "ephemeral", isolation=isolation
    )
    sim.served(request)
    assert sim.persisted() == {}
    sim.served(sim.client.ask(messages.Scale("m", 2)))
    assert sim.persisted() == {}
    rollback = sim.client.ask(messages.Rollback("m"))
    sim.settle()
    assert "no previous version is stored" in rollback.failure
    client.end_process()
    sim.advance(10.0)
    assert sim.is_clean("m")


def test_a_client_bound_model_that_is_replaced_becomes_persistent(start: Start) -> None:
    """It no longer ends with the process that registered the previous one."""
    sim = start()
    client = sim.connect()
    sim.served(client.register("m", ephemeral=True))
    sim.served(sim.client.register("m", b"new", replace=True))
    client.end_process()
    sim.advance(10.0)
    assert sim.is_served("m")
    assert sim.persisted()["m"].payloads == [b"new"]


def test_pending_restores_show_their_declarations(start: Start) -> None:
    """Everything known from the registration: python, versions, registration time."""

    def reported(sim: SimulatedDaemon) -> messages.ModelInfo:
        (model,) = sim.loop.ask(sim.services.status.model_infos)
        return model

    sim = start()
    sim.served(sim.client.register("m", versions=[1, 3]))
    served = reported(sim)
    waiting = reported(start(usual_plan="hangs"))
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


def test_several_models_are_restored_at_once_while_clients_send_requests(start: Start) -> None:
    sim = start()
    register_many(sim, ["a", "b", "c"])
    sim = start(usual_plan="hangs")
    assert [sim.state_of(name) for name in ("a", "b", "c")] == ["restoring"] * 3
    assert loading(sim) == ["a", "b", "c"]
    taken = sim.client.register("b")
    scaled = sim.client.ask(messages.Scale("b", 2))
    gone = sim.client.ask(messages.Unregister("c"))
    sim.plans = ["serves"]
    sim.served(sim.client.register("new"))
    assert "is about to be served again" in taken.failure
    assert gone.answer == messages.Done()
    assert scaled.answer is None
    sim.usual_plan = "serves"
    sim.alive("b")[0].loaded()
    sim.served(scaled)
    assert {one.text for one in scaled.progress} >= {"waiting: model b is being restored"}
    assert sim.state_of("a") == "restoring"
    sim.alive("a")[0].loaded()
    sim.settle()
    # In the order of registration, in whatever order they are restored.
    assert [one.spec.name for one in sim.services.registry.served] == ["new", "a", "b"]
    assert len(sim.alive("b")) == 2
    assert sorted(sim.persisted()) == ["a", "b", "new"]


def test_a_hanging_load_blocks_no_other_model(start: Start) -> None:
    """One that waits for its slot can be unregistered."""
    names = [f"m{number:02}" for number in range(MAX_CONCURRENT_LOADS + 4)]
    sim = start()
    register_many(sim, names)
    sim = start(usual_plan="hangs")
    first, rest = names[:MAX_CONCURRENT_LOADS], names[MAX_CONCURRENT_LOADS:]
    assert loading(sim) == first
    infos = {one.name: one for one in sim.loop.ask(sim.services.status.model_infos)}
    assert [name for name in names if infos[name].loading_since] == first
    assert sim.answered(sim.client.ask(messages.Unregister(rest.pop(0)))) == messages.Done()
    sim.usual_plan = "serves"
    sim.alive(first[0])[0].loaded()
    sim.advance(1.0)  # its slot is enough for all others
    assert [sim.state_of(name) for name in rest] == ["ready"] * 3
    assert [sim.state_of(name) for name in first] == ["ready"] + ["restoring"] * 7
    assert sim.is_clean(names[MAX_CONCURRENT_LOADS])


def test_many_hanging_loads_delay_the_others_by_seconds(start: Start) -> None:
    """And do not delay a model that a request waits for."""
    names = [f"m{number:02}" for number in range(MAX_CONCURRENT_LOADS + 4)]
    sim = start()
    register_many(sim, names)
    sim = start(usual_plan="hangs", queues_requests=True)
    assert loading(sim) == names[:MAX_CONCURRENT_LOADS]
    sim.plans = ["serves"]
    sim.loop.ask(lambda: sim.frontend.on_request(names[-1]))
    sim.settle()
    assert sim.state_of(names[-1]) == "ready"
    sim.usual_plan = "serves"
    assert sim.state_of(names[-2]) == "restoring"
    sim.advance(EXTRA_SLOT_AFTER_S)
    assert [sim.state_of(name) for name in names[MAX_CONCURRENT_LOADS:]] == ["ready"] * 4


def test_a_hanging_load_affects_readiness_as_configured(start: Start) -> None:
    """`all_loaded` waits for it, and repositories do not."""
    sim = start()
    register_many(sim, ["stuck", "sound"])
    sim = start(usual_plan="serves")
    assert sim.server.gate_open
    sim.usual_plan = "hangs"
    sim = start(usual_plan="hangs")
    sim.alive("sound")[0].loaded()
    sim.advance(60.0)
    assert sim.is_served("sound")
    assert not sim.server.gate_open
    assert cast(Any, sim.services.repository_models).tried


@pytest.mark.parametrize("again", [False, True], ids=["forgotten", "registered anew"])
def test_a_model_is_unregistered_while_it_is_restored(start: Start, again: bool) -> None:
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim = start(usual_plan="hangs")
    gone = sim.client.ask(messages.Unregister("m"))
    sim.settle()
    assert gone.answer == messages.Done()
    assert sim.is_clean("m")
    assert sim.services.registry.restoring.outcomes == {}
    sim.usual_plan = "serves"
    if again:
        sim.served(sim.client.register("m", b"new"))
        sim.server.end()
        sim.advance(10.0)
        assert sim.persisted()["m"].payloads == [b"new"]
        assert len(sim.alive("m")) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_replaced_while_it_is_restored(start: Start, fails: bool) -> None:
    """The replacement waits until the restore is over, whatever its outcome."""
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim = start(usual_plan="hangs")
    request = sim.client.register("m", b"new", replace=True)
    sim.advance(10.0)
    assert request.answer is None
    sim.usual_plan = "serves"
    (worker,) = sim.alive("m")
    if fails:
        worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
    else:
        worker.loaded()
    sim.served(request)
    assert sim.persisted()["m"].payloads == [b"new"]
    sim.served(sim.client.ask(messages.Rollback("m")))
    assert sim.persisted()["m"].payloads == [b"old"]


def test_a_model_is_rolled_back_while_it_is_restored(start: Start) -> None:
    """It returns to its previous version, and back again."""
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim.served(sim.client.register("m", b"new", replace=True))
    sim = start(usual_plan="hangs")
    request = sim.client.ask(messages.Rollback("m"))
    sim.advance(10.0)
    assert request.answer is None
    assert {one.text for one in request.progress} == {"waiting: model m is being restored"}
    sim.usual_plan = "serves"
    sim.alive("m")[0].loaded()
    sim.served(request)
    assert sim.persisted()["m"].payloads == [b"old"]
    sim.served(sim.client.ask(messages.Rollback("m")))
    assert sim.persisted()["m"].payloads == [b"new"]


def test_a_failed_restore_is_kept_and_retried(start: Start) -> None:
    """With the next tritonserver, and at the daemon's next start; requests get the reason."""
    sim = start()
    register_many(sim, ["a", "b"])
    sim = start(usual_plan="fails")
    assert [sim.state_of(name) for name in ("a", "b")] == ["failed", "failed"]
    assert not sim.server.gate_open
    scaled = sim.client.ask(messages.Scale("a", 2))
    sim.settle()
    assert "could not be restored (model a could not be loaded: no file)" in scaled.failure
    sim.server.obstacles["b"] = Obstacle("refuse")
    sim.usual_plan = "serves"
    sim.server.end()
    sim.advance(5.0)
    assert [sim.state_of(name) for name in ("a", "b")] == ["ready", "failed"]
    sim = start()
    assert [sim.state_of(name) for name in ("a", "b")] == ["ready", "ready"]
    assert sim.server.gate_open


@pytest.mark.parametrize("ephemeral", [False, True])
def test_the_name_of_a_failed_restore_can_be_registered(start: Start, ephemeral: bool) -> None:
    """A restart of tritonserver does not restore the old one over the new one."""
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim = start(usual_plan="fails")
    sim.usual_plan = "serves"
    client = sim.connect()
    sim.served(client.register("m", b"new", ephemeral=ephemeral))
    sim.server.end()
    sim.advance(10.0)
    assert len(sim.alive("m")) == 1
    assert sim.is_served("m")
    assert {name: one.payloads for name, one in sim.persisted().items()} == (
        {} if ephemeral else {"m": [b"new"]}
    )
    client.end_process()
    sim.advance(10.0)
    assert bool(sim.alive("m")) is not ephemeral


def test_a_refused_unregister_loses_nothing(start: Start) -> None:
    """A failed restore is being registered again, so its name cannot be unregistered; its file is kept."""
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim = start(usual_plan="fails")
    sim.advance(10.0)
    assert sim.state_of("m") == "failed"
    sim.usual_plan = "hangs"
    other = sim.connect()
    registering = other.register("m", b"new", replace=True)
    sim.settle()
    refused = sim.client.ask(messages.Unregister("m"))
    sim.settle()
    assert "by another client" in refused.failure
    other.give_up(registering)
    sim.settle()
    assert sim.state_of("m") == "failed"
    assert sim.persisted()["m"].payloads == [b"old"]
    assert sim.answered(sim.client.ask(messages.Unregister("m"))) == messages.Done()
    assert sim.is_clean("m")


def test_repository_models_are_not_persisted(start: Start) -> None:
    """A failed restore of the same name stays persisted, and is not served over it."""
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim = start(usual_plan="fails")
    sim.usual_plan = "serves"

    async def report(progress: messages.Progress) -> None:
        """Nobody listens."""

    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    registering = sim.services.registry.register(
        messages.Register(spec), [b"repository's"], report, keep=False
    )
    served = sim.loop.run(registering)
    sim.server.end()
    sim.advance(10.0)
    sim.served(sim.client.ask(messages.Scale("m", 2)))
    assert sim.services.registry.served.get("m") is served
    assert len(sim.alive("m")) == 2
    assert sim.persisted()["m"].payloads == [b"old"]
    assert sim.persisted()["m"].spec.instances == 1


def test_tritonserver_exits_while_models_are_restored(start: Start) -> None:
    sim = start()
    register_many(sim, ["a", "b"])
    sim = start(usual_plan="hangs")
    sim.server.end()
    sim.alive("a")[0].loaded()
    sim.advance(10.0)
    assert sim.is_served("a")
    sim.alive("b")[0].loaded()
    sim.advance(10.0)
    assert sim.is_served("b")
    assert sorted(sim.persisted()) == ["a", "b"]


def test_the_daemon_stops_while_models_are_restored(start: Start) -> None:
    """They stay persisted."""
    sim = start()
    register_many(sim, ["a", "b"])
    sim = start(usual_plan="hangs")
    sim.stop()
    assert sim.services.shutdown.code == 0
    sim = start()
    assert [sim.state_of(name) for name in ("a", "b")] == ["ready", "ready"]


def test_a_failed_restore_can_be_rolled_back(start: Start) -> None:
    """If there is a previous version; a second rollback restores it."""
    sim = start()
    sim.served(sim.client.register("m", b"old"))
    sim.served(sim.client.register("m", b"new", replace=True))
    sim.served(sim.client.register("first"))
    sim = start(usual_plan="fails")
    assert [sim.state_of(name) for name in ("m", "first")] == ["failed", "failed"]
    refused = [sim.client.ask(messages.Rollback(name)) for name in ("m", "first")]
    sim.advance(1.0)
    assert "model m could not be loaded" in refused[0].failure
    assert "has not been replaced" in refused[1].failure
    assert sim.persisted()["m"].payloads == [b"new"]
    sim.usual_plan = "serves"
    for payload in (b"old", b"new"):
        sim.served(sim.client.ask(messages.Rollback("m")))
        assert sim.persisted()["m"].payloads == [payload]
    assert sim.is_served("m")


def test_requests_wait_for_models_that_are_being_restored(start: Start) -> None:
    """But not after the restore failed, or the model was unregistered."""
    sim = start()
    register_many(sim, ["a", "b", "c"])
    sim = start(usual_plan="hangs", queues_requests=True)
    assert sim.loop.ask(sim.frontend.names) == ([], ["a", "b", "c"])
    assert sim.answered(sim.client.ask(messages.Unregister("b"))) == messages.Done()
    assert sim.frontend.forgotten == ["b"]
    sim.loop.ask(lambda: sim.frontend.on_request("c"))  # it is being loaded already
    sim.settle()
    assert loading(sim) == ["a", "c"]
    assert sim.loop.ask(sim.frontend.names) == ([], ["a", "c"])
    sim.usual_plan = "fails"
    sim.alive("a")[0].loaded()
    worker = sim.alive("c")[0]
    worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
    sim.advance(60.0)
    assert sim.loop.ask(sim.frontend.names) == ([], [])
    assert sim.frontend.forgotten == ["b", "c"]
    assert [sim.state_of(name) for name in ("a", "c")] == ["ready", "failed"]
