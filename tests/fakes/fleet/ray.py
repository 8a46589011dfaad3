"""A fleet controller on a virtual clock, with a Ray that places immediately and daemons that obey immediately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from fakes.fake_dispatcher import status
from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.fleet import NodeStatus
from pytriton.fleet.canary import Canary, CanaryCounters
from pytriton.fleet.on_ray.cluster import Cluster, DaemonState, members
from pytriton.fleet.on_ray.controller import Controller
from pytriton.fleet.on_ray.controller_state import ControllerState, ControllerStore
from pytriton.fleet.on_ray.reconciler import ModelOnNode
from pytriton.fleet.on_ray.runtime_env import digest_with
from pytriton.fleet.placement_status import ABSENT


class FakeKeys:
    """Ray's key-value store; counts writes."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.written: list[bytes] = []
        #: Writes of keys that contain this fail.
        self.refuses: bytes | None = None

    def _internal_kv_get(self, key: bytes, namespace: bytes) -> bytes | None:
        return self.kept.get(key)

    def _internal_kv_put(self, key: bytes, value: bytes, namespace: bytes) -> None:
        if self.refuses is not None and self.refuses in key:
            raise OSError("no room for keys")
        self.kept[key] = value
        self.written.append(key)

    def _internal_kv_list(self, prefix: bytes, namespace: bytes) -> list[bytes]:
        return [key for key in self.kept if key.startswith(prefix)]

    def _internal_kv_del(self, key: bytes, namespace: bytes) -> None:
        self.kept.pop(key, None)


def no_actors() -> Any:
    """Return a Ray without actors."""
    return SimpleNamespace(util=SimpleNamespace(list_named_actors=lambda **_: []), nodes=lambda: [])


class FakeCluster:
    """Places each holder on the allowed node with the fewest holders."""

    def __init__(self, *nodes: str) -> None:
        self.alive = dict.fromkeys(nodes, "10.0.0.1")
        self.served: dict[str, dict[str, tuple[str, int]]] = {node: {} for node in nodes}
        self.places: dict[str, tuple[str, list[str]]] = {}
        self.but: dict[str, list[str]] = {}
        self.only: dict[str, Sequence[str] | None] = {}
        self.released: set[str] = set()
        self.others: list[str] = []
        self.dead: set[str] = set()
        #: Holders that were killed.
        self.gone: set[str] = set()
        self.surplus: list[str] = []
        self.dismissed: list[str] = []
        self.silent: set[str] = set()
        self.refuses: set[str] = set()
        #: Nodes that do not answer yet.
        self.slow: set[str] = set()
        self.room = 99
        self.asked: list[tuple[Any, ...]] = []
        self.looked: dict[str, Any] = {}
        #: The environment that each node was given for a model.
        self.environments: dict[str, dict[str, bytes]] = {node: {} for node in nodes}
        self.counted = dict.fromkeys(nodes, CanaryCounters(100, 50))

    def poll(self, settings: dict[str, Any], holders: Sequence[str]) -> None:
        for node in self.dismissed:
            if self.alive.pop(node, None) is not None:
                self.others.append(node)
        _, self.surplus = members(
            self.alive, settings.get("nodes"), self.alive, settings["among"], settings["draining"],
            Counter(node for node, _ in self.places.values()),
        )  # fmt: skip
        for name in holders:
            if self.places.get(name, ("", []))[0] not in self.alive and name not in self.gone:
                self._place(name)

    def poll_daemons(self) -> dict[str, Any]:
        """Return reports of maximum age: the poll began before the last step."""
        fresh = {node: self._look(node) for node in self.alive if node not in self.silent}
        reported = {node: self.looked.get(node, look) for node, look in fresh.items()}
        self.looked = fresh
        return reported

    def _look(self, node: str) -> DaemonState:
        served = {model: ModelOnNode(*one) for model, one in self.served[node].items()}
        now = status(
            *(messages.ModelInfo(name, 1, "ready", [], route=f"/{name}") for name in served)
        )
        return DaemonState(msgspec.msgpack.encode(now), "", now, served)

    def discard_state(self, node: str) -> None:
        self.looked.pop(node, None)

    def ask(self, node: str, method: str, *arguments: Any) -> str:
        self.asked.append((method, node))
        if node in self.refuses:
            return "no room"
        if method == "register":
            spec = msgspec.msgpack.decode(arguments[0], type=messages.ModelSpec)
            assert arguments[4] == (spec.name in self.served[node])  # otherwise a daemon refuses
            digest = digest_with(registration_digest(spec, arguments[1]), arguments[6])
            assert digest == arguments[5]
            self.served[node][spec.name] = digest, arguments[2]
            self.environments[node][spec.name] = arguments[6]
        elif method == "scale":
            self.served[node][arguments[0]] = self.served[node][arguments[0]][0], arguments[1]
        else:
            del self.served[node][arguments[0]]
        return ""

    def canary_counters(self, models: Sequence[str]) -> dict[str, dict[str, CanaryCounters]]:
        answers = {node: self.counted[node] for node in self.alive if node not in self.silent}
        return dict.fromkeys(models, answers)

    def serve(self, requests: int, failing: str = "") -> None:
        """Let each node count this many requests; those of the version with this digest fail."""
        for node, served in self.served.items():
            failed = requests if served.get("m", ("",))[0] == failing else 0
            was = self.counted[node]
            self.counted[node] = CanaryCounters(was.requests + requests, was.failed + failed)

    def dismiss(self, node: str) -> None:
        self.dismissed.append(node)

    def fault(self, node: str) -> str:
        return "its daemon does not answer (yet)"

    def shared(self, digest: str, payloads: Sequence[bytes]) -> Sequence[bytes]:
        return payloads

    def release_shared(self) -> None:
        pass

    def ended(self, references: dict[Any, str]) -> dict[Any, str]:
        return {key: answer for key, answer in references.items() if key[0] not in self.slow}

    def hold(
        self,
        name: str,
        resources: dict[str, Any],
        but: Sequence[str],
        only: Sequence[str] | None = None,
    ) -> None:
        self.but[name], self.only[name] = list(but), only

    def release(self, name: str) -> None:
        self.places.pop(name, None)
        self.gone.discard(name)
        self.released.add(name)

    def release_all_but(self, holders: Sequence[str]) -> None:
        for one in {*self.but} - {*holders} - self.released:
            self.release(one)

    def stop(self) -> None:
        self.served.clear()

    def devices(self, holders: Sequence[str], node: str) -> list[str]:
        return []

    def die(self, node: str) -> None:
        del self.alive[node], self.served[node]
        self.dead.add(node)

    def counts(self, model: str = "m") -> dict[str, int]:
        return {node: served[model][1] for node, served in self.served.items() if model in served}

    def _place(self, name: str) -> None:
        self.places.pop(name, None)
        there = [place[0] for place in self.places.values()]
        everywhere, only = [*self.others, *self.alive], self.only[name]
        may = [one for one in everywhere if one not in self.but[name]]
        may = may if only is None else [one for one in may if one in only]
        if may and len(there) < self.room:
            self.places[name] = min(may, key=there.count), []


