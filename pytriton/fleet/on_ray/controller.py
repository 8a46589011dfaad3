"""The controller: a detached actor that has daemons serve what was registered, where Ray has placed it.

Its loop looks (which nodes live, where holders are, what daemons serve), lets `reconcile` say what to do, and has node
actors do it. What it is told is in Ray's key-value store before it acts, so Ray may restart it at any moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

import msgspec

from pytriton.fleet.on_ray import NAMESPACE, import_ray
from pytriton.fleet.on_ray.cluster import Cluster
from pytriton.fleet.on_ray.reconciling import (
    Plan,
    Register,
    Scale,
    Served,
    Step,
    Wanted,
    is_served,
    reconcile,
)
from pytriton.fleet.served import NodeStatus
from pytriton.ipc import messages
from pytriton.ipc.registration_digest import registration_digest

_logger = logging.getLogger("pytriton.fleet.on_ray")
_LOOK_S = 0.5
#: Until what a daemon refused is tried again.
_RETRY_S = 30.0
#: After that, balancers are told of those nodes that do answer.
_LATE_S = 60.0
#: A balancer that has not asked for so long is not waited for.
_BALANCER_S = 10.0


class Store:
    """The controller's state in Ray's key-value store."""

    def __init__(self, fleet: str) -> None:
        self._kv = import_ray("ray.experimental.internal_kv")
        self._place = {"key": f"fleet-{fleet}".encode(), "namespace": NAMESPACE.encode()}

    def read(self) -> Optional[bytes]:
        """Return what was written; None when nothing was."""
        kept: Optional[bytes] = self._kv._internal_kv_get(**self._place)
        return kept

    def write(self, value: bytes) -> None:
        """Keep a state instead of the former one."""
        self._kv._internal_kv_put(value=value, **self._place)

    def remove(self) -> None:
        """Forget it."""
        self._kv._internal_kv_del(**self._place)


class Model(msgspec.Struct):
    """A model as it was registered with the fleet: `serial` numbers its holders, which are (slot, serial) each."""

    spec: messages.ModelSpec
    payloads: list[bytes]
    resources: dict[str, Any]
    holders: list[str]
    digest: str = ""
    serial: int = 0
    #: Holders whose place is to be left once others serve.
    retired: list[str] = msgspec.field(default_factory=list)


class State(msgspec.Struct):
    """All that the controller is told."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    models: dict[str, Model] = msgspec.field(default_factory=dict)
    draining: list[str] = msgspec.field(default_factory=list)
    #: The nodes that holders were last confined to, where the fleet is not to have the whole cluster.
    among: list[str] = msgspec.field(default_factory=list)


