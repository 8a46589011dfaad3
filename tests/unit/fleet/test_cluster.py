"""The controller's use of Ray: nodes that hang, disappear or report nonsense, and holders released by others in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Optional
from unittest.mock import Mock

import msgspec
import pytest
from fakes.fake_dispatcher import status

from pytriton._protocol import messages
from pytriton.fleet.canary import CanaryCounters
from pytriton.fleet.on_ray import NAMESPACE
from pytriton.fleet.on_ray.cluster import Cluster

A, B, C = "aaaa", "bbbb", "cccc"


class Reference:
    """An answer that arrives sooner or later."""

    def __init__(self, node: str, value: Any) -> None:
        self.node = node
        self.value = value


class ActorDiedError(RuntimeError):
    """Ray's error for an actor that it does not restart."""


class RayTaskError(RuntimeError):
    """Ray's error for a method that failed."""

    cause = "its port is taken"


class FakeActor:
    """An actor with a scripted answer to every method."""

    def __init__(self, name: str, answer: Callable[..., Any]) -> None:
        self.name = name
        self._node = name.rpartition("-")[2]
        self._answer = answer

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(
            remote=lambda *given: Reference(self._node, self._answer(method, *given))
        )


class FakeRay:
    """Nodes, some of which hang, with an actor each."""

    exceptions = SimpleNamespace(
        RayTaskError=RayTaskError, ActorDiedError=ActorDiedError, RayError=RuntimeError
    )

    def __init__(self, *nodes: str) -> None:
        self.util = Mock()
        self.util.list_named_actors = lambda all_namespaces: [
            {"name": name, "namespace": NAMESPACE} for name in self.named
        ]
        self.named: list[str] = []
        self.killed: list[str] = []
        self.nodes_alive = list(nodes)
        #: What each node's actor reports, or raises.
        self.reported: dict[str, Any] = {}
        self.made: list[str] = []
        self.flags: list[Any] = []
        self.hung: set[str] = set()
        self.waits: list[float] = []
        self.while_answering: Optional[Callable[[], object]] = None
        self.asked: list[tuple[str, ...]] = []
        self.counts = 0

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node, "Alive": node in self.nodes_alive, "NodeManagerAddress": "10.0.0.1"}
            for node in (A, B, C)
        ]

    def remote(self, _: type) -> Any:
        def options(name: str, **_: Any) -> Any:
            def make(*_: Any) -> FakeActor:
                actor = FakeActor(name, self._answer(name.rpartition("-")[2]))
                self.made.append(actor._node)
                return actor

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def _answer(self, node: str) -> Callable[..., Any]:
        def answer(method: str, *given: Any) -> Any:
            self.asked.append((node, method, *map(str, given)))
            if method == "report_state":
                self.flags.append(given[1])
                return self.reported.get(node)
            self.counts += 1
            return (A, []) if method == "where" else CanaryCounters(self.counts)

        return answer

    def wait(
        self, references: Sequence[Reference], num_returns: int, timeout: float
    ) -> tuple[list[Reference], list[Reference]]:
        self.waits.append(timeout)
        done = [one for one in references if one.node not in self.hung]
        return done, [one for one in references if one not in done]

    def get(self, reference: Reference) -> Any:
        if self.while_answering is not None:
            self.while_answering()
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def get_actor(self, name: str, _: str) -> Any:
        if name not in self.named:
            raise ValueError(name)
        return FakeActor(name, self._answer(name))

    def kill(self, actor: Any, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor.name)
        if actor.name in self.named:
            self.named.remove(actor.name)


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay(A, B)


@pytest.fixture
def cluster(ray: FakeRay) -> Cluster:
    cluster = Cluster("f", ray)
    cluster.poll({}, [])
    return cluster


def test_a_hanging_node_is_awaited_once_for_all_polls(ray: FakeRay, cluster: Cluster) -> None:
    ray.hung = {B}
    found = cluster.canary_counters(["m", "n", "o"])
    assert {model: list(reported) for model, reported in found.items()} == {
        "m": [A],
        "n": [A],
        "o": [A],
    }
    assert len(ray.waits) == 1
    assert ray.waits[0] < 5
    cluster.canary_counters(["m", "n"])
    assert ray.asked.count((B, "canary_counters", "m")) == 1  # it has not answered the first yet
    assert ray.asked.count((A, "canary_counters", "m")) == 2
    cluster.canary_counters(["m"])
    ray.hung = set()
    before = ray.counts
    found = cluster.canary_counters(["m", "n"])
    assert found["m"][B].requests < before  # that is the late one
    assert found["n"][B].requests > before  # its report about an earlier analysis does not count
    assert cluster.canary_counters(["m"])["m"][B].requests > before


def test_a_removed_node_gets_no_requests(ray: FakeRay, cluster: Cluster) -> None:
    ray.hung = {B}
    cluster.canary_counters(["m"])
    ray.nodes_alive, ray.hung = [A], set()
    cluster.poll({}, [])
    assert list(cluster.canary_counters(["m"])["m"]) == [A]


def test_a_node_may_disappear_during_a_request_to_all(ray: FakeRay, cluster: Cluster) -> None:
    asked: list[str] = []

    class Going(FakeActor):
        def __getattr__(self, method: str) -> Any:
            asked.append(self._node)
            cluster._actors.pop(B, None)
            return super().__getattr__(method)

    for node in (A, B):
        cluster._actors[node] = Going(node, lambda *_: [])
    assert cluster.logs(None, 1) == {A: [], B: []}
    assert asked == [A, B]


