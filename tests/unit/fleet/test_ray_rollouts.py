"""A rollout on Ray, step by step: the controller's own code with a fake cluster and a clock."""

from __future__ import annotations

import msgspec
import pytest
from fakes.fleet.ray import Fleet

from pytriton.fleet import NodeStatus
from pytriton.fleet.canary import Canary

A, B, C, D = "aaaa", "bbbb", "cccc", "dddd"
CANARY = Canary(0.25, watch_s=30.0)


@pytest.fixture
def fleet() -> Fleet:
    """Four nodes with two instances each of an old version."""
    fleet = Fleet(A, B, C, D)
    fleet.register(b"old", 8)
    fleet.steps(30)
    return fleet


def served(fleet: Fleet) -> dict[str, str]:
    """Return node -> "old" or "new"."""
    model = fleet.controller._state.models["m"]
    versions = {model.digest: model.payloads[0].decode()}
    for one in (model.previous, model.rolling.former if model.rolling else None):
        if one is not None:
            versions[one.digest] = one.payloads[0].decode()
    return {
        node: versions.get(there["m"][0], "gone") for node, there in fleet.cluster.served.items()
    }


def begin(fleet: Fleet, canary: Canary = CANARY) -> None:
    assert fleet.register(b"new", 8, replace=True, canary=canary) == ""
    fleet.steps(4)


def watch(fleet: Fleet, seconds: float, *, fails: bool = False) -> None:
    digest = fleet.controller._state.models["m"].digest
    for _ in range(int(seconds * 2)):
        fleet.cluster.serve(1, digest if fails else "")
        fleet.steps(1)


def shares(fleet: Fleet) -> dict[str, float]:
    """Return the shares of nodes that balancers get."""
    _, reported = fleet.controller.view("b", -1)
    return {
        one.node.rpartition("/")[2]: model.lease.share
        for one in msgspec.msgpack.decode(reported, type=list[NodeStatus])
        for model in (one.status.models if one.status else ())
        if model.lease is not None
    }


def test_a_good_version_goes_to_its_share_and_then_to_all(fleet: Fleet) -> None:
    generation, _ = fleet.controller.view("b", -1)
    begin(fleet)
    assert served(fleet) == {A: "new", B: "old", C: "old", D: "old"}
    assert shares(fleet) == {A: 0.25}
    assert fleet.controller.view("b", -1)[0] > generation
    watch(fleet, 29)
    assert served(fleet) == {A: "new", B: "old", C: "old", D: "old"}
    assert "new: " in fleet.controller.rollout("m")[0]
    assert fleet.controller.progress("m")[0] is False
    while served(fleet) == {A: "new", B: "old", C: "old", D: "old"}:
        watch(fleet, 0.5)
    assert "old" in served(fleet).values()
    assert shares(fleet) == {}  # otherwise the last old ones would get nearly all requests
    watch(fleet, 20)
    assert served(fleet) == dict.fromkeys((A, B, C, D), "new")
    assert shares(fleet) == {}
    assert fleet.controller.progress("m") == (True, 8, 8, "")
    assert fleet.controller.rollout("m") == ("", "")
    assert fleet.cluster.counts() == {A: 2, B: 2, C: 2, D: 2}


def test_a_bad_version_is_rolled_back(fleet: Fleet) -> None:
    begin(fleet)
    watch(fleet, 6, fails=True)
    assert served(fleet) == dict.fromkeys((A, B, C, D), "old")
    assert fleet.controller.progress("m") == (True, 8, 8, "")
    assert "3 of its 3 requests failed" in fleet.controller.rollout("m")[1]
    assert shares(fleet) == {}
    begin(fleet)  # counts of a rolled-back version do not affect the next
    assert fleet.controller.rollout("m")[1] == ""


@pytest.mark.parametrize("how", ["fails", "is rolled back", "is withdrawn"])
@pytest.mark.parametrize("scaled", [None, 12])
def test_a_rollback_restores_the_number_of_instances(
    fleet: Fleet, how: str, scaled: int | None
) -> None:
    assert fleet.register(b"new", 4, replace=True, canary=CANARY, request="new") == ""
    fleet.steps(4)
    if scaled is not None:
        fleet.controller.scale("m", scaled)
        fleet.steps(4)
    if how == "fails":
        watch(fleet, 6, fails=True)
    elif how == "is rolled back":
        assert fleet.controller.rollback("m") == ""
    else:
        fleet.controller.withdraw("m", "new")
    fleet.steps(30)
    wanted = scaled or 8
    assert fleet.controller.progress("m") == (True, wanted, wanted, "")
    assert set(served(fleet).values()) == {"old"}
    assert len(fleet.cluster.places) == wanted


