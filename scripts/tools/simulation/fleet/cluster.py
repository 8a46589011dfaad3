"""Ray and the daemons of a fleet, in one process: as much of them as the controller and its cluster ask for."""

from __future__ import annotations

import pickle
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.daemon import DaemonClient
from pytriton.fleet.on_ray import NAMESPACE
from pytriton.fleet.on_ray.actors import NodeActor

_ADDRESS = "127.0.0.1"
_NODE_LABEL = "ray.io/node-id"


class RayError(Exception):
    """Ray's error for an actor that has gone."""


class RayTaskError(RayError):
    """Ray's error for an actor's method that has failed."""

    @property
    def cause(self) -> BaseException | None:
        """The method's own error."""
        return self.__cause__


class Ref:
    """An answer that comes at a moment: as bytes, for whoever gets it has to decode it."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.value = b""
        self.error: RayError | None = None


class Daemon:
    """A daemon, as its client sees it; loading a model takes time, and its memory is what it was told."""

    def __init__(self, node: str, http_url: str, grpc_url: str) -> None:
        self._node = node
        self._server = messages.ServerInfo(
            "ready", 4711, "2.51.0", http_url, grpc_url, f"http://{_ADDRESS}:8002/metrics", "/opt/tritonserver"
        )  # fmt: skip
        self._kept: dict[str, messages.KeptRegistration] = {}
        self._infos: dict[str, messages.ModelInfo] = {}
        self._status: messages.Status | None = None
        self._changes = 1

    def status(self) -> messages.Status:
        """Return the same object until something has changed."""
        if self._status is None:
            self._status = messages.Status(
                "0.1", 4710, "/venv/bin/python", f"/tmp/ptf/{self._node}", "ready", 1.7e9, self._server,
                list(self._infos.values()),
            )  # fmt: skip
        return self._status

    def changed_registrations(self, known: str) -> messages.Registrations | None:
        """Return what is registered, unless that is known."""
        if known == str(self._changes):
            return None
        return messages.Registrations(list(self._kept.values()), str(self._changes))

    def register_prepared(self, message: messages.Register, payloads: Sequence[bytes]) -> None:
        """Serve a model."""
        spec = message.spec
        digest = registration_digest(spec, payloads)
        self._kept[spec.name] = messages.KeptRegistration(spec, digest)
        self._publish(spec)

    def scale_prepared(self, message: messages.Scale) -> None:
        """Serve another number of instances."""
        kept = self._kept[message.name]
        spec = msgspec.structs.replace(kept.spec, instances=message.instances)
        self._kept[message.name] = msgspec.structs.replace(kept, spec=spec)
        self._publish(spec)

    def unregister(self, model: str) -> None:
        """Serve it no more."""
        del self._kept[model], self._infos[model]
        self._changed()

    def _publish(self, spec: messages.ModelSpec) -> None:
        instances = [
            messages.InstanceInfo(index, "ready", 5000 + index, lanes=1)
            for index in range(spec.instances or 1)
        ]
        self._infos[spec.name] = messages.ModelInfo(
            spec.name, 1, "ready", instances, f"{self._server.http_url}/v2/models/{spec.name}/infer", spec.config,
            "/venv/bin/python", 1.7e9, f"/tmp/ptf/{self._node}/logs/{spec.name}.log",
        )  # fmt: skip
        self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._status = None


class _Node(NodeActor):
    """A node's actor whose daemon is simulated."""

    def __init__(self, daemon: Daemon) -> None:
        self._simulated = daemon
        ray = SimpleNamespace(util=SimpleNamespace(list_named_actors=lambda **_: []))
        super().__init__("", (), "", "", ray)

    def _connected(self) -> DaemonClient:
        return cast(DaemonClient, self._simulated)


class _Holder:
    def __init__(self, node: str) -> None:
        self.node = node

    def where(self) -> tuple[str, list[str]]:
        return self.node, []


class Actor:
    """A handle: each method has a `remote`."""

    def __init__(self, ray: Ray, name: str, what: Any, selector: str = "") -> None:
        self.name = name
        self.what = what
        self.selector = selector
        self._ray = ray

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._ray.call(self, method, given))


