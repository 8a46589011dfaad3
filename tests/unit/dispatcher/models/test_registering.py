"""Histories of registrations: what workers, tritonserver and clients do meanwhile, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes.brain import Brain
from support.fakes.fake_clients import Client, Request
from support.fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages

#: What the workers do, what happens to loads, and the failure that the client is told; None: it is served.
HISTORIES = {
    "serves": (["serves", "serves"], None, None),
    "cannot be loaded": (["serves", "fails"], None, "model m could not be loaded: no file"),
    "crashes while it loads": (["serves", "crashes"], None, "w2 exited before its callable was"),
    "loads for ever": (["hangs", "serves"], None, "did not load its callable within 600 s"),
    "never says hello": (["silent", "serves"], None, "did not start within 60 s"),
    "tritonserver refuses": ([], Obstacle("refuse"), "tritonserver did not load m: no"),
    "tritonserver ends": ([], Obstacle("end", 1), None),
    "tritonserver ends twice": ([], Obstacle("end", 2), None),
    "tritonserver ends each time": ([], Obstacle("end", 3), "tritonserver is down"),
    "tritonserver crashes": ([], Obstacle("crash"), "tritonserver crashed with m"),
}


def _meets(brain: Brain, plans: list[str], obstacle: Obstacle | None) -> None:
    brain.plans = [f"{plan}" for plan in plans]
    if obstacle is not None:
        brain.server.obstacles["m"] = Obstacle(obstacle.what, obstacle.times)


@pytest.mark.parametrize(("plans", "obstacle", "failure"), HISTORIES.values(), ids=HISTORIES.keys())
def test_a_registration_is_all_or_nothing(
    brain: Brain, plans: list[str], obstacle: Obstacle | None, failure: str | None
) -> None:
    _meets(brain, plans, obstacle)
    request = brain.client.register("m", instances=2)
    brain.answered(request)
    if failure is None:
        assert brain.is_served("m")
        assert len(brain.alive("m")) == 2
        assert brain.kept()["m"].payloads == [b"callable"]
        return
    assert failure in request.failure
    if obstacle is not None and obstacle.what == "crash":
        assert brain.server.history.count("load m") == 1  # the next server would crash, too
    brain.advance(100.0)
    assert brain.is_clean("m")
    assert brain.server.gate_open  # it says that it is ready
    brain.served(brain.client.register("m"))  # the name is free


@pytest.mark.parametrize(("plans", "obstacle", "failure"), HISTORIES.values(), ids=HISTORIES.keys())
def test_a_replacement_that_fails_leaves_the_old_one(
    brain: Brain, plans: list[str], obstacle: Obstacle | None, failure: str | None
) -> None:
    brain.served(brain.client.register("m", b"old"))
    (old,) = brain.alive("m")
    brain.plans = plans = [*(["serves"] if not plans else []), *plans]
    brain.workers.clear()
    _meets(brain, plans, obstacle)
    request = brain.client.register("m", b"new", replace=True, instances=2)
    brain.answered(request)
    brain.advance(100.0)
    assert brain.is_served("m")
    assert brain.state_of("m") == "ready"
    assert old.alive == (failure is not None)
    assert len(brain.alive("m")) == (2 if failure is None else 0)  # besides the old one
    assert brain.kept()["m"].payloads == [b"new" if failure is None else b"old"]
    if failure is not None:
        assert failure.replace("w2", "w3") in request.failure


def _gives_up(client: Client, request: Request) -> None:
    client.give_up(request)


def _ends(client: Client, request: Request) -> None:
    client.end_process()


@pytest.mark.parametrize("how", [_gives_up, _ends], ids=["gives up", "ends"])
@pytest.mark.parametrize("where", ["workers load", "tritonserver loads", "just registered"])
@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("former", [False, True], ids=["new", "replaces"])
def test_a_client_that_does_not_wait(
    brain: Brain, how: object, where: str, isolation: str, former: bool
) -> None:
    """Its registration is undone, wherever it was; too late, and it is served as any other: by processes only."""
    keeper = brain.connect()
    if former:
        brain.served(keeper.register("m", b"old"))
        brain.server.hold_proxies = True
    obstacle = Obstacle("hang")
    if where == "workers load":
        brain.plans = ["hangs"]
    elif where == "tritonserver loads":
        brain.server.obstacles["m"] = obstacle
    client = brain.client
    request = client.register("m", b"new", replace=True, isolation=isolation)
    brain.settle()
    assert (request.answer is None) == (former or where != "just registered")
    assert callable(how)
    how(client, request)
    brain.settle()
    obstacle.gone.set()
    brain.let_batches_end()
    brain.advance(100.0)
    too_late = where == "just registered"
    if isolation == "thread" and (how is _ends or former) and too_late:
        assert brain.is_clean("m")  # nothing is left that could serve it
    elif too_late:
        assert brain.is_served("m")
        assert ("m" in brain.kept()) == (isolation == "process")
    elif former:
        assert brain.is_served("m")
        assert brain.kept()["m"].payloads == [b"old"]
    else:
        assert brain.is_clean("m")
    assert len(brain.alive("m")) <= 1


def test_a_name_is_registered_by_one_at_a_time(brain: Brain) -> None:
    """Of two who replace a model at once, one is told so, and the other one's serves."""
    brain.served(brain.client.register("m", b"old"))
    brain.plans = ["hangs"]
    first = brain.client.register("m", b"first", replace=True)
    second = brain.connect().register("m", b"second", replace=True)
    brain.settle()
    assert "is being registered or unregistered by another client" in second.failure
    unregister = brain.connect().ask(messages.Unregister("m"))
    scale = brain.connect().ask(messages.Scale("m", 2))
    brain.settle()
    assert "by another client" in unregister.failure
    assert "by another client" in scale.failure
    brain.alive("m")[-1].loaded()
    brain.served(first)
    assert brain.is_served("m")
    assert brain.kept()["m"].payloads == [b"first"]
    brain.served(brain.client.register("m", b"third", replace=True))
    rolled = brain.client.ask(messages.Rollback("m"))
    brain.served(rolled)
    assert brain.kept()["m"].payloads == [b"first"]


