"""The life of a simulated fleet: what happens to it, and what that costs its controller."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from pytriton._protocol import messages
from pytriton.fleet.on_ray.cluster import Cluster
from pytriton.fleet.on_ray.controller import Controller
from pytriton.fleet.on_ray.controller_state import ControllerStore
from pytriton.fleet.on_ray.reconciler import is_served
from simulation.fleet.cluster import Ray

_POLL_INTERVAL_S = 0.5
_BALANCER_S = 2.0
#: Virtual seconds after which something will not come any more.
_LONG_S = 600.0


class Setting(NamedTuple):
    """How large the fleet is.

    Attributes:
        nodes: that live at first
        models: that are registered
        instances: of each model
        payload: bytes of each model's callable
        load_s: what a daemon takes to load one
        port: at which all daemons are said to serve
    """

    nodes: int = 1000
    models: int = 10_000
    instances: int = 2
    payload: int = 20_000
    load_s: float = 3.0
    port: int = 8000


class Row(NamedTuple):
    """The cost of something: virtual seconds, steps of the loop, the seconds that these computed, and what was sent."""

    what: str
    took_s: float
    steps: int
    median_s: float
    most_s: float
    calls: Counter[str]
    sent: int
    written: int


class Keys:
    """Ray's key-value store; counts the bytes that are written."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.written = 0

    def _internal_kv_get(self, key: bytes, namespace: bytes) -> bytes | None:
        return self.kept.get(key)

    def _internal_kv_put(self, key: bytes, value: bytes, namespace: bytes) -> None:
        self.kept[key] = value
        self.written += len(value)

    def _internal_kv_list(self, prefix: bytes, namespace: bytes) -> list[bytes]:
        return [key for key in self.kept if key.startswith(prefix)]

    def _internal_kv_del(self, key: bytes, namespace: bytes) -> None:
        self.kept.pop(key, None)


class Fleet:
    """A controller, a simulated cluster, a balancer that carries out at once, and a clock."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now = 1000.0
        self.keys = Keys()
        self.ray = Ray(setting.nodes, lambda: self.now, setting.load_s, setting.port)
        self.controller = self._controller()
        self.done = -1
        self._asked_at = 0.0
        self._computed: list[float] = []

    def register(self, name: str) -> None:
        """Register a model, as a client does."""
        refused = self.controller.register(
            msgspec.msgpack.encode(_spec(name, self.setting.instances)),
            [bytes(self.setting.payload)], {"num_cpus": 1}, False,
        )  # fmt: skip
        assert not refused, refused

    def play(self) -> Iterator[Row]:
        """Have everything happen once."""
        yield self._row("all models registered", self._register_all, self.is_served)
        yield self._row("nothing, for 30 s", lambda: None, self._after(30))
        yield self._row("one more model", lambda: self.register("new"), self.is_served)
        yield self._row("one scaled by one", self._scale, self.is_served)
        yield self._row("a node dies", lambda: self._die(0), self.is_served)
        leaves = self.ray.node_of(self.setting.nodes - 1)
        yield self._row(
            "a node is drained",
            lambda: self.controller.drain(leaves),
            lambda: self.controller.drained(leaves),
        )
        yield self._row("a tenth of the nodes dies", self._die_many, self.is_served)
        yield self._row("the controller anew", self._restart, self._sees_all)

    def is_served(self) -> bool:
        """Whether all models are served as they shall be, and the controller knows it."""
        one = self.controller
        return one._wanted.keys() == one._state.models.keys() and all(
            wanted.digest == one._state.models[name].digest
            and sum(wanted.nodes.values()) == one._state.models[name].spec.instances
            and is_served(name, wanted, one._observed)
            for name, wanted in one._wanted.items()
        )

    def view(self, generation: int = -1) -> tuple[int, bytes]:
        """Return what a balancer is told."""
        return self.controller.view("balancer", generation)

    def _controller(self) -> Controller:
        return Controller(
            "f", ControllerStore("f", self.keys), Cluster("f", self.ray), lambda: self.now
        )

    def _register_all(self) -> None:
        for number in range(self.setting.models):
            self.register(f"model-{number}")

    def _scale(self) -> None:
        self.controller.scale("new", self.setting.instances + 1)

    def _die(self, number: int) -> None:
        self.ray.die(self.ray.node_of(number))

    def _die_many(self) -> None:
        for number in range(1, 1 + self.setting.nodes // 10):
            self._die(number)

    def _restart(self) -> None:
        self.controller = self._controller()

    def _sees_all(self) -> bool:
        return self.view(self.done)[0] >= 0 and self.is_served()

    def _after(self, seconds: float) -> Callable[[], bool]:
        end = self.now + seconds
        return lambda: self.now >= end

    def _row(self, what: str, begin: Callable[[], object], done: Callable[[], bool]) -> Row:
        self._computed = []
        before = self.ray.calls.copy(), self.ray.sent, self.keys.written
        begun = self.now
        self._timed(begin)
        first = self._computed.pop()
        while True:
            self.now += _POLL_INTERVAL_S
            self._timed(self.controller.step)
            self._balance()
            if done():
                break
            if self.now - begun > _LONG_S:
                what += " (NOT DONE)"
                break
        steps = sorted(self._computed)
        return Row(
            what, self.now - begun, len(steps), steps[len(steps) // 2], max(first, steps[-1]),
            self.ray.calls - before[0], self.ray.sent - before[1], self.keys.written - before[2],
        )  # fmt: skip

    def _timed(self, act: Callable[[], Any]) -> None:
        """Do something; the seconds that the controller itself computed pass on the clock."""
        begun, elsewhere = time.process_time(), self.ray.elsewhere_s
        act()
        took = time.process_time() - begun - (self.ray.elsewhere_s - elsewhere)
        self._computed.append(took)
        self.now += took

    def _balance(self) -> None:
        if self.now - self._asked_at >= _BALANCER_S:
            self._asked_at = self.now
            generation, data = self.view(self.done)
            self.ray.sent += len(data)
            self.done = generation if generation >= 0 else self.done


def _spec(name: str, instances: int) -> messages.ModelSpec:
    """Return a registration as it is in life: the environment of a shell is the larger part of it."""
    tensor = {"name": "image", "data_type": "TYPE_FP32", "dims": [64]}
    config: dict[str, Any] = {
        "name": name, "max_batch_size": 64, "input": [tensor], "output": [{**tensor, "name": "label"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 500},
    }  # fmt: skip
    env = {f"VARIABLE_OF_A_SHELL_{number}": "a value that is not long" for number in range(30)}
    paths = [f"/venv/lib/python3.11/site-packages/{number}" for number in range(6)]
    world = messages.WorkerEnvironment("/venv/bin/python", paths, "/home/somebody/project", env)
    return messages.ModelSpec(name, 1, config, world, instances=instances)
