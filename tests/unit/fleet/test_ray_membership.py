"""Nodes joining and leaving a fleet on Ray: fewer than before, and unknown ones."""

from __future__ import annotations

from typing import Any, Optional

import msgspec
import pytest
from fakes.fake_dispatcher import status
from fakes.fleet.ray import Fleet

from pytriton.exceptions import FleetError, PyTritonBadParameterError, PyTritonDaemonError
from pytriton.fleet.on_ray import check_name
from pytriton.fleet.on_ray.client import RayFleetClient, RayNode
from pytriton.fleet.on_ray.cluster import Members, members
from pytriton.fleet.on_ray.lifecycle import start_fleet
from pytriton.fleet.on_ray.versions import MAX_INSTANCES

A, B, C = "aaaa", "bbbb", "cccc"


@pytest.mark.parametrize(
    ("most", "had", "more", "expected"),
    [
        (None, "", {}, Members([A, B, C], [])),
        (5, "", {}, Members([A, B, C], [])),
        (2, "", {}, Members([A, B], [])),  # C was never the fleet's
        (2, "ABC", {}, Members([A, B], [C])),
        (2, "ABC", {"load": {C: 3, B: 1}}, Members([B, C], [A])),
        (2, "ABC", {"among": [A, B], "load": {C: 3}}, Members([A, B], [C])),
        (2, "C", {}, Members([A, C], [])),
        (2, "AB", {"among": [A, B], "draining": [A]}, Members([B, C], [A])),
        (3, "ABC", {"draining": [A]}, Members([A, B, C], [])),
        (2, "BC", {"draining": [A]}, Members([B, C], [])),
        (3, "BC", {"draining": [A]}, Members([B, C], [])),  # it was drained, and left
    ],
)
def test_nodes_of_the_fleet(
    most: Optional[int], had: str, more: dict[str, Any], expected: Members
) -> None:
    names = {"A": A, "B": B, "C": C}
    assert members([C, A, B], most, [names[one] for one in had], **more) == expected


@pytest.fixture
def fleet() -> Fleet:
    found = Fleet(A, B, C)
    found.register(instances=6)
    found.steps(30)  # its balancers had time to poll
    return found


def test_surplus_nodes_are_drained_and_then_removed(fleet: Fleet) -> None:
    generation, seen = fleet.seen()
    assert seen == {A: ["m"], B: ["m"], C: ["m"]}
    fleet.controller.start({"nodes": 2})
    fleet.steps()
    assert fleet.cluster.counts() == {A: 3, B: 3, C: 2}  # elsewhere first
    assert [one[:3:2] for one in fleet.controller.nodes()] == [(A, False), (B, False), (C, True)]
    later, seen = fleet.seen(done=generation)
    assert (later > generation, seen) == (True, {A: ["m"], B: ["m"]})
    fleet.steps()
    assert fleet.cluster.counts() == {A: 3, B: 3, C: 2}
    assert fleet.cluster.dismissed == []
    fleet.seen(done=later)  # the balancer sends nothing there any more
    fleet.steps()
    assert fleet.cluster.counts() == {A: 3, B: 3}
    assert set(fleet.cluster.dismissed) == {C}
    assert [one[0] for one in fleet.controller.nodes()] == [A, B]
    assert len(fleet.cluster.places) == 6  # what it had held is free


def test_a_node_needed_again_before_its_removal_stays(fleet: Fleet) -> None:
    generation, _ = fleet.seen()
    fleet.controller.start({"nodes": 2})
    fleet.steps()
    fleet.controller.start({"nodes": 3})
    fleet.steps()
    fleet.seen(done=fleet.seen(done=generation)[0])
    fleet.steps(30)
    assert fleet.cluster.dismissed == []
    assert [one[2] for one in fleet.controller.nodes()] == [False] * 3
    fleet.controller.scale("m", 9)
    fleet.steps()
    assert fleet.cluster.counts().keys() == {A, B, C}


def test_without_resources_elsewhere_a_surplus_node_keeps_serving(fleet: Fleet) -> None:
    fleet.cluster.room = 6
    fleet.controller.start({"nodes": 2})
    fleet.steps(60)
    assert fleet.cluster.counts() == {A: 2, B: 2, C: 2}
    assert fleet.cluster.dismissed == []


def test_a_restarted_controller_continues_to_drain_a_node(fleet: Fleet) -> None:
    fleet.controller.start({"nodes": 2})
    fleet.steps(1)
    fleet.controller = fleet.begin()
    fleet.steps(60)
    assert fleet.cluster.counts() == {A: 3, B: 3}
    assert set(fleet.cluster.dismissed) == {C}