class Controller:
    """See above. Methods are called in several threads at once (max_concurrency)."""

    def __init__(
        self,
        fleet: str,
        store: Optional[Store] = None,
        cluster: Optional[Cluster] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._store = Store(fleet) if store is None else store
        kept = self._store.read()
        self._state = msgspec.msgpack.decode(kept, type=State) if kept else State()
        self._lock = threading.RLock()
        self._cluster = Cluster(fleet) if cluster is None else cluster
        self._statuses: dict[str, messages.Status] = {}
        self._observed: dict[str, dict[str, Served]] = {}
        self._wanted: dict[str, Wanted] = {}
        self._running: dict[tuple[str, str], tuple[Step, Any]] = {}
        #: Model -> what went wrong, and when: it is tried again later.
        self._errors: dict[str, tuple[str, float]] = {}
        # Higher than any of a former life, which balancers may still tell of.
        self._generation = time.time_ns()
        self._born = self._clock()
        self._view: dict[str, tuple[str, messages.Status]] = {}
        self._complete = False
        self._stopping = threading.Event()
        self._leaving: dict[tuple[str, str], int] = {}
        self._balancers: dict[str, tuple[int, float]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        if kept and cluster is None:  # Ray has started it again
            self._thread.start()

    # ── what clients call ────────────────────────────────────────────────────────────────────────

    def start(self, settings: Optional[dict[str, Any]] = None) -> None:
        """Begin, or go on with other settings."""
        with self._lock:
            if settings is not None:
                self._state.settings = settings
                self._save()
            if self._thread.ident is None:
                self._thread.start()

    def register(
        self, spec: bytes, payloads: list[bytes], resources: dict[str, Any], replace: bool
    ) -> str:
        """Want a model from now on; returns why not, or nothing. `progress` tells what becomes of it."""
        new = msgspec.msgpack.decode(spec, type=messages.ModelSpec)
        with self._lock:
            former = self._state.models.get(new.name)
            if former is not None and not replace:
                return f"model {new.name!r} is registered already; pass replace=True"
            model = Model(new, list(payloads), resources, [], registration_digest(new, payloads))
            if former is not None:
                model.serial, model.retired = former.serial, [*former.holders, *former.retired]
                if former.resources == resources:
                    model.holders, model.retired = former.holders, former.retired
            self._errors.pop(new.name, None)
            self._state.models[new.name] = model
            self._make_holders(model)
            self._save()
        return ""

    def former(self, name: str) -> Optional[tuple[bytes, list[bytes], dict[str, Any]]]:
        """Return what `register` was given for a model, so that a replacement can be put back."""
        with self._lock:
            one = self._state.models.get(name)
            return (
                None
                if one is None
                else (msgspec.msgpack.encode(one.spec), one.payloads, one.resources)
            )

    def scale(self, name: str, instances: int) -> bool:
        """Want another number of instances; whether there is such a model."""
        with self._lock:
            model = self._state.models.get(name)
            if model is None:
                return False
            model.spec = msgspec.structs.replace(model.spec, instances=instances)
            self._errors.pop(name, None)
            self._make_holders(model)
            self._save()
        return True

    def unregister(self, name: str) -> bool:
        """Want a model no more; whether there was one."""
        with self._lock:
            model = self._state.models.pop(name, None)
            self._errors.pop(name, None)
            self._save()
        if model is None:
            return False
        for holder in [*model.holders, *model.retired]:
            self._cluster.release(holder)
        return True

    def drain(self, node: str) -> None:
        """Have a node serve nothing: its instances get places elsewhere first."""
        with self._lock:
            if node not in self._state.draining:
                self._state.draining.append(node)
            for model in self._state.models.values():
                self._leave_node(model, node)
            self._save()

    def progress(self, name: str) -> tuple[bool, int, int, str]:
        """Return whether a model is served as wanted, how many instances are, of how many, and what went wrong."""
        with self._lock:
            model = self._state.models.get(name)
            gone = model is None and not any(name in one for one in self._observed.values())
            if model is None:
                return gone, 0, 0, ""
            wanted = self._wanted.get(name)
            served = sum(
                one[name].instances
                for one in self._observed.values()
                if name in one and one[name].digest == model.digest
            )
            fresh = wanted is not None and wanted.digest == model.digest
            fresh = (
                fresh
                and wanted is not None
                and sum(wanted.nodes.values()) + wanted.pending == model.spec.instances
            )
            done = bool(fresh and wanted is not None and is_served(name, wanted, self._observed))
            return done, served, model.spec.instances, self._errors.get(name, ("", 0.0))[0]

    def drained(self, node: str) -> bool:
        """Whether nothing is served on a node that drains, and nothing holds a place there."""
        with self._lock:
            return not self._observed.get(node) and not any(
                wanted.nodes.get(node) for wanted in self._wanted.values()
            )

    def nodes(self) -> list[tuple[str, str, bool, bytes, str]]:
        """Return each node: id, address, whether it drains, its daemon's status (or nothing), what is wrong."""
        with self._lock:
            return [
                (
                    node,
                    address,
                    node in self._state.draining,
                    msgspec.msgpack.encode(self._statuses[node]) if node in self._statuses else b"",
                    "" if node in self._statuses else "its daemon does not answer (yet)",
                )
                for node, address in self._cluster.alive.items()
            ]

    def view(self, balancer: str, generation: int) -> tuple[int, bytes]:
        """Return what a balancer shall know, which has carried out `generation`: (generation, [NodeStatus]).

        The generation is -1 while not every node was looked at since this controller was started.
        """
        with self._lock:
            if not self._complete:  # Ray has just started it again: what the balancer has is better
                return -1, b""
            self._balancers[balancer] = generation, self._clock()
            found = [
                NodeStatus(f"tcp://{address}/{node}", status)
                for node, (address, status) in self._view.items()
            ]
            return self._generation, msgspec.msgpack.encode(found)

    def logs(self, name: Optional[str], lines: int) -> dict[str, list[str]]:
        """Return log lines by node."""
        return self._cluster.ask_all("logs", name, lines)

    def stop(self) -> None:
        """Stop all daemons, and forget everything; the loop has ended before that, so that it starts none again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_LATE_S)
        with self._lock:
            self._store.remove()
            for model in self._state.models.values():
                for holder in [*model.holders, *model.retired]:
                    self._cluster.release(holder)
            self._state = State()
        self._cluster.stop()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self._try_step()

    def _try_step(self) -> None:
        try:
            self.step()
        except Exception:  # Ray's own errors are of many kinds, and most pass
            _logger.exception("a step of the controller failed; it is tried again")

    def step(self) -> None:
        """Look once, and begin what has to be done; the loop does so all the time."""
        with self._lock:
            settings = dict(self._state.settings)
            holders = [
                one
                for model in self._state.models.values()
                for one in (*model.holders, *model.retired)
            ]
        self._cluster.look(settings, holders)
        with self._lock:
            self._finish_steps()
        found = self._cluster.looks()
        with self._lock:
            self._statuses = {node: status for node, (status, _) in found.items()}
            self._observed = {
                node: {model: Served(*told) for model, told in models.items()}
                for node, (_, models) in found.items()
            }
            self._place_anew()
            self._wanted = {name: self._wanted_of(one) for name, one in self._state.models.items()}
            plan = reconcile(self._wanted, self._observed, self._left())
            self._publish(plan)
            for step in plan.steps:
                self._begin(step)
            self._release_retired()

    def _wanted_of(self, model: Model) -> Wanted:
        nodes: dict[str, int] = {}
        pending = 0
        for holder in model.holders:
            place = self._cluster.places.get(holder)
            if place is None or place[0] not in self._cluster.alive:
                pending += 1
            else:
                nodes[place[0]] = nodes.get(place[0], 0) + 1
        return Wanted(model.digest, nodes, pending)

    def _begin(self, step: Step) -> None:
        key = step.node, step.model
        failed_at = self._errors.get(step.model, ("", -_RETRY_S))[1]
        if key in self._running or self._clock() - failed_at < _RETRY_S:
            return
        if isinstance(step, Register):
            model = self._state.models[step.model]
            spec = msgspec.msgpack.encode(model.spec)
            devices = self._cluster.devices(model.holders, step.node)
            arguments: tuple[Any, ...] = (
                spec,
                model.payloads,
                step.instances,
                devices,
                step.replace,
            )
            self._running[key] = step, self._cluster.ask(step.node, "register", *arguments)
        elif isinstance(step, Scale):
            self._running[key] = (
                step,
                self._cluster.ask(step.node, "scale", step.model, step.instances),
            )
        else:
            self._running[key] = step, self._cluster.ask(step.node, "unregister", step.model)

    def _finish_steps(self) -> None:
        for key, (step, reference) in list(self._running.items()):
            ended, error = self._cluster.ended(reference)
            if not ended and step.node in self._cluster.alive:
                continue
            del self._running[key]
            self._cluster.forget_look(step.node)  # it may be of before
            # A node that died is no fault of the model: Ray places it anew.
            if error and step.node in self._cluster.alive and isinstance(step, (Register, Scale)):
                self._errors[step.model] = f"{step.node[:8]}: {error}", self._clock()
            elif error:
                _logger.warning("step %s failed: %s", step, error)
            elif isinstance(step, (Register, Scale)):
                self._errors.pop(step.model, None)

    # ── holders ──────────────────────────────────────────────────────────────────────────────────

    def _make_holders(self, model: Model) -> None:
        while len(model.holders) < model.spec.instances:
            model.serial += 1
            name = f"{model.spec.name}/{model.serial}"
            self._cluster.hold(name, model.resources, self._state.draining, self._only())
            model.holders.append(name)
        while len(model.holders) > model.spec.instances:
            model.retired.append(model.holders.pop())

    def _only(self) -> Optional[list[str]]:
        """Return the nodes that holders are confined to; None: all of the cluster."""
        return sorted(self._cluster.alive) if self._state.settings.get("nodes") else None

    def _place_anew(self) -> None:
        """Find holders another place that Ray has put, or may put, where nothing of them can serve."""
        # One that was pending when its node began to drain, or that Ray has started again, may be there only now.
        moved = [
            self._leave_node(model, node)
            for node in self._state.draining
            for model in self._state.models.values()
        ]
        only = self._only() or []
        if only != self._state.among:
            self._state.among = only
            moved.append(True)
            for model in self._state.models.values() if only else ():
                self._renew_pending(model)
        if any(moved):
            self._save()

    def _renew_pending(self, model: Model) -> None:
        """Hold anew what has no place on the fleet's nodes: it knows the former ones only."""
        places = self._cluster.places
        lost = [
            one for one in model.holders if places.get(one, ("", []))[0] not in self._cluster.alive
        ]
        model.holders = [one for one in model.holders if one not in lost]
        for one in lost:
            self._cluster.release(one)
        self._make_holders(model)

    def _leave_node(self, model: Model, node: str) -> bool:
        """Have a model's instances on a node placed elsewhere; whether there were any."""
        there = [one for one in model.holders if self._cluster.places.get(one, ("", []))[0] == node]
        if not there:
            return False
        model.holders = [one for one in model.holders if one not in there]
        model.retired.extend(there)
        self._make_holders(model)
        return True

    def _release_retired(self) -> None:
        """Give resources back once what they held is served elsewhere, and is served there no more."""
        for name, model in self._state.models.items():
            if not model.retired or not is_served(name, self._wanted[name], self._observed):
                continue
            for holder in model.retired:
                self._cluster.release(holder)
            model.retired = []
            self._save()

    # ── balancers ────────────────────────────────────────────────────────────────────────────────

    def _publish(self, plan: Plan) -> None:
        """Tell balancers where models are; what is to go is left out, from this generation on."""
        view = {}
        for node, address in sorted(self._cluster.alive.items()):
            status = self._statuses.get(node)
            if status is not None:
                models = [
                    one
                    for one in status.models
                    if (node, one.name) not in plan.leaving and one.name in self._observed[node]
                ]
                view[node] = address, msgspec.structs.replace(status, models=models)
            elif node in self._view:  # it lives: whether its daemon does is HAProxy's to judge
                view[node] = self._view[node]
        if _facts(view) != _facts(self._view):
            self._generation += 1
        self._view = view
        late = self._clock() - self._born > _LATE_S
        self._complete = self._complete or len(view) == len(self._cluster.alive) > 0 or late
        self._leaving = {key: self._leaving.get(key, self._generation) for key in plan.leaving}

    def _left(self) -> frozenset[tuple[str, str]]:
        now = self._clock()
        if now - self._born < _BALANCER_S:  # those there are may not have asked yet
            return frozenset()
        waiting = [done for done, at in self._balancers.values() if now - at < _BALANCER_S]
        slowest = min(waiting, default=self._generation)
        return frozenset(key for key, since in self._leaving.items() if slowest >= since)

    def _save(self) -> None:
        self._store.write(msgspec.msgpack.encode(self._state))


def _facts(view: dict[str, tuple[str, messages.Status]]) -> list[Any]:
    """Return what a balancer makes its configuration of."""
    return [
        (
            node,
            address,
            status.server.http_url,
            status.server.grpc_url,
            sorted(one.name for one in status.models),
        )
        for node, (address, status) in view.items()
    ]