def test_who_gives_up_and_begins_again_is_not_in_its_own_way(brain: Brain) -> None:
    brain.plans = ["hangs", "serves"]
    first = brain.client.register("m", b"first")
    brain.settle()
    brain.client.give_up(first)
    second = brain.client.register("m", b"second")
    brain.served(second)
    assert first.answers == []
    assert brain.kept()["m"].payloads == [b"second"]


def test_a_model_that_is_replaced_does_not_load_itself_again(brain: Brain) -> None:
    """Its workers come back while tritonserver loads the new one: what it loads last is the new one."""
    brain.served(brain.client.register("m", b"old"))
    (old,) = brain.alive("m")
    brain.plans = ["crashes", "crashes", "crashes", "hangs"]
    old.end()
    brain.advance(40.0)
    assert brain.state_of("m") == "unready"
    (late,) = brain.alive("m")
    brain.server.obstacles["m"] = obstacle = Obstacle("hang")
    request = brain.client.register("m", b"new", replace=True)
    brain.settle()
    late.loaded()  # tritonserver could load the old one now
    brain.settle()
    obstacle.gone.set()
    brain.served(request)
    brain.advance(10.0)
    assert brain.is_served("m")
    assert brain.server.history.count("load m") == 2


def test_a_former_one_that_waits_for_its_turn_is_not_loaded_any_more(brain: Brain) -> None:
    """tritonserver is up again, and both are to be loaded; the new one's turn comes first."""
    brain.served(brain.client.register("m", b"old"))
    brain.server.obstacles["m"] = Obstacle("end")
    request = brain.client.register("m", b"new", replace=True)
    brain.settle()
    brain.server.obstacles["m"] = obstacle = Obstacle("hang", 2)
    brain.advance(5.0)
    assert brain.server.ready
    obstacle.gone.set()
    brain.served(request)
    brain.advance(10.0)
    assert brain.is_served("m")
    assert brain.kept()["m"].payloads == [b"new"]


