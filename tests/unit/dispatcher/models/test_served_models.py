"""Looking up registrations and workers: what is missing is reported with the alternatives and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Content, Entry


def test_missing_models_are_reported(tmp_path: Path) -> None:
    with successive_daemons(tmp_path) as start:
        sim = start()
        sim.served(sim.client.register("late"))
        sim = start(usual_plan="hangs")

        def failure(name: str) -> str:
            answer = sim.answered(sim.client.ask(messages.GetRegistrations([name])))
            assert isinstance(answer, messages.Failure)
            assert answer.kind == "not_found"
            return answer.text

        assert failure("x") == "no model 'x' is registered; registered models: none"
        sim.plans = ["serves", "serves"]
        for name in ("n", "m"):
            sim.served(sim.client.register(name))
        (sim.rundir.models / "native").symlink_to(tmp_path)
        assert failure("late") == "model 'late' is not served yet: it is being restored"
        assert failure("native").endswith("(pytriton-daemon repository unload native)")
        assert failure("\0").endswith("is registered; registered models: m, n")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (messages.Attach("m#9", "proxy", 4000), "registration m#9 is gone"),
        (messages.WorkerReady("w9"), "this daemon has no worker w9"),
    ],
)
def test_missing_registrations_and_workers_are_reported(
    sim: SimulatedDaemon, message: messages.AnyMessage, text: str
) -> None:
    with pytest.raises(RemoteFailure, match=f"^{text}$") as caught:
        sim.loop.run(sim.handle(message))
    assert caught.value.kind is ErrorKind.NOT_FOUND


def test_a_worker_of_a_replaced_registration_is_found_until_it_has_stopped(
    sim: SimulatedDaemon,
) -> None:
    served = sim.services.registry.served
    sim.served(sim.client.register("n"))
    sim.served(sim.client.register("m", b"old"))
    (old,) = sim.alive("m")
    sim.server.hold_proxies = True
    replaced = sim.client.register("m", b"new", replace=True)
    sim.settle()
    registration, worker = served.worker(old.name)
    assert worker is old
    assert registration is not served.by_name("m")
    assert served.workers_of("m") == [one.name for one in sim.alive("m") if one is not old]
    sim.let_batches_end()
    sim.served(replaced)


def test_a_process_hosts_a_model_until_it_is_unregistered(sim: SimulatedDaemon) -> None:
    served = sim.services.registry.served
    sim.served(sim.client.register("m", isolation="thread"))
    registrant = served.by_name("m").registrant
    assert registrant is not None
    assert served.hosts(registrant)
    sim.answered(sim.client.ask(messages.Unregister("m")))
    assert not served.hosts(registrant)


def test_a_model_restored_while_others_are_listed_is_left_out() -> None:
    entries = [Entry(serial, 0.0, model_spec(name), [b""]) for serial, name in enumerate("abc", 1)]
    restorer = Restorer(Content(entries, []))
    listed = restorer.infos(set())
    assert next(listed).name == "a"
    restorer.restored("b")
    assert [one.name for one in listed] == ["c"]