def test_a_silent_node_does_not_count_as_empty(fleet: Fleet) -> None:
    fleet.controller.start({"nodes": 2})
    fleet.cluster.silent = {C}
    fleet.steps(60)
    assert fleet.cluster.dismissed == []
    fleet.cluster.silent = set()
    fleet.steps(60)
    assert fleet.cluster.counts() == {A: 3, B: 3}


def test_pending_placements_follow_a_larger_node_selection() -> None:
    fleet = Fleet(A, B)
    fleet.controller.start({"nodes": 1})
    fleet.cluster.room = 1
    fleet.register(instances=2)
    fleet.steps()
    fleet.controller.start({"nodes": None})
    fleet.steps()
    fleet.cluster.room = 2
    fleet.steps()
    assert sum(fleet.cluster.counts().values()) == 2
    assert [fleet.cluster.only[one] for one in fleet.cluster.places].count(None) == 1


@pytest.mark.parametrize("node", ["", "nowhere", "a,b) or (c"])
def test_a_missing_node_is_not_drained(fleet: Fleet, node: str) -> None:
    """Otherwise its name would stay in the label selector of every placement."""
    assert "no node" in fleet.controller.drain(node)
    fleet.controller.scale("m", 7)
    assert fleet.controller._state.draining == []
    assert not any(fleet.cluster.but.values())


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 300])
def test_an_ambiguous_name_is_refused(fleet: Fleet, name: str) -> None:
    assert "is not a valid name of a model" in fleet.register(name=name)
    assert list(fleet.controller._state.models) == ["m"]


@pytest.mark.parametrize("instances", [-1, 0, MAX_INSTANCES + 1, 10**12])
def test_too_many_instances_are_refused(fleet: Fleet, instances: int) -> None:
    assert f"instances={instances}" in fleet.register(name="n", instances=instances)
    with pytest.raises(ValueError, match="must be between 1 and"):
        fleet.controller.scale("m", instances)
    fleet.steps()
    assert fleet.controller.progress("m") == (True, 6, 6, "")


def test_of_two_controllers_the_newer_one_acts(fleet: Fleet) -> None:
    """Ray starts another one if it takes the first one for dead, which may return for a while."""
    former, fleet.controller = fleet.controller, fleet.begin()
    assert fleet.register(b"new", instances=6, replace=True) == ""
    fleet.steps(30)
    served = {node: dict(models) for node, models in fleet.cluster.served.items()}
    kept = dict(fleet.keys.kept)
    former.step()
    with pytest.raises(PyTritonDaemonError, match="another controller"):
        former.scale("m", 7)
    with pytest.raises(PyTritonDaemonError, match="another controller"):
        former.unregister("m")
    fleet.steps()
    assert (fleet.cluster.served, fleet.keys.kept) == (served, kept)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "../x", "a b", "x" * 41])
def test_a_fleet_name_that_is_part_of_anothers_is_refused(name: str) -> None:
    for refuses in (check_name, start_fleet):
        with pytest.raises(PyTritonBadParameterError, match="is not a valid fleet name"):
            refuses(name)


@pytest.mark.parametrize("nodes", [0, -1, True, 1.5])
def test_invalid_node_counts_are_refused(nodes: Any) -> None:
    with pytest.raises(PyTritonBadParameterError, match="a positive integer"):
        start_fleet("f", nodes=nodes)


def client_of(answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> RayFleetClient:
    """Return a client whose controller gives this answer."""
    client = RayFleetClient.__new__(RayFleetClient)
    client.name = "f"
    monkeypatch.setattr(client, "_ask", lambda method, *_: answers[method])
    monkeypatch.setattr("pytriton.fleet.on_ray.client._POLL_INTERVAL_S", 0.001)
    return client


def test_a_balancer_that_cannot_apply_updates_is_named_in_timeouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "unregister": True,
        "progress": (False,),
        "drain": "",
        "drained": False,
        "nodes": [(A, "h", False, b"", "")],
    }
    client = client_of(answers, monkeypatch)
    with pytest.raises(FleetError, match="The fleet is waiting for a balancer"):
        client.unregister("m", wait_s=0.01)
    with pytest.raises(FleetError, match="The fleet is waiting for a balancer"):
        client.drain(A, wait_s=0.01)


def test_a_node_lost_while_draining_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(
        {"drain": "the fleet has no node", "nodes": [(A, "h", False, b"", "")]}, monkeypatch
    )
    with pytest.raises(PyTritonBadParameterError, match="has no node"):
        client.drain(A)


def test_an_invalid_status_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    well = msgspec.msgpack.encode(status())
    reported = [(A, "h", False, b"\xc1", ""), (B, "h", True, well, "")]
    first, second = client_of({"nodes": reported}, monkeypatch).nodes()
    assert (first.status, "status is invalid" in first.error) == (None, True)
    assert second == RayNode(B, "h", True, status())