def test_a_replacement_given_up_leaves_what_has_no_worker_out_of_tritonserver(
    brain: Brain,
) -> None:
    """Until a worker of it is back."""
    brain.served(brain.client.register("m", b"old"))
    brain.plans = ["crashes"] * 4
    brain.alive("m")[0].end()
    brain.advance(1.0)
    brain.usual_plan = "hangs"
    brain.advance(60.0)
    assert brain.state_of("m") == "unready"
    (late,) = brain.alive("m")
    brain.plans = ["serves"]
    brain.server.obstacles["m"] = obstacle = Obstacle("hang")
    request = brain.client.register("m", b"new", replace=True)
    brain.settle()
    brain.client.give_up(request)
    obstacle.gone.set()
    brain.advance(5.0)
    assert "m" not in brain.server.models
    late.loaded()
    brain.advance(5.0)
    assert brain.is_served("m")
    assert brain.state_of("m") == "ready"


def test_the_daemon_stops_while_a_model_is_registered(brain: Brain) -> None:
    brain.plans = ["hangs"]
    request = brain.client.register("m")
    brain.settle()
    brain.stop()
    assert request.failure == "model m was not registered: the daemon is stopping"
    assert brain.kept() == {}


def test_a_daemon_that_stops_says_of_no_model_that_there_is_none(brain: Brain) -> None:
    """Models end one before the other, and all come back at the next start: none of them is unregistered."""
    for name in ("m", "n"):
        brain.served(brain.client.register(name))
    brain.server.obstacles["n"] = obstacle = Obstacle("hang")
    brain.loop.ask(lambda: brain.daemon.ending.request("its machine is to go"))
    brain.advance(5.0)
    states = brain.state_of("m"), brain.state_of("n")
    requests = []
    for message in (
        messages.Unregister("m"),
        messages.Unregister("n"),
        messages.Scale("m", 2),
        messages.Rollback("m"),
    ):
        requests.append(brain.client.ask(message))
        brain.settle()
    obstacle.gone.set()
    brain.stop()
    assert states == ("", "stopping")
    assert [one.failure for one in requests] == [
        "model m was not unregistered: the daemon is stopping",
        "model n was not unregistered: the daemon is stopping",
        "model m was not scaled: the daemon is stopping",
        "model m was not rolled back: the daemon is stopping",
    ]
    assert set(brain.kept()) == {"m", "n"}


def test_tritonserver_is_waited_for_in_time(brain: Brain) -> None:
    """A client is told what it waits for; then that it has waited long enough."""
    brain.server.starts_fail = 100
    brain.server.end()
    request = brain.client.register("m")
    brain.advance(20.0)
    assert request.answer is None
    assert {one.text for one in request.progress} == {"waiting: tritonserver is being started"}
    brain.advance(600.0)
    assert "for 600 s (busy_timeout_s), tritonserver is being started" in request.failure
    assert brain.workers == []


def test_a_disk_that_is_full_fails_a_registration_before_it_begins(
    brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        request = brain.client.register("m")
        brain.answered(request)
    assert "No space left on device" in request.failure
    assert brain.workers == []
    assert brain.is_clean("m")


def test_what_is_not_kept_any_more(brain: Brain, tmp_path: Path) -> None:
    """A registration that was begun leaves nothing in the state directory, whatever becomes of it."""
    brain.plans = ["hangs"]
    request = brain.client.register("m")
    brain.settle()
    assert [path.suffix for path in (brain.state / "models").iterdir()] == [".unfinished"]
    brain.client.give_up(request)
    brain.settle()
    assert list((brain.state / "models").iterdir()) == []