def test_a_controller_restarted_by_ray_continues(fleet: Fleet) -> None:
    begin(fleet)
    watch(fleet, 20)
    fleet.controller = fleet.begin()
    watch(fleet, 20)
    assert served(fleet) == {A: "new", B: "old", C: "old", D: "old"}  # a separate analysis
    fleet.controller = fleet.begin()
    watch(fleet, 6, fails=True)
    assert served(fleet) == dict.fromkeys((A, B, C, D), "old")
    fleet.controller = fleet.begin()
    assert "3 of its 3" in fleet.controller.rollout("m")[1]


def test_a_node_that_cannot_load_it_causes_a_rollback_everywhere(fleet: Fleet) -> None:
    fleet.cluster.refuses = {A}
    begin(fleet)
    assert served(fleet) == dict.fromkeys((A, B, C, D), "old")
    assert fleet.controller.rollout("m")[1] == "aaaa: no room"


def test_a_dead_node_is_not_blamed_on_the_version(fleet: Fleet) -> None:
    begin(fleet)
    fleet.cluster.die(A)
    fleet.steps(6)
    found = served(fleet)
    assert sorted(found.values()) == ["new", "old", "old"]  # another one is analyzed now
    watch(fleet, 40)
    assert set(served(fleet).values()) == {"new"}


def test_a_silent_node_is_not_analyzed(fleet: Fleet) -> None:
    begin(fleet)
    fleet.cluster.silent = {A}
    watch(fleet, 60)
    assert {served(fleet)[node] for node in (B, C, D)} == {"old"}
    fleet.cluster.silent = set()
    watch(fleet, 45)
    assert set(served(fleet).values()) == {"new"}


def test_a_node_that_stays_silent_causes_a_rollback_everywhere(fleet: Fleet) -> None:
    """Nobody else may be there to cancel: the registrant may be dead."""
    begin(fleet)
    fleet.cluster.silent = {A}
    watch(fleet, 125)
    assert fleet.controller.rollout("m")[1] == "aaaa cannot be watched: it does not answer"
    fleet.cluster.silent = set()
    fleet.steps(6)
    assert served(fleet) == dict.fromkeys((A, B, C, D), "old")


def test_rollback_goes_back_and_forth_and_ends_a_rollout(fleet: Fleet) -> None:
    assert "has not been replaced" in (fleet.controller.rollback("m") or "")
    assert fleet.controller.rollback("x") is None
    fleet.register(b"new", 8, replace=True)
    fleet.steps()
    for expected in ("old", "new", "old"):
        fleet.controller.scale("m", 8)
        assert fleet.controller.rollback("m") == ""
        fleet.steps()
        assert set(served(fleet).values()) == {expected}
        assert fleet.controller.progress("m") == (True, 8, 8, "")
        fleet.controller = fleet.begin()
    begin(fleet)
    assert fleet.controller.rollback("m") == ""
    fleet.steps(4)
    assert set(served(fleet).values()) == {"old"}


def test_impossible_rollouts_are_refused(fleet: Fleet) -> None:
    assert "no old version to compare" in fleet.register(name="x", replace=True, canary=CANARY)
    begin(fleet)
    assert "in progress" in fleet.register(b"third", replace=True, canary=CANARY)
    assert fleet.register(b"third", 8, replace=True) == ""  # without a canary it goes everywhere
    fleet.steps(4)
    model = fleet.controller._state.models["m"]
    assert {there["m"][0] for there in fleet.cluster.served.values()} == {model.digest}
    assert model.previous is not None
    assert model.previous.payloads == [b"old"]


def test_instances_on_one_node_cannot_be_compared() -> None:
    fleet = Fleet(A)
    fleet.register(b"old", 2)
    fleet.steps()
    begin(fleet)
    assert "no old version to compare with" in fleet.controller.rollout("m")[1]
    assert served(fleet) == {A: "old"}


def test_only_versions_that_may_be_needed_are_stored(fleet: Fleet) -> None:
    begin(fleet)
    kept = [key for key in fleet.keys.kept if b"/payloads/" in key]
    assert len(kept) == 2
    watch(fleet, 45)
    fleet.register(b"third", 8, replace=True)
    fleet.steps()
    again = fleet.stored_state().models["m"]
    assert again.payloads == [b"third"]
    assert again.previous is not None
    assert again.previous.payloads == [b"new"]
    assert len([key for key in fleet.keys.kept if b"/payloads/" in key]) == 2


@pytest.mark.parametrize("canary", [None, Canary(0.5, watch_s=5)])
def test_the_same_registration_again_is_a_new_version(canary: Canary | None) -> None:
    """What it refers to may have changed: the nodes' packages, and files that it reads."""
    fleet = Fleet(A, B)
    fleet.register()
    fleet.steps(30)
    before = fleet.cluster.served[A]["m"][0]
    assert fleet.register(replace=True, canary=canary, request="second") == ""
    fleet.steps(60)
    after = {served["m"][0] for served in fleet.cluster.served.values()}
    assert before not in after
    assert len(after) == 1
    assert fleet.controller.rollback("m") == ""
    fleet.steps()
    assert {served["m"][0] for served in fleet.cluster.served.values()} == {before}