class Fleet:
    """A controller on a fake cluster and a clock."""

    def __init__(self, *nodes: str) -> None:
        self.now = 1000.0
        self.keys = FakeKeys()
        self.cluster = FakeCluster(*nodes)
        self.controller = self.begin()

    def begin(self) -> Controller:
        cluster = cast(Cluster, self.cluster)
        return Controller("f", ControllerStore("f", self.keys), cluster, lambda: self.now)

    def stored_state(self) -> ControllerState:
        """Return the stored state; reading it from the keys makes the reader the current controller."""
        keys = FakeKeys()
        keys.kept = dict(self.keys.kept)
        state = ControllerStore("f", keys).read()
        assert state is not None
        return state

    def register(
        self,
        payload: bytes = b"p",
        instances: int = 4,
        replace: bool = False,
        name: str = "m",
        canary: Canary | None = None,
        request: str = "",
        environment: bytes = b"",
    ) -> str:
        spec = messages.ModelSpec(
            name, 1, {}, messages.WorkerEnvironment("py"), instances=instances
        )
        encoded = msgspec.msgpack.encode(spec)
        return self.controller.register(
            encoded, [payload], {}, replace, canary, request, environment
        )

    def steps(self, count: int = 6, seconds: float = 0.5) -> None:
        for _ in range(count):
            self.now += seconds
            self.controller.step()

    def seen(self, balancer: str = "b", done: int = -1) -> tuple[int, dict[str, list[str]]]:
        generation, reported = self.controller.view(balancer, done)
        nodes = msgspec.msgpack.decode(reported, type=list[NodeStatus]) if reported else []
        infos = [info for one in nodes if one.status is not None for info in one.status.models]
        assert all(info.route == f"/{info.name}" for info in infos)
        return generation, {
            one.node.rpartition("/")[2]: [
                f"{model.name} {ABSENT}" if model.state == ABSENT else model.name
                for model in one.status.models
            ]
            for one in nodes
            if one.status is not None
        }
