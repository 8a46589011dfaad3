"""A restarted controller and its stored state: models keep being served; nothing is forgotten or done twice."""

from __future__ import annotations

import pytest
from fakes.fleet.ray import Fleet

A, B, C = "aaaa", "bbbb", "cccc"


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(A, B)


def test_balancer_updates_from_before_a_clock_change_are_ignored(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update applied for the previous controller says nothing about the current one, however high its number is."""
    fleet.register()
    fleet.steps(30)
    before, _ = fleet.seen()
    monkeypatch.setattr("time.time_ns", lambda: before - 10**12)
    fleet.controller = fleet.begin()
    fleet.steps(30)
    generation, seen = fleet.seen(done=before)
    assert (generation < before, seen) == (True, {A: ["m"], B: ["m"]})
    fleet.controller.drain(B)
    fleet.steps(6)
    fleet.seen(done=before)
    fleet.steps(6)
    assert B in fleet.cluster.counts()  # requests still go there
    later, _ = fleet.seen(done=generation)
    fleet.seen(done=later)
    fleet.steps(6)
    assert fleet.cluster.counts() == {A: 4}


def test_resources_of_a_dead_controller_are_released(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps()
    fleet.cluster.hold("m/9", {}, [])
    fleet.cluster.hold("unregistered/1", {}, [])
    fleet.controller = fleet.begin()
    assert fleet.cluster.released == {"m/9", "unregistered/1"}
    fleet.steps()
    assert fleet.cluster.counts() == {A: 2, B: 2}


def test_models_of_a_lost_fleet_keep_serving_until_changed(fleet: Fleet) -> None:
    """Ray's head died and nothing had stored the state: daemons serve what the previous fleet registered."""
    fleet.register()
    fleet.register(name="other")
    fleet.steps(30)
    fleet.keys.kept.clear()
    fleet.controller = fleet.begin()
    fleet.steps(60)
    assert fleet.cluster.counts() == {A: 2, B: 2}
    assert fleet.seen()[1] == {A: ["m", "other"], B: ["m", "other"]}
    assert fleet.register(instances=2) == ""
    assert fleet.controller.unregister("other")
    assert not fleet.controller.unregister("another")
    fleet.controller = fleet.begin()
    fleet.steps(260)  # a balancer has asked, and might come back
    assert fleet.cluster.counts() == {A: 1, B: 1}
    assert fleet.cluster.counts("other") == {}
    fleet.controller.unregister("m")
    fleet.steps(60)
    assert fleet.cluster.counts() == {}


def test_a_repeated_unregister_is_done_once(fleet: Fleet) -> None:
    """Ray repeats the call if the controller dies before its answer, and the client must get a success."""
    fleet.register()
    assert fleet.controller.unregister("m", "r")
    fleet.controller = fleet.begin()
    assert fleet.controller.unregister("m", "r")
    assert not fleet.controller.unregister("m", "another")
    fleet.register()
    assert fleet.controller.unregister("m", "r")
    assert "m" in fleet.controller._state.models


def test_a_restarted_controller_has_the_whole_state(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    before, _ = fleet.seen()
    fleet.cluster.asked.clear()
    fleet.cluster.silent = {B}
    fleet.controller = fleet.begin()
    fleet.steps()
    assert fleet.seen()[0] == -1  # its view is incomplete: the balancers' is better
    fleet.cluster.silent = set()
    fleet.steps()
    generation, seen = fleet.seen(done=before)
    assert generation > before
    assert seen == {A: ["m"], B: ["m"]}
    assert fleet.cluster.asked == []  # nothing had to be done


def test_balancers_get_no_update_before_registrations_are_served_again(fleet: Fleet) -> None:
    """Ray's head was down until its nodes exited: what they left behind serves, and balancers know it."""
    fleet.register()
    fleet.steps(30)
    before, _ = fleet.seen()
    fleet.controller = fleet.begin()
    fleet.cluster.alive[C], fleet.cluster.served[C] = "10.0.0.1", {}
    fleet.cluster.environments[C] = {}
    fleet.cluster.counted[C] = fleet.cluster.counted[A]
    for gone in (A, B):
        fleet.cluster.die(gone)
    fleet.cluster.refuses = {C}
    fleet.steps(4)
    assert fleet.seen(done=before)[0] == -1
    fleet.cluster.refuses = set()
    fleet.steps(80)
    generation, seen = fleet.seen(done=before)
    assert (generation > before, seen) == (True, {C: ["m"]})


def test_a_change_writes_only_the_changed_model(fleet: Fleet) -> None:
    for index in range(20):
        fleet.register(name=f"m{index}")
    fleet.steps()
    fleet.keys.written.clear()
    fleet.controller.scale("m7", 6)
    fleet.steps()
    assert set(fleet.keys.written) == {b"fleet-f", b"fleet-f/model/m7"}  # and no payload
    fleet.register(b"another", replace=True, name="m8")
    fleet.controller.unregister("m3")
    # One is gone, and another one can be put back.
    assert len([key for key in fleet.keys.kept if b"/payloads/" in key]) == 20
    again = fleet.begin()
    assert sorted(again._state.models) == sorted(f"m{index}" for index in range(20) if index != 3)
    assert again._state.models["m7"].spec.instances == 6
    assert again._state.models["m7"].payloads == [b"p"]
    assert again._state.models["m8"].payloads == [b"another"]
    fleet.controller.stop()
    assert fleet.keys.kept == {}


def test_each_change_writes_a_constant_amount(fleet: Fleet) -> None:
    """Independent of the names ever registered, too: ten thousand of them are 100 KB."""
    fleet.register(name="first")
    before = len(fleet.keys.kept[b"fleet-f"])
    for index in range(20):
        fleet.register(name=f"m{index}")
        fleet.controller.unregister(f"m{index}")
    fleet.keys.written.clear()
    fleet.controller.scale("first", 6)
    assert set(fleet.keys.written) == {b"fleet-f", b"fleet-f/model/first"}
    assert len(fleet.keys.kept[b"fleet-f"]) < before + 20 * len("0123456789abcdef")
    assert sorted(fleet.stored_state().known or ()) == sorted(
        ["first", *(f"m{one}" for one in range(20))]
    )


def test_unused_payloads_are_deleted(fleet: Fleet) -> None:
    fleet.register()
    fleet.keys.kept[b"fleet-f/payloads/of a controller that died"] = b""
    fleet.begin()
    (kept,) = (key for key in fleet.keys.kept if b"/payloads/" in key)
    assert kept.decode().endswith(fleet.controller._state.models["m"].digest)


def test_a_drain_is_stored_with_everything_that_it_moves(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(name="other")
    fleet.steps(30)
    fleet.controller.drain(B)
    again = fleet.stored_state()
    assert again == fleet.controller._state
    assert [len(one.retired) for one in again.models.values()] == [2, 2]


def test_a_balancer_that_has_not_reconnected_is_awaited(fleet: Fleet) -> None:
    """HAProxy still routes as the previous controller said, to nodes that would no longer have the model."""
    fleet.register()
    fleet.steps(30)
    generation, _ = fleet.seen()
    fleet.seen(done=generation)
    fleet.controller = fleet.begin()
    fleet.controller.drain(B)
    fleet.steps(120)  # a minute
    assert B in fleet.cluster.counts()
    reported, _ = fleet.seen("another")
    fleet.steps(4)
    assert B in fleet.cluster.counts()
    fleet.seen("another", reported)
    fleet.steps(4)
    assert fleet.cluster.counts() == {A: 4}


def test_a_balancer_without_an_update_is_awaited(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.controller = fleet.begin()
    fleet.cluster.silent = {A}
    for _ in range(30):
        fleet.steps(1)
        assert fleet.seen()[0] == -1
    fleet.controller.drain(B)
    fleet.cluster.silent = set()
    fleet.steps(10)
    assert B in fleet.cluster.counts()
    fleet.seen(done=fleet.seen()[0])
    fleet.steps(4)
    assert fleet.cluster.counts() == {A: 4}


def test_waiting_for_lost_balancers_is_limited(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.seen()
    fleet.controller = fleet.begin()
    fleet.controller.drain(B)
    fleet.steps(260)
    assert fleet.cluster.counts() == {A: 4}
