"""Histories of registrations: concurrent actions of workers, tritonserver and clients, and the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.fake_clients import Client, Request
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages

#: The workers' actions, the outcomes of loads, and the failure that the client gets; None: it is served.
HISTORIES = {
    "serves": (["serves", "serves"], None, None),
    "cannot be loaded": (["serves", "fails"], None, "model m could not be loaded: no file"),
    "crashes while it loads": (["serves", "crashes"], None, "w2 exited before its callable was"),
    "loads for ever": (["hangs", "serves"], None, "did not load its callable within 600 s"),
    "never says hello": (["silent", "serves"], None, "did not start within 120 s"),
    "tritonserver refuses": ([], Obstacle("refuse"), "tritonserver did not load m: no"),
    "tritonserver ends": ([], Obstacle("end", 1), None),
    "tritonserver ends twice": ([], Obstacle("end", 2), None),
    "tritonserver ends each time": ([], Obstacle("end", 3), "tritonserver is down"),
    "tritonserver crashes": ([], Obstacle("crash"), "tritonserver crashed with m"),
}


def _meets(sim: SimulatedDaemon, plans: list[str], obstacle: Obstacle | None) -> None:
    sim.plans = [f"{plan}" for plan in plans]
    if obstacle is not None:
        sim.server.obstacles["m"] = Obstacle(obstacle.what, obstacle.times)


@pytest.mark.parametrize(("plans", "obstacle", "failure"), HISTORIES.values(), ids=HISTORIES.keys())
def test_a_registration_is_all_or_nothing(
    sim: SimulatedDaemon, plans: list[str], obstacle: Obstacle | None, failure: str | None
) -> None:
    _meets(sim, plans, obstacle)
    request = sim.client.register("m", instances=2)
    sim.answered(request)
    if failure is None:
        assert sim.is_served("m")
        assert len(sim.alive("m")) == 2
        assert sim.persisted()["m"].payloads == [b"callable"]
        return
    assert failure in request.failure
    if obstacle is not None and obstacle.what == "crash":
        assert sim.server.history.count("load m") == 1  # the next server would crash, too
    sim.advance(100.0)
    assert sim.is_clean("m")
    assert sim.server.gate_open  # it says that it is ready
    sim.served(sim.client.register("m"))  # the name is free


@pytest.mark.parametrize(("plans", "obstacle", "failure"), HISTORIES.values(), ids=HISTORIES.keys())
def test_a_replacement_that_fails_leaves_the_old_one(
    sim: SimulatedDaemon, plans: list[str], obstacle: Obstacle | None, failure: str | None
) -> None:
    sim.served(sim.client.register("m", b"old"))
    (old,) = sim.alive("m")
    sim.plans = plans = [*(["serves"] if not plans else []), *plans]
    sim.workers.clear()
    _meets(sim, plans, obstacle)
    request = sim.client.register("m", b"new", replace=True, instances=2)
    sim.answered(request)
    sim.advance(100.0)
    assert sim.is_served("m")
    assert sim.state_of("m") == "ready"
    assert old.alive == (failure is not None)
    assert len(sim.alive("m")) == (2 if failure is None else 0)  # besides the old one
    assert sim.persisted()["m"].payloads == [b"new" if failure is None else b"old"]
    if failure is not None:
        assert failure.replace("w2", "w3") in request.failure


def _is_stopping(client: Client, request: Request) -> None:
    client.give_up(request)


def _ends(client: Client, request: Request) -> None:
    client.end_process()


@pytest.mark.parametrize("how", [_is_stopping, _ends], ids=["gives up", "ends"])
@pytest.mark.parametrize("where", ["workers load", "tritonserver loads", "just registered"])
@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("former", [False, True], ids=["new", "replaces"])
def test_a_client_cancels_its_registration(
    sim: SimulatedDaemon, how: object, where: str, isolation: str, former: bool
) -> None:
    """It is rolled back at any stage; if too late, it is served like any other, but only by processes."""
    keeper = sim.connect()
    if former:
        sim.served(keeper.register("m", b"old"))
        sim.server.hold_proxies = True
    obstacle = Obstacle("hang")
    if where == "workers load":
        sim.plans = ["hangs"]
    elif where == "tritonserver loads":
        sim.server.obstacles["m"] = obstacle
    client = sim.client
    request = client.register("m", b"new", replace=True, isolation=isolation)
    sim.settle()
    assert (request.answer is None) == (former or where != "just registered")
    assert callable(how)
    how(client, request)
    sim.settle()
    obstacle.gone.set()
    sim.let_batches_end()
    sim.advance(100.0)
    too_late = where == "just registered"
    if isolation == "thread" and (how is _ends or former) and too_late:
        assert sim.is_clean("m")  # nothing could serve it any more
    elif too_late:
        assert sim.is_served("m")
        assert ("m" in sim.persisted()) == (isolation == "process")
    elif former:
        assert sim.is_served("m")
        assert sim.persisted()["m"].payloads == [b"old"]
    else:
        assert sim.is_clean("m")
    assert len(sim.alive("m")) <= 1


@pytest.mark.parametrize("how", [_is_stopping, _ends], ids=["gives up", "ends"])
@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("registered_again", [False, True])
def test_a_load_that_times_out_is_undone(
    sim: SimulatedDaemon, how: object, isolation: str, registered_again: bool
) -> None:
    """Its late failure used to keep tritonserver from being ready."""
    obstacle = Obstacle("hang")
    sim.server.obstacles["m"] = obstacle
    client = sim.client
    request = client.register("m", b"new", isolation=isolation)
    sim.settle()
    assert callable(how)
    how(client, request)
    sim.advance(40.0)  # longer than the grace period
    again = sim.connect().register("m", b"again") if registered_again else None
    obstacle.gone.set()
    sim.advance(100.0)
    if again is None:
        assert sim.is_clean("m")
    else:
        assert sim.is_served("m")
        assert "m" not in sim.server.failures


def test_a_name_is_registered_by_one_client_at_a_time(sim: SimulatedDaemon) -> None:
    """Of two concurrent replacements, one is refused and the other one serves."""
    sim.served(sim.client.register("m", b"old"))
    sim.plans = ["hangs"]
    first = sim.client.register("m", b"first", replace=True)
    second = sim.connect().register("m", b"second", replace=True)
    sim.settle()
    assert "is being registered or unregistered by another client" in second.failure
    assert isinstance(second.answer, messages.Failure)
    assert second.answer.kind == "exists"
    unregister = sim.connect().ask(messages.Unregister("m"))
    scale = sim.connect().ask(messages.Scale("m", 2))
    sim.settle()
    assert "by another client" in unregister.failure
    assert "by another client" in scale.failure
    sim.alive("m")[-1].loaded()
    sim.served(first)
    assert sim.is_served("m")
    assert sim.persisted()["m"].payloads == [b"first"]
    sim.served(sim.client.register("m", b"third", replace=True))
    rolled = sim.client.ask(messages.Rollback("m"))
    sim.served(rolled)
    assert sim.persisted()["m"].payloads == [b"first"]


def test_a_client_can_retry_after_cancelling(sim: SimulatedDaemon) -> None:
    sim.plans = ["hangs", "serves"]
    first = sim.client.register("m", b"first")
    sim.settle()
    sim.client.give_up(first)
    second = sim.client.register("m", b"second")
    sim.served(second)
    assert first.answers == []
    assert sim.persisted()["m"].payloads == [b"second"]


def test_a_replaced_model_is_not_loaded_again(sim: SimulatedDaemon) -> None:
    """Its workers recover while tritonserver loads the new one, which must be loaded last."""
    sim.served(sim.client.register("m", b"old"))
    (old,) = sim.alive("m")
    sim.plans = ["crashes", "crashes", "crashes", "hangs"]
    old.end()
    sim.advance(40.0)
    assert sim.state_of("m") == "not_ready"
    (late,) = sim.alive("m")
    sim.server.obstacles["m"] = obstacle = Obstacle("hang")
    request = sim.client.register("m", b"new", replace=True)
    sim.settle()
    late.loaded()  # tritonserver could load the old one now
    sim.settle()
    obstacle.gone.set()
    sim.served(request)
    sim.advance(10.0)
    assert sim.is_served("m")
    assert sim.server.history.count("load m") == 2


def test_a_replaced_model_waiting_for_its_load_is_skipped(sim: SimulatedDaemon) -> None:
    """tritonserver is up again, both are due to be loaded, and the new one comes first."""
    sim.served(sim.client.register("m", b"old"))
    sim.server.obstacles["m"] = Obstacle("end")
    request = sim.client.register("m", b"new", replace=True)
    sim.settle()
    sim.server.obstacles["m"] = obstacle = Obstacle("hang", 2)
    sim.advance(5.0)
    assert sim.server.ready
    obstacle.gone.set()
    sim.served(request)
    sim.advance(10.0)
    assert sim.is_served("m")
    assert sim.persisted()["m"].payloads == [b"new"]


def test_a_cancelled_replacement_leaves_a_model_without_workers_unloaded(
    sim: SimulatedDaemon,
) -> None:
    """Until one of its workers is back."""
    sim.served(sim.client.register("m", b"old"))
    sim.plans = ["crashes"] * 4
    sim.alive("m")[0].end()
    sim.advance(1.0)
    sim.usual_plan = "hangs"
    sim.advance(60.0)
    assert sim.state_of("m") == "not_ready"
    (late,) = sim.alive("m")
    sim.plans = ["serves"]
    sim.server.obstacles["m"] = obstacle = Obstacle("hang")
    request = sim.client.register("m", b"new", replace=True)
    sim.settle()
    sim.client.give_up(request)
    obstacle.gone.set()
    sim.advance(5.0)
    assert "m" not in sim.server.models
    late.loaded()
    sim.advance(5.0)
    assert sim.is_served("m")
    assert sim.state_of("m") == "ready"


def test_the_daemon_stops_while_a_model_is_registered(sim: SimulatedDaemon) -> None:
    sim.plans = ["hangs"]
    request = sim.client.register("m")
    sim.settle()
    sim.stop()
    assert request.failure == "model m was not registered: the daemon is stopping"
    assert sim.persisted() == {}


def test_a_stopping_daemon_reports_no_model_as_missing(sim: SimulatedDaemon) -> None:
    """Models stop one after another and return at the next start: none of them is unregistered."""
    for name in ("m", "n"):
        sim.served(sim.client.register(name))
    sim.server.obstacles["n"] = obstacle = Obstacle("hang")
    sim.loop.ask(lambda: sim.services.shutdown.request("its machine is to go"))
    sim.advance(5.0)
    states = sim.state_of("m"), sim.state_of("n")
    requests = []
    for message in (
        messages.Unregister("m"),
        messages.Unregister("n"),
        messages.Scale("m", 2),
        messages.Rollback("m"),
    ):
        requests.append(sim.client.ask(message))
        sim.settle()
    obstacle.gone.set()
    sim.stop()
    assert states == ("", "stopping")
    assert [one.failure for one in requests] == [
        "model m was not unregistered: the daemon is stopping",
        "model n was not unregistered: the daemon is stopping",
        "model m was not scaled: the daemon is stopping",
        "model m was not rolled back: the daemon is stopping",
    ]
    assert set(sim.persisted()) == {"m", "n"}


def test_waiting_for_tritonserver_is_limited(sim: SimulatedDaemon) -> None:
    """A client is told what it waits for, and then that it has waited too long."""
    sim.server.starts_fail = 100
    sim.server.end()
    request = sim.client.register("m")
    sim.advance(20.0)
    assert request.answer is None
    assert {one.text for one in request.progress} == {"waiting: tritonserver is being started"}
    sim.advance(600.0)
    assert "timed out after 600 s, because tritonserver is being started" in request.failure
    assert sim.workers == []


def test_a_full_disk_fails_a_registration_before_it_starts(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        request = sim.client.register("m")
        sim.answered(request)
    assert "No space left on device" in request.failure
    assert sim.workers == []
    assert sim.is_clean("m")


def test_cancelled_registrations_leave_no_entries(sim: SimulatedDaemon, tmp_path: Path) -> None:
    """Whatever happens, a registration leaves nothing unwanted in the state directory."""
    sim.plans = ["hangs"]
    request = sim.client.register("m")
    sim.settle()
    assert [path.suffix for path in (sim.state / "models").iterdir()] == [".unfinished"]
    sim.client.give_up(request)
    sim.settle()
    assert list((sim.state / "models").iterdir()) == []
