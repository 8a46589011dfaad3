"""The controller of a fleet on Ray, step by step, with a Ray that places at once and daemons that obey at once."""

from __future__ import annotations

import socket
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from fakes.fleet.ray import Fleet

from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet import NodeStatus
from pytriton.fleet.on_ray import connected
from pytriton.fleet.on_ray.client import BalancerView, RayFleetClient, RayNode
from pytriton.fleet.on_ray.cluster import Cluster, nodes_expression

A, B, C = "aaaa", "bbbb", "cccc"


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(A, B)


def test_instances_are_served_where_ray_places_them(fleet: Fleet) -> None:
    assert fleet.register() == ""
    assert fleet.controller.progress("m")[:3] == (False, 0, 4)
    fleet.steps()
    assert fleet.cluster.counts() == {A: 2, B: 2}
    assert fleet.controller.progress("m") == (True, 4, 4, "")
    assert "already registered" in fleet.register()
    fleet.controller.scale("m", 6)
    assert fleet.controller.progress("m")[0] is False
    fleet.steps()
    assert fleet.cluster.counts() == {A: 3, B: 3}


def test_a_node_that_dies_has_its_instances_placed_elsewhere(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps()
    fleet.cluster.die(B)
    fleet.steps()
    assert fleet.cluster.counts() == {A: 4}
    assert fleet.controller.progress("m") == (True, 4, 4, "")


def test_a_lost_resource_reservation_is_made_again(fleet: Fleet) -> None:
    """Somebody has ended a holder: Ray does not start it again. The instance serves on until another place is there."""
    fleet.register()
    fleet.steps()
    fleet.cluster.gone = {"m/2"}
    fleet.cluster.places.pop("m/2")
    fleet.steps()
    assert fleet.cluster.released == {"m/2"}
    assert sorted(fleet.cluster.places) == ["m/1", "m/3", "m/4", "m/5"]
    assert fleet.controller.progress("m") == (True, 4, 4, "")
    assert fleet.stored_state().models["m"].holders == ["m/1", "m/3", "m/4", "m/5"]


def test_a_drained_node_is_left_by_balancers_before_it_is_left_by_models(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)  # its balancers had the time to ask
    generation, seen = fleet.seen()
    assert seen == {A: ["m"], B: ["m"]}
    fleet.controller.drain(B)
    fleet.steps()
    assert fleet.cluster.counts() == {A: 4, B: 2}  # elsewhere first
    later, seen = fleet.seen(done=generation)
    assert later > generation
    assert seen == {A: ["m"]}  # nothing at all goes to the other one
    fleet.steps()
    assert fleet.cluster.counts() == {A: 4, B: 2}
    assert not fleet.controller.drained(B)
    fleet.seen(done=later)
    fleet.steps()
    assert fleet.cluster.counts() == {A: 4}
    assert fleet.controller.drained(B)
    assert len(fleet.cluster.places) == 4  # what it had held is free


def test_a_drained_node_that_has_gone_is_forgotten(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.controller.drain(B)
    fleet.cluster.die(B)
    fleet.steps()
    assert fleet.stored_state().draining == []
    assert fleet.cluster.counts() == {A: 4}


def test_a_model_whose_only_daemon_was_started_again_stays_where_it_was_for_balancers(
    fleet: Fleet,
) -> None:
    """Else clients hear that there is no such model. Of one that is not registered any more, they are to hear that."""
    fleet.register(instances=1)
    fleet.register(instances=1, name="n")
    fleet.steps(30)
    generation, seen = fleet.seen()
    assert seen == {A: ["m"], B: ["n"]}
    fleet.cluster.refuses = {A}
    fleet.cluster.served[A].clear()
    fleet.steps()
    assert fleet.cluster.counts() == {}
    assert fleet.seen()[1] == seen
    fleet.controller.unregister("m")
    fleet.steps()
    later, seen = fleet.seen(done=generation)
    assert (later > generation, seen) == (True, {A: [], B: ["n"]})


def test_an_up_to_date_balancer_gets_no_update(
    fleet: Fleet,
) -> None:
    fleet.register()
    fleet.steps(30)
    generation, seen = fleet.seen()
    assert seen
    assert fleet.controller.view("b", generation) == (generation, b"")
    fleet.cluster.die(B)
    fleet.steps()
    later, seen = fleet.seen(done=generation)
    assert (later > generation, seen) == (True, {A: ["m"]})


def test_a_balancer_that_has_gone_is_not_waited_for(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.seen(done=fleet.seen()[0])
    fleet.controller.drain(B)
    fleet.steps(6)
    assert B in fleet.cluster.counts()
    fleet.steps(30)
    assert fleet.cluster.counts() == {A: 4}


def test_a_balancer_applying_an_update_is_awaited(fleet: Fleet) -> None:
    """HAProxy takes 18 s to read what 1,000 nodes need, and the former view holds until it has."""
    fleet.register()
    fleet.steps(30)
    generation, _ = fleet.seen(done=fleet.seen()[0])
    fleet.controller.drain(B)
    fleet.steps(6)
    later, _ = fleet.seen(done=generation)
    fleet.steps(80)
    assert B in fleet.cluster.counts()
    fleet.seen(done=later)
    fleet.steps(6)
    assert fleet.cluster.counts() == {A: 4}


def test_without_room_elsewhere_a_drained_node_serves_on(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.cluster.room = 5
    fleet.controller.drain(B)
    fleet.steps(40)
    assert fleet.cluster.counts() == {A: 3, B: 2}
    fleet.cluster.room = 6
    fleet.steps(40)
    assert fleet.cluster.counts() == {A: 4}


def test_a_model_that_nobody_can_serve_does_not_keep_balancers_waiting_for_ever(
    fleet: Fleet,
) -> None:
    fleet.cluster.refuses = {A, B}
    fleet.register()
    fleet.steps(4)
    assert fleet.seen()[0] == -1
    fleet.steps(130)
    assert fleet.seen()[1] == {A: [], B: []}


def test_a_new_balancer_leaves_haproxy_alone_until_its_first_update() -> None:
    answers = [(-1, b""), (7, msgspec.msgpack.encode([NodeStatus("tcp://h/a")])), (-1, b"")]
    view = BalancerView(cast(RayFleetClient, Mock(_ask=lambda *_: answers.pop(0))), "b")
    with pytest.raises(PyTritonDaemonError, match="HAProxy keeps its configuration"):
        view.fetch()
    assert [one.node for one in view.fetch()] == ["tcp://h/a"]
    assert [one.node for one in view.fetch()] == ["tcp://h/a"]  # the controller was started again


def test_an_unresponsive_ray_head_is_reported_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself tries for a minute, and then ends the process."""
    monkeypatch.setattr(
        "pytriton.fleet.on_ray.import_ray", lambda: Mock(is_initialized=lambda: False)
    )
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{nobody.getsockname()[1]}"
        for address in (at, f"ray://{at}"):
            with pytest.raises(PyTritonDaemonError, match=f"Nothing answers at {address}"):
                connected(address)
        monkeypatch.setenv("RAY_ADDRESS", at)
        with pytest.raises(PyTritonDaemonError, match=f"Nothing answers at {at}"):
            connected("auto")


def test_a_refusal_of_a_daemon_is_reported_and_retried(fleet: Fleet) -> None:
    fleet.cluster.refuses = {B}
    fleet.register()
    fleet.steps()
    assert fleet.controller.progress("m")[3] == "bbbb: no room"
    asked = len(fleet.cluster.asked)
    fleet.steps(10)
    assert len(fleet.cluster.asked) == asked
    fleet.cluster.refuses = set()
    fleet.steps(80)
    assert fleet.controller.progress("m") == (True, 4, 4, "")


def test_a_node_that_refuses_does_not_hold_up_the_others(fleet: Fleet) -> None:
    fleet.cluster.refuses = {A}
    fleet.register()
    fleet.steps()
    assert fleet.cluster.counts() == {B: 2}
    moved = next(name for name, (node, _) in fleet.cluster.places.items() if node == A)
    fleet.cluster.places[moved] = B, []  # Ray has moved it to where it works
    fleet.steps(2)
    assert fleet.cluster.counts() == {B: 3}
    assert [node for _, node in fleet.cluster.asked].count(A) == 1
    assert fleet.controller.progress("m")[3] == "aaaa: no room"


def test_a_node_has_threads_left_that_tell_what_it_serves(fleet: Fleet) -> None:
    """Its actor has sixteen, and to load a model takes one of them for as long."""
    fleet.cluster.slow = {A, B}
    for index in range(20):
        fleet.register(name=f"m{index}", instances=2)
    fleet.steps()
    begun = [node for _, node in fleet.cluster.asked]
    assert (begun.count(A), begun.count(B)) == (12, 12)
    fleet.cluster.slow = set()
    fleet.steps()
    assert all(fleet.controller.progress(f"m{index}")[0] for index in range(20))


def test_unregistering_takes_it_from_all_nodes(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    assert fleet.controller.unregister("m")
    assert not fleet.controller.unregister("m")
    assert fleet.controller.progress("m")[0] is False
    fleet.steps(4)
    assert fleet.cluster.counts() == {}
    assert fleet.controller.progress("m")[0] is True
    assert fleet.cluster.places == {}


def test_a_daemon_that_is_silent_for_a_moment_stays_in_the_view(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    generation, seen = fleet.seen()
    fleet.cluster.silent = {B}
    fleet.steps()
    assert fleet.seen() == (generation, seen)


def test_a_holder_that_ray_puts_on_a_drained_node_later_is_moved(fleet: Fleet) -> None:
    fleet.cluster.room = 3
    fleet.register()
    fleet.steps(30)
    (pending,) = set(fleet.cluster.but) - set(fleet.cluster.places)
    fleet.controller.drain(B)
    fleet.cluster.room = 99
    fleet.cluster.places[pending] = B, []  # it was held before the drain, so it may be there
    fleet.steps(40)
    assert fleet.cluster.counts() == {A: 4}
    assert fleet.controller.drained(B)


def test_holders_stay_on_the_nodes_of_a_fleet_that_has_not_the_whole_cluster(fleet: Fleet) -> None:
    fleet.controller._state.settings = {"nodes": 2}
    fleet.cluster.others = [C]
    fleet.register()
    fleet.steps()
    assert fleet.cluster.counts() == {A: 2, B: 2}


def test_holders_follow_when_other_nodes_become_those_of_the_fleet(fleet: Fleet) -> None:
    fleet.controller._state.settings = {"nodes": 2}
    there, fleet.cluster.alive = fleet.cluster.alive, {}
    fleet.cluster.others = [C]
    fleet.register()  # before the first look: where the fleet's nodes are is not known
    fleet.cluster.alive = there
    fleet.steps()
    assert fleet.cluster.counts() == {A: 2, B: 2}
    kept = dict(fleet.cluster.places)
    fleet.steps()
    assert fleet.cluster.places == kept


def test_a_scaling_that_a_daemon_refuses_is_reported_and_tried_again_later(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps()
    fleet.cluster.refuses = {B}
    fleet.controller.scale("m", 6)
    fleet.steps()
    assert fleet.controller.progress("m")[3] == "bbbb: no room"
    assert fleet.cluster.asked.count(("scale", B)) == 1
    fleet.cluster.refuses = set()
    fleet.steps(80)
    assert fleet.controller.progress("m") == (True, 6, 6, "")


@pytest.mark.parametrize(
    ("wish", "but", "only", "expected"),
    [
        ("", [], None, ""),
        ("", ["a"], None, "!in(a)"),
        ("", ["a"], ["a", "b"], "in(b)"),
        ("in(a,b)", ["a"], None, "in(b)"),
        ("a", ["a"], None, "in(none)"),
        ("!a", ["b"], None, "!in(b,a)"),
        ("!in(a, b)", [], ["b", "c"], "in(c)"),
        ("a", [], ["b"], "in(none)"),
    ],
)
def test_the_users_choice_of_nodes_and_the_fleets_hold_both(
    wish: str, but: list[str], only: list[str] | None, expected: str
) -> None:
    assert nodes_expression(wish, but, only) == expected


def test_the_users_labels_stay_when_a_node_has_been_drained() -> None:
    held: dict[str, Any] = {}

    class Actor:
        def options(self, **options: Any) -> Actor:
            held.update(options)
            return self

        def remote(self) -> None:
            return None

    cluster = Cluster.__new__(Cluster)
    cluster._ray, cluster._fleet, cluster._holders = Mock(remote=lambda _: Actor()), "f", {}
    mine = {"label_selector": {"disk": "ssd"}, "num_cpus": 2}
    cluster.hold("m/1", mine, [A])
    assert held["label_selector"] == {"disk": "ssd", "ray.io/node-id": f"!in({A})"}
    assert mine["label_selector"] == {"disk": "ssd"}


def test_a_drain_without_a_node_drains_the_one_it_is_called_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a hook of a pod, or of a machine that is taken away, need not know its node's id."""
    asked: list[tuple[str, ...]] = []

    def ask(method: str, *given: str) -> Any:
        asked.append((method, *given))
        return method == "drained"

    client = RayFleetClient.__new__(RayFleetClient)
    client._ray = Mock()
    client._ray.get_runtime_context().get_node_id.return_value = B
    monkeypatch.setattr(client, "_ask", ask)
    nodes = [RayNode(A, "10.0.0.1", False), RayNode(B, "10.0.0.2", False)]
    monkeypatch.setattr(client, "nodes", lambda: nodes)
    assert client.drain() == B
    assert asked == [("drain", B), ("drained", B)]
    assert client.drain("aa") == A
