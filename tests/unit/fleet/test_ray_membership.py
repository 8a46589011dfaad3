"""Nodes joining and leaving a fleet on Ray: fewer than before, unknown ones, and ones with invalid reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional
from unittest.mock import Mock

import msgspec
import pytest
from fakes.fake_dispatcher import status
from fakes.fleet.ray import Fleet

from pytriton.exceptions import FleetError, PyTritonBadParameterError, PyTritonDaemonError
from pytriton.fleet.on_ray import check_name
from pytriton.fleet.on_ray.client import RayFleetClient, RayNode
from pytriton.fleet.on_ray.cluster import Cluster, Members, members
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


class Actors:
    """Ray with one actor per node, which returns its report from `reported` or dies."""

    def __init__(self, *nodes: str) -> None:
        self.reported: dict[str, Any] = {}
        self.made: list[str] = []
        self.killed: list[str] = []
        self.flags: list[Any] = []
        self.named: list[str] = []
        self.hung: set[str] = set()
        self.exceptions = SimpleNamespace(
            RayTaskError=_TaskError, ActorDiedError=_DiedError, RayError=_RayError
        )
        self.util = Mock()
        self.util.list_named_actors = lambda **_: [
            {"name": one, "namespace": "pytriton"} for one in self.named
        ]
        self._nodes = nodes

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": one, "Alive": True, "NodeManagerAddress": "h"} for one in self._nodes]

    def remote(self, _: type) -> Any:
        def make(name: str, **_: Any) -> Any:
            node = name.rpartition("-")[2]
            return SimpleNamespace(remote=lambda *_: self._made(node))

        return SimpleNamespace(options=make)

    def _made(self, node: str) -> Any:
        self.made.append(node)

        def report_state(known: str, flags: Any) -> str:
            self.flags.append(flags)
            return node

        stop = SimpleNamespace(remote=lambda: f"stop {node}")
        return SimpleNamespace(
            report_state=SimpleNamespace(remote=report_state), stop=stop, node=node
        )

    def wait(self, references: list[str], **_: Any) -> tuple[list[str], list[str]]:
        done = [one for one in references if one not in self.hung]
        return done, [one for one in references if one in self.hung]

    def get(self, reference: str) -> Any:
        reported = self.reported.get(reference)
        if isinstance(reported, Exception):
            raise reported
        return reported

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed.append(actor.node)


class _RayError(Exception):
    pass


class _DiedError(_RayError):
    pass


class _TaskError(_RayError):
    cause = "its port is taken"


def _look(*names: str) -> tuple[bytes, str, bytes]:
    now = status(*(messages_info(name) for name in names))
    served = {name: ("digest", 1) for name in names}
    return msgspec.msgpack.encode(now), "key", msgspec.msgpack.encode((now, served))


def messages_info(name: str) -> Any:
    from pytriton._protocol import messages

    return messages.ModelInfo(name, 1, "ready", [])


@pytest.mark.parametrize(
    "reported",
    [
        None,
        "three words are none",
        (b"", "key", None),
        (b"", "key", b"\xc1"),
        (b"", "key", 5),
        (b"", "key", msgspec.msgpack.encode(({}, {"m": 1}))),
        (7, *_look("m")[1:]),
    ],
)
def test_a_node_with_invalid_reports_is_left_out(reported: Any) -> None:
    ray = Actors(A, B)
    cluster = Cluster("f", ray)
    ray.reported = {A: reported, B: _look("m")}
    cluster.poll({}, [])
    found = cluster.poll_daemons()
    assert list(found) == [B]
    assert "invalid answer" in cluster.fault(A)


def test_the_reason_for_silence_is_reported_until_a_daemon_answers() -> None:
    ray = Actors(A)
    cluster = Cluster("f", ray)
    ray.reported = {A: _TaskError()}
    cluster.poll({"flags": ["--x"]}, [])
    assert cluster.poll_daemons() == {}
    assert cluster.fault(A) == "its daemon does not answer (yet): its port is taken"
    assert ray.flags == [["--x"]]
    ray.reported = {A: _look()}
    assert list(cluster.poll_daemons()) == [A]
    assert cluster.fault(A) == "its daemon does not answer (yet)"
    assert ray.made == [A]


def test_the_last_report_of_a_hanging_node_expires() -> None:
    """Its process or machine is stopped: Ray takes it for alive, and nobody else must wait for it."""
    ray = Actors(A, B)
    cluster = Cluster("f", ray)
    ray.reported = {A: _look("m"), B: _look("m")}
    cluster.poll({}, [])
    assert list(cluster.poll_daemons()) == [A, B]
    ray.hung = {A}
    for _ in range(60):
        assert list(cluster.poll_daemons()) == [A, B]  # it may be restarting its daemon
    assert list(cluster.poll_daemons()) == [B]
    assert "hangs" in cluster.fault(A)
    ray.hung = set()
    assert set(cluster.poll_daemons()) == {A, B}
    assert cluster.fault(A) == "its daemon does not answer (yet)"


def test_an_actor_that_ray_does_not_restart_is_recreated() -> None:
    ray = Actors(A)
    cluster = Cluster("f", ray)
    ray.reported = {A: _DiedError()}
    cluster.poll({}, [])
    assert cluster.poll_daemons() == {}
    ray.reported = {A: _look()}
    cluster.poll({}, [])
    assert list(cluster.poll_daemons()) == [A]
    assert ray.made == [A, A]


def test_a_dismissed_node_leaves_the_fleet_once_its_daemon_has_exited() -> None:
    ray = Actors(A, B)
    cluster = Cluster("f", ray)
    cluster.poll({}, [])
    cluster.poll({"nodes": 1}, [])
    assert (list(cluster.alive), cluster.surplus) == ([A, B], [B])
    cluster.dismiss(B)
    cluster.poll({"nodes": 1}, [])
    assert (list(cluster.alive), cluster.surplus, ray.killed) == ([A], [], [B])


def test_a_new_controller_knows_the_previous_ones_nodes() -> None:
    ray = Actors(A, B, C)
    ray.named = ["fleet-f/node-cccc", "fleet-f/node-aaaa", "fleet-f/m/1", "fleet-fg/node-bbbb"]
    cluster = Cluster("f", ray)
    cluster.poll({"nodes": 1}, [])
    assert (list(cluster.alive), cluster.surplus) == ([A, C], [C])


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


def test_a_node_lost_while_draining_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = client_of(
        {"drain": "the fleet has no node", "nodes": [(A, "h", False, b"", "")]}, monkeypatch
    )
    with pytest.raises(PyTritonBadParameterError, match="has no node"):
        client.drain(A)


def test_an_invalid_status_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    well = msgspec.msgpack.encode(status())
    reported = [(A, "h", False, b"\xc1", ""), (B, "h", True, well, "")]
    first, second = client_of({"nodes": reported}, monkeypatch).nodes()
    assert (first.status, "status is invalid" in first.error) == (None, True)
    assert second == RayNode(B, "h", True, status())