class Ray:
    """Ray, as far as `pytriton.fleet.on_ray.cluster` uses it. Counts calls, and the bytes that they carry.

    Args:
        nodes: how many there are
        clock: the virtual time
        load_s: what a daemon takes to load a model
        port: at which all daemons are said to take HTTP; gRPC is the next one
    """

    def __init__(
        self, nodes: int, clock: Callable[[], float], load_s: float, port: int = 8000
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.sent = 0
        self.elsewhere_s = 0.0  # that nodes would have computed
        self._clock = clock
        self._load_s = load_s
        self._daemons = {
            f"{number:056x}": Daemon(
                f"{number:056x}", f"http://{_ADDRESS}:{port}", f"grpc://{_ADDRESS}:{port + 1}"
            )
            for number in range(nodes)
        }
        self._nodes = list(self._daemons)
        self._alive = dict.fromkeys(self._daemons, True)
        self._actors: dict[str, Actor] = {}
        self._loading: deque[tuple[Ref, Actor, tuple[Any, ...]]] = deque()
        self._dice = random.Random(1)
        self.exceptions = SimpleNamespace(
            RayError=RayError, RayTaskError=RayTaskError, ActorDiedError=RayError
        )
        affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(
            scheduling_strategies=affinity,
            list_named_actors=lambda **_: [
                {"name": name, "namespace": NAMESPACE} for name in self._actors
            ],
        )

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes, with those that are dead."""
        self.calls["nodes"] += 1
        return [
            {"NodeID": node, "Alive": alive, "NodeManagerAddress": _ADDRESS}
            for node, alive in self._alive.items()
        ]

    def remote(self, kind: type) -> Any:
        """Return a class whose `options(...).remote(...)` makes an actor."""
        return SimpleNamespace(options=lambda **options: self._made(kind, options))

    def get_actor(self, name: str, _: str) -> Actor:
        """Return an actor by its name.

        Raises:
            ValueError: there is none
        """
        self.calls["get_actor"] += 1
        if name not in self._actors:
            raise ValueError(name)
        return self._actors[name]

    def kill(self, actor: Actor, no_restart: bool) -> None:
        """End an actor for good."""
        self.calls["kill"] += 1
        self._actors.pop(actor.name, None)

    def wait(
        self, references: Sequence[Ref], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[Ref], list[Ref]]:
        """Return what has ended and what has not; virtual time does not pass here."""
        self.calls["wait"] += 1
        self._run_due()
        now = self._clock()
        return [one for one in references if one.at <= now], [
            one for one in references if one.at > now
        ]

    def get(self, reference: Ref) -> Any:
        """Return an answer."""
        if reference.error is not None:
            raise reference.error
        return pickle.loads(reference.value)

    def put(self, value: Any) -> Any:
        """Return what stands for a value as an argument: here, it itself."""
        return value

    def call(self, actor: Actor, method: str, given: tuple[Any, ...]) -> Ref:
        """Have an actor do something, at once; the answer comes later where that takes time."""
        self.calls[method] += 1
        self.sent += sum(_size(one) for one in given)
        self._run_due()
        reference = Ref(self._clock() + (self._load_s if method == "register" else 0.0))
        if method == "register":  # it is there when it has been loaded, and not before
            self._loading.append((reference, actor, given))
        else:
            self._run(reference, actor, method, given)
        return reference

    def _run_due(self) -> None:
        while self._loading and self._loading[0][0].at <= self._clock():
            reference, actor, given = self._loading.popleft()
            self._run(reference, actor, "register", given)

    def _run(self, reference: Ref, actor: Actor, method: str, given: tuple[Any, ...]) -> None:
        if actor.name not in self._actors:
            reference.error = RayError("the actor died")
            return
        begun = time.process_time()
        try:
            value = getattr(actor.what, method)(*given)
            reference.value = pickle.dumps(value, protocol=5)
        except Exception as error:  # whatever a daemon says
            reference.error = RayTaskError(str(error))
            reference.error.__cause__ = error
        self.elsewhere_s += time.process_time() - begun
        self.sent += len(reference.value)

    def die(self, node: str) -> None:
        """End a node; Ray has noticed it, and starts what was there elsewhere."""
        self._alive[node] = False
        for name, actor in list(self._actors.items()):
            if isinstance(actor.what, _Node) and name.endswith(node):
                del self._actors[name]
            elif isinstance(actor.what, _Holder) and actor.what.node == node:
                actor.what = _Holder(self._place(actor.selector))

    def node_of(self, number: int) -> str:
        """Return the id of one node."""
        return self._nodes[number]

    def _made(self, kind: type, options: dict[str, Any]) -> Any:
        name = options["name"]
        selector = options.get("label_selector", {}).get(_NODE_LABEL, "")

        def remote(*_: Any) -> Actor:
            self.calls["make"] += 1
            if name not in self._actors:
                what: Any = (
                    _Node(self._daemons[options["scheduling_strategy"]])
                    if issubclass(kind, NodeActor)
                    else _Holder(self._place(selector))
                )
                self._actors[name] = Actor(self, name, what, selector)
            return self._actors[name]

        return SimpleNamespace(remote=remote)

    def _place(self, selector: str) -> str:
        named = selector[selector.find("(") + 1 : -1].split(",") if selector else []
        allowed = selector.startswith("in(")
        while True:  # anywhere: as in life, hardly two models have the same nodes
            node = self._dice.choice(self._nodes)
            if self._alive[node] and (not selector or (node in named) == allowed):
                return node


def _size(value: Any) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    return sum(_size(one) for one in value) if isinstance(value, (list, tuple)) else 8
