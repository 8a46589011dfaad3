"""The controller of a fleet on Ray, step by step, with a Ray that places immediately and daemons that obey immediately."""

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


class RayError(Exception):
    """Stands for `ray.exceptions.RayError`."""


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


def test_a_dead_nodes_instances_are_placed_elsewhere(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps()
    fleet.cluster.die(B)
    fleet.steps()
    assert fleet.cluster.counts() == {A: 4}
    assert fleet.controller.progress("m") == (True, 4, 4, "")


def test_a_lost_reservation_is_made_again(fleet: Fleet) -> None:
    """A holder was killed, and Ray does not restart it. The instance keeps serving until there is another place."""
    fleet.register()
    fleet.steps()
    fleet.cluster.gone = {"m/2"}
    fleet.cluster.places.pop("m/2")
    fleet.steps()
    assert fleet.cluster.released == {"m/2"}
    assert sorted(fleet.cluster.places) == ["m/1", "m/3", "m/4", "m/5"]
    assert fleet.controller.progress("m") == (True, 4, 4, "")
    assert fleet.stored_state().models["m"].holders == ["m/1", "m/3", "m/4", "m/5"]


def test_balancers_leave_a_drained_node_before_models_do(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)  # its balancers had time to poll
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


def test_a_drained_node_that_disappeared_is_forgotten(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.controller.drain(B)
    fleet.cluster.die(B)
    fleet.steps()
    assert fleet.stored_state().draining == []
    assert fleet.cluster.counts() == {A: 4}


def test_balancers_keep_a_model_whose_only_daemon_restarts(fleet: Fleet) -> None:
    """Otherwise clients would get "unknown model", which is right only for unregistered models."""
    fleet.register(instances=1)
    fleet.register(instances=1, name="n")
    fleet.steps(30)
    generation, seen = fleet.seen()
    assert seen == {A: ["m"], B: ["n"]}
    fleet.cluster.refuses = {A}
    fleet.cluster.served[A].clear()
    fleet.steps()
    assert fleet.cluster.counts() == {}
    assert fleet.seen()[1] == {A: ["m absent"], B: ["n", "m absent"]}
    fleet.controller.unregister("m")
    fleet.steps()
    later, seen = fleet.seen(done=generation)
    assert (later > generation, seen) == (True, {A: [], B: ["n"]})


def test_balancers_keep_a_model_whose_only_node_dies(fleet: Fleet) -> None:
    fleet.register(instances=1)
    fleet.register(instances=1, name="n")
    fleet.steps(30)
    fleet.cluster.refuses = {B}
    fleet.cluster.die(A)
    fleet.steps()
    assert fleet.seen()[1] == {B: ["n", "m absent"]}
    fleet.controller.unregister("m")
    fleet.steps()
    assert fleet.seen()[1] == {B: ["n"]}


def test_an_up_to_date_balancer_gets_no_update(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    generation, seen = fleet.seen()
    assert seen
    assert fleet.controller.view("b", generation) == (generation, b"")
    fleet.cluster.die(B)
    fleet.steps()
    later, seen = fleet.seen(done=generation)
    assert (later > generation, seen) == (True, {A: ["m"]})


def test_a_removed_balancer_is_not_awaited(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.seen(done=fleet.seen()[0])
    fleet.controller.drain(B)
    fleet.steps(6)
    assert B in fleet.cluster.counts()
    fleet.steps(30)
    assert fleet.cluster.counts() == {A: 4}


def test_a_balancer_applying_an_update_is_awaited(fleet: Fleet) -> None:
    """HAProxy needs 18 s to load a configuration for 1,000 nodes, and uses the previous one until then."""
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


def test_without_resources_elsewhere_a_drained_node_keeps_serving(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    fleet.cluster.room = 5
    fleet.controller.drain(B)
    fleet.steps(40)
    assert fleet.cluster.counts() == {A: 3, B: 2}
    fleet.cluster.room = 6
    fleet.steps(40)
    assert fleet.cluster.counts() == {A: 4}


def test_an_unservable_model_does_not_block_balancers_forever(fleet: Fleet) -> None:
    fleet.cluster.refuses = {A, B}
    fleet.register()
    fleet.steps(4)
    assert fleet.seen()[0] == -1
    fleet.steps(130)
    assert fleet.seen()[1] == {A: [], B: []}


def test_a_new_balancer_leaves_haproxy_alone_until_its_first_update() -> None:
    answers = [(-1, b""), (7, msgspec.msgpack.encode([NodeStatus("tcp://h/a")])), (-1, b"")]
    view = BalancerView(cast(RayFleetClient, Mock(_ask=lambda *_: answers.pop(0))), "b")
    with pytest.raises(PyTritonDaemonError, match="HAProxy keeps its current configuration"):
        view.fetch()
    assert [one.node for one in view.fetch()] == ["tcp://h/a"]
    assert [one.node for one in view.fetch()] == ["tcp://h/a"]  # the controller was started again


def test_an_unresponsive_ray_head_is_reported_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself retries for a minute, and then kills the process."""
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


@pytest.mark.parametrize(
    ("mode", "raised", "advice"),
    [
        # Ray does not say that it was the token.
        ("token", ConnectionError, "it may have another token than this process"),
        ("", ConnectionError, "If it requires a token, set RAY_AUTH_MODE=token for this process"),
        ("token", RayError, "no authentication token was found"),
    ],
)
def test_a_wrong_or_missing_token_is_reported(
    monkeypatch: pytest.MonkeyPatch, mode: str, raised: type[Exception], advice: str
) -> None:
    def init(**_: Any) -> None:
        raise raised(
            "no authentication token was found" if raised is RayError else "Failed to connect"
        )

    ray = Mock(is_initialized=lambda: False, init=init, exceptions=Mock(RayError=RayError))
    monkeypatch.setattr("pytriton.fleet.on_ray.import_ray", lambda *_: ray)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(PyTritonDaemonError, match=advice):
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


def test_a_refusing_node_does_not_block_the_others(fleet: Fleet) -> None:
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


def test_a_node_keeps_threads_for_its_reports(fleet: Fleet) -> None:
    """Its actor has sixteen threads, and loading a model occupies one for its whole duration."""
    fleet.cluster.slow = {A, B}
    for index in range(20):
        fleet.register(name=f"m{index}", instances=2)
    fleet.steps()
    begun = [node for _, node in fleet.cluster.asked]
    assert (begun.count(A), begun.count(B)) == (12, 12)
    fleet.cluster.slow = set()
    fleet.steps()
    assert all(fleet.controller.progress(f"m{index}")[0] for index in range(20))


def test_unregistering_removes_it_from_all_nodes(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    assert fleet.controller.unregister("m")
    assert not fleet.controller.unregister("m")
    assert fleet.controller.progress("m")[0] is False
    fleet.steps(4)
    assert fleet.cluster.counts() == {}
    assert fleet.controller.progress("m")[0] is True
    assert fleet.cluster.places == {}


def test_a_briefly_silent_daemon_stays_in_the_view(fleet: Fleet) -> None:
    fleet.register()
    fleet.steps(30)
    generation, seen = fleet.seen()
    fleet.cluster.silent = {B}
    fleet.steps()
    assert fleet.seen() == (generation, seen)


def test_a_holder_placed_late_on_a_drained_node_is_moved(fleet: Fleet) -> None:
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


def test_holders_stay_on_a_fleets_nodes_in_a_larger_cluster(fleet: Fleet) -> None:
    fleet.controller._state.settings = {"nodes": 2}
    fleet.cluster.others = [C]
    fleet.register()
    fleet.steps()
    assert fleet.cluster.counts() == {A: 2, B: 2}


def test_holders_move_when_the_fleets_nodes_change(fleet: Fleet) -> None:
    fleet.controller._state.settings = {"nodes": 2}
    there, fleet.cluster.alive = fleet.cluster.alive, {}
    fleet.cluster.others = [C]
    fleet.register()  # before the first poll, the fleet's nodes are unknown
    fleet.cluster.alive = there
    fleet.steps()
    assert fleet.cluster.counts() == {A: 2, B: 2}
    kept = dict(fleet.cluster.places)
    fleet.steps()
    assert fleet.cluster.places == kept


def test_a_refused_scaling_is_reported_and_retried_later(fleet: Fleet) -> None:
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
def test_the_users_and_the_fleets_node_selections_both_apply(
    wish: str, but: list[str], only: list[str] | None, expected: str
) -> None:
    assert nodes_expression(wish, but, only) == expected


def test_the_users_labels_survive_a_drain() -> None:
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


def test_a_drain_without_a_node_drains_the_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks of pods or machines need not know their node's id."""
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
