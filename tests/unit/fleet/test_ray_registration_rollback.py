"""A failed registration on Ray leaves no trace: the controller's own code with a fake cluster and a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from fakes.fleet.ray import Fleet

from pytriton.exceptions import FleetError
from pytriton.fleet.canary import Canary
from pytriton.fleet.on_ray.client import RayFleetClient

A, B = "aaaa", "bbbb"
CANARY = Canary(0.5, watch_s=30.0)


@pytest.fixture
def fleet() -> Fleet:
    """Two nodes with two instances each of v1, which replaced v0."""
    fleet = Fleet(A, B)
    fleet.register(b"v0")
    fleet.steps()
    assert replace(fleet, b"v1", "one") == ""
    fleet.steps()
    assert versions(fleet) == [b"v1", b"v0"]
    return fleet


def replace(fleet: Fleet, payload: bytes, request: str, canary: Canary | None = None) -> str:
    return fleet.register(payload, replace=True, canary=canary, request=request)


def versions(fleet: Fleet) -> list[bytes]:
    """Return the requested version, and the one that a rollback would restore."""
    model = fleet.controller._state.models["m"]
    return [one.payloads[0] for one in (model, model.previous) if one is not None]


def kept(fleet: Fleet) -> int:
    return len([key for key in fleet.keys.kept if b"/payloads/" in key])


def test_a_withdrawn_replacement_restores_the_previous_model(fleet: Fleet) -> None:
    fleet.cluster.refuses = {A, B}
    assert replace(fleet, b"v2", "two") == ""
    fleet.steps()
    assert "no room" in fleet.controller.progress("m")[3]
    fleet.controller = fleet.begin()
    fleet.controller.withdraw("m", "one")  # that is not what is wanted now
    assert versions(fleet) == [b"v2", b"v1"]
    fleet.controller.withdraw("m", "two")
    fleet.controller.withdraw("m", "two")  # Ray asks again when the controller dies
    assert versions(fleet) == [b"v1", b"v0"]
    fleet.cluster.refuses = set()
    fleet.steps()
    assert fleet.controller.progress("m") == (True, 4, 4, "")
    assert kept(fleet) == 2
    assert fleet.controller.rollback("m") == ""
    assert versions(fleet) == [b"v0", b"v1"]


def test_rollback_data_is_kept_until_the_model_is_served(fleet: Fleet) -> None:
    assert replace(fleet, b"v2", "two") == ""
    assert kept(fleet) == 3
    fleet.steps()
    assert kept(fleet) == 2
    assert versions(fleet) == [b"v2", b"v1"]
    fleet.controller.withdraw("m", "two")  # the registrant was interrupted at the last moment
    fleet.steps()
    assert versions(fleet) == [b"v1"]


def test_previous_resources_and_instances_are_restored(fleet: Fleet) -> None:
    fleet.register(b"v2", 6, replace=True, request="two")
    fleet.controller._state.models["m"].resources = {"num_cpus": 2}
    fleet.controller.withdraw("m", "two")
    model = fleet.controller._state.models["m"]
    assert (model.resources, model.spec.instances, len(model.holders)) == ({}, 4, 4)
    fleet.steps(30)
    assert fleet.cluster.counts() == {A: 2, B: 2}
    assert len(fleet.cluster.places) == 4


def test_a_withdrawn_first_registration_is_gone(fleet: Fleet) -> None:
    fleet.register(b"p", name="x", request="three")
    fleet.controller.withdraw("x", "another")
    assert "x" in fleet.controller._state.models
    fleet.controller.withdraw("x", "three")
    fleet.steps()
    assert "x" not in fleet.stored_state().models
    assert len(fleet.cluster.places) == 4


@pytest.mark.parametrize("how", [None, CANARY])
def test_a_registration_after_its_withdrawal_changes_nothing(
    fleet: Fleet, how: Canary | None
) -> None:
    """Both wait for the lock in threads, and Ray repeats pending calls after the controller died."""
    fleet.controller.withdraw("m", "two")
    fleet.controller = fleet.begin()
    assert "withdrawn" in replace(fleet, b"v2", "two", how)
    assert versions(fleet) == [b"v1", b"v0"]
    fleet.register(b"p", name="x", request="three")
    fleet.controller.withdraw("x", "three")
    fleet.controller = fleet.begin()
    assert "withdrawn" in fleet.register(b"p", name="x", request="three")
    fleet.steps()
    assert list(fleet.controller._state.models) == ["m"]
    assert replace(fleet, b"v2", "four", how) == ""
    for number in range(200):
        fleet.controller.withdraw("m", f"another {number}")
    assert len(fleet.stored_state().withdrawn) == 100


def test_withdrawing_a_registration_during_a_rollout_restores_the_old_version(fleet: Fleet) -> None:
    """The new one was not fully analyzed, so it must not go to all nodes."""
    assert replace(fleet, b"v2", "two", CANARY) == ""
    fleet.steps(4)
    assert replace(fleet, b"v3", "three") == ""
    fleet.controller.withdraw("m", "three")
    fleet.steps()
    assert versions(fleet) == [b"v1", b"v0"]
    model = fleet.controller._state.models["m"]
    assert {there["m"][0] for there in fleet.cluster.served.values()} == {model.digest}


def test_cancelling_a_rolled_back_rollout_changes_nothing(fleet: Fleet) -> None:
    assert replace(fleet, b"v2", "two", CANARY) == ""
    fleet.steps(4)
    assert replace(fleet, b"v2", "two", CANARY) == ""  # a repeated call refers to the same one
    assert fleet.controller._state.models["m"].rolling is not None
    fleet.cluster.refuses = {A, B}
    fleet.controller._rollouts.roll_back("m", fleet.controller._state.models["m"], "it is bad")
    fleet.controller.withdraw("m", "two")
    assert versions(fleet) == [b"v1", b"v0"]
    assert fleet.controller.rollout("m")[1] == "it is bad"
    assert replace(fleet, b"v2", "three", CANARY) == ""
    fleet.controller.withdraw("m", "three")
    assert versions(fleet) == [b"v1", b"v0"]


def test_a_repeated_rollback_is_done_once(fleet: Fleet) -> None:
    for request, expected in (("back", [b"v0", b"v1"]), ("forth", [b"v1", b"v0"])):
        for _ in range(2):
            assert fleet.controller.rollback("m", request) == ""
            assert versions(fleet) == expected
            fleet.controller = fleet.begin()
    assert replace(fleet, b"v2", "two", CANARY) == ""
    for _ in range(2):
        assert fleet.controller.rollback("m", "end") == ""
        assert versions(fleet) == [b"v1", b"v0"]


def test_a_failure_of_an_outdated_version_does_not_count_against_the_next(fleet: Fleet) -> None:
    fleet.cluster.slow = fleet.cluster.refuses = {A}
    assert replace(fleet, b"v2", "two") == ""
    fleet.steps(1)
    assert ("register", A) in fleet.cluster.asked
    assert replace(fleet, b"v3", "three") == ""
    fleet.cluster.slow = fleet.cluster.refuses = set()
    fleet.steps()
    assert fleet.controller.progress("m") == (True, 4, 4, "")
    # A rollout that is ended while a node gets the new version.
    fleet.cluster.slow = fleet.cluster.refuses = {A}
    assert replace(fleet, b"v4", "four", CANARY) == ""
    fleet.steps(2)
    fleet.controller.rollback("m")
    fleet.cluster.slow = fleet.cluster.refuses = set()
    fleet.steps()
    assert fleet.controller.progress("m") == (True, 4, 4, "")


def test_a_refusal_stays_reported_although_another_node_succeeds(fleet: Fleet) -> None:
    fleet.cluster.refuses, fleet.cluster.slow = {A}, {B}
    assert replace(fleet, b"v2", "two") == ""
    fleet.steps(2)
    fleet.cluster.slow = set()
    fleet.steps(1)
    assert fleet.controller.progress("m")[3] == "aaaa: no room"
    fleet.cluster.die(A)
    fleet.steps()
    assert fleet.controller.progress("m") == (True, 4, 4, "")


@pytest.mark.parametrize("key", [b"/payloads/", b"/model/", b"fleet-f"])
def test_an_unstorable_change_is_not_made(fleet: Fleet, key: bytes) -> None:
    changes: list[Callable[[], Any]] = [
        lambda: replace(fleet, b"v2", "two"),
        lambda: fleet.register(b"p", name="x"),
    ]
    if key != b"/payloads/":
        changes += [lambda: fleet.controller.scale("m", 6), lambda: fleet.controller.rollback("m")]
    before = dict(fleet.cluster.only)
    for change in changes:
        fleet.keys.refuses = key
        with pytest.raises(OSError, match="no room for keys"):
            change()
        assert versions(fleet) == [b"v1", b"v0"]
        assert fleet.controller.progress("m") == (True, 4, 4, "")
        assert fleet.cluster.released >= fleet.cluster.only.keys() - before.keys()
        fleet.keys.refuses = None
        fleet.steps()
        again = fleet.stored_state()
        assert again == fleet.controller._state
        assert list(again.models) == ["m"]
    assert replace(fleet, b"v2", "two") == ""  # with its payload
    assert fleet.stored_state().models["m"].payloads == [b"v2"]


def test_an_unanalyzable_rollout_is_rolled_back_without_affecting_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert replace(fleet, b"v2", "two", CANARY) == ""
    fleet.steps(4)
    advance = Mock(side_effect=ZeroDivisionError("no requests"))
    monkeypatch.setattr(fleet.controller._rollouts, "advance", advance)
    fleet.register(name="x")
    fleet.steps()
    assert fleet.controller.progress("x") == (True, 4, 4, "")
    assert "could not be evaluated" in fleet.controller.rollout("m")[1]
    assert versions(fleet) == [b"v1", b"v0"]


@pytest.mark.parametrize("how", [None, CANARY])
@pytest.mark.parametrize("when", ["register", "progress"])
def test_a_client_that_cancels_withdraws_its_registration(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, when: str, how: Canary | None
) -> None:
    asked: list[str] = []

    def ask(method: str, *given: Any) -> Any:
        asked.append(method)
        answer = getattr(fleet.controller, method)(*given)
        if method == when:
            raise KeyboardInterrupt
        return answer

    client = RayFleetClient.__new__(RayFleetClient)
    monkeypatch.setattr(client, "_ask", ask)
    with pytest.raises(KeyboardInterrupt):
        client.register(len, "m", [], [], replace=True, canary=how, resources={}, instances=4)
    assert asked[-1] == "withdraw"
    assert versions(fleet) == [b"v1", b"v0"]


@pytest.mark.parametrize("how", [None, CANARY])
@pytest.mark.parametrize(
    ("other", "reported"),
    [
        ("register", r"another client has registered it"),
        ("unregister", "another client has unregistered it"),
        ("rollback", r"another client has .* rolled it back|it was rolled back by a client"),
    ],
)
def test_waiters_learn_of_a_conflicting_change(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, how: Canary | None, other: str, reported: str
) -> None:
    """Otherwise they would take the other change's success for their own."""
    others: dict[str, Callable[[], Any]] = {
        "register": lambda: replace(fleet, b"v3", "three"),
        "unregister": lambda: fleet.controller.unregister("m"),
        "rollback": lambda: fleet.controller.rollback("m", "back"),
    }

    def ask(method: str, *given: Any) -> Any:
        answer = getattr(fleet.controller, method)(*given)
        if method == "register":
            others[other]()
            fleet.steps(40)
        return answer

    client = RayFleetClient.__new__(RayFleetClient)
    monkeypatch.setattr(client, "_ask", ask)
    with pytest.raises(FleetError, match=reported):
        client.register(len, "m", [], [], replace=True, canary=how, resources={}, instances=4)
    expected = {"register": [b"v3"], "rollback": [b"v1"], "unregister": []}[other]
    wanted = fleet.controller._state.models.values()
    assert [one.payloads[0] for one in wanted] == expected