def test_a_holder_may_be_released_during_a_request(ray: FakeRay, cluster: Cluster) -> None:
    for name in ("m/1", "m/2"):
        cluster.hold(name, {}, [])
    ray.while_answering = lambda: cluster.release("m/1")
    cluster.poll({}, ["m/1", "m/2"])
    assert cluster.places == {"m/2": (A, [])}


@pytest.mark.parametrize("how", ["it has ended", "there is none"])
def test_a_killed_holder_is_gone(
    ray: FakeRay, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """But not immediately: Ray may be temporarily wrong, and resources must not be held twice."""

    def ended() -> None:
        raise ActorDiedError

    if how == "it has ended":
        cluster.hold("m/1", {}, [])
        ray.while_answering = ended
    gone = []
    for _ in range(4):
        cluster.poll({}, ["m/1"])
        gone.append(cluster.gone)
    assert gone == [set(), set(), {"m/1"}, {"m/1"}]
    ray.while_answering = None
    cluster.hold("m/1", {}, [])
    cluster.poll({}, ["m/1"])
    assert (cluster.gone, cluster.places) == (set(), {"m/1": (A, [])})


def test_a_poll_queries_a_limited_number_of_holders(ray: FakeRay, cluster: Cluster) -> None:
    """A fleet may have ten thousand of them. All their answers are awaited with one call to Ray."""
    names = [f"m/{number}" for number in range(600)]
    for name in names:
        cluster.hold(name, {}, [])
    cluster.poll({}, names)
    assert len(cluster.places) == 600
    polled = []
    for _ in range(3):
        ray.asked.clear()
        ray.waits.clear()
        cluster.poll({}, names)
        polled.append(sum(one[1] == "where" for one in ray.asked))
        assert len(ray.waits) == 1
    assert max(polled) <= 250
    assert sum(polled) == 600


def test_only_unknown_holders_are_released(ray: FakeRay, cluster: Cluster) -> None:
    ray.named = [
        "fleet-f", "fleet-f/node-aaaa", "fleet-f/environment-aaaa-1-2", "fleet-f/m/1", "fleet-f/node-m/1",
        "fleet-f/node-m/2", "fleet-of-another/m/1",
    ]  # fmt: skip
    cluster.release_all_but(["m/1", "node-m/1"])
    assert ray.killed == ["fleet-f/node-m/2"]


def test_shutdown_kills_all_actors_of_the_fleet(ray: FakeRay, cluster: Cluster) -> None:
    """Including those of nodes that left the fleet."""
    ray.named = [
        "fleet-f/node-cccc",
        "fleet-f/m/1",
        "fleet-f/environment-aaaa-1-2",
        "fleet-other/m/1",
    ]
    cluster.stop()
    assert ("fleet-f/node-cccc", "stop") in ray.asked
    assert ray.named == ["fleet-other/m/1"]


def _look(*names: str) -> tuple[bytes, str, bytes]:
    now = status(*(messages.ModelInfo(name, 1, "ready", []) for name in names))
    served = {name: ("digest", 1) for name in names}
    return msgspec.msgpack.encode(now), "key", msgspec.msgpack.encode((now, served))


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
    ray = FakeRay(A, B)
    cluster = Cluster("f", ray)
    ray.reported = {A: reported, B: _look("m")}
    cluster.poll({}, [])
    found = cluster.poll_daemons()
    assert list(found) == [B]
    assert "invalid answer" in cluster.fault(A)


def test_the_reason_for_silence_is_reported_until_a_daemon_answers() -> None:
    ray = FakeRay(A)
    cluster = Cluster("f", ray)
    ray.reported = {A: RayTaskError()}
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
    ray = FakeRay(A, B)
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
    ray = FakeRay(A)
    cluster = Cluster("f", ray)
    ray.reported = {A: ActorDiedError()}
    cluster.poll({}, [])
    assert cluster.poll_daemons() == {}
    ray.reported = {A: _look()}
    cluster.poll({}, [])
    assert list(cluster.poll_daemons()) == [A]
    assert ray.made == [A, A]


def test_a_dismissed_node_leaves_the_fleet_once_its_daemon_has_exited() -> None:
    ray = FakeRay(A, B)
    cluster = Cluster("f", ray)
    cluster.poll({}, [])
    cluster.poll({"nodes": 1}, [])
    assert (list(cluster.alive), cluster.surplus) == ([A, B], [B])
    cluster.dismiss(B)
    cluster.poll({"nodes": 1}, [])
    assert (list(cluster.alive), cluster.surplus, ray.killed) == ([A], [], ["fleet-f/node-bbbb"])


def test_a_new_controller_knows_the_previous_ones_nodes() -> None:
    ray = FakeRay(A, B, C)
    ray.named = ["fleet-f/node-cccc", "fleet-f/node-aaaa", "fleet-f/m/1", "fleet-fg/node-bbbb"]
    cluster = Cluster("f", ray)
    cluster.poll({"nodes": 1}, [])
    assert (list(cluster.alive), cluster.surplus) == ([A, C], [C])
