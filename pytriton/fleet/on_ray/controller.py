"""The controller: a detached actor that has daemons serve what was registered, where Ray has placed it.

Its loop looks (which nodes live, where holders are, what daemons serve), lets `reconcile` say what to do, and has node
actors do it. What it is told is in Ray's key-value store before it acts, so Ray may restart it at any moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

import msgspec

from pytriton.fleet.canary import Canary
from pytriton.fleet.judging import Seen
from pytriton.fleet.on_ray.balancers import Balancers
from pytriton.fleet.on_ray.cluster import Cluster
from pytriton.fleet.on_ray.kept_state import Model, Rolling, State, Store
from pytriton.fleet.on_ray.placement import Placement
from pytriton.fleet.on_ray.reconciling import (
    Register,
    Scale,
    Served,
    Step,
    Wanted,
    is_served,
    reconcile,
)
from pytriton.fleet.on_ray.rollouts import Rollouts, with_shares
from pytriton.ipc import messages
from pytriton.ipc.registration_digest import registration_digest

_logger = logging.getLogger("pytriton.fleet.on_ray")
_LOOK_S = 0.5
#: Until what a daemon refused is tried again.
_RETRY_S = 30.0
#: Until the loop, which is to end, has ended.
_LOOP_ENDS_S = 60.0


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
        self._state = State() if kept is None else kept
        self._lock = threading.RLock()
        self._cluster = Cluster(fleet) if cluster is None else cluster
        self._placement = Placement(self._cluster, self._state)
        self._statuses: dict[str, bytes] = {}
        self._observed: dict[str, dict[str, Served]] = {}
        self._wanted: dict[str, Wanted] = {}
        self._running: dict[tuple[str, str], tuple[Step, Any]] = {}
        #: Model -> what went wrong, and when: it is tried again later.
        self._errors: dict[str, tuple[str, float]] = {}
        self._stopping = threading.Event()
        self._balancers = Balancers(clock)
        self._rollouts = Rollouts(clock)
        self._thread = threading.Thread(target=self._run, daemon=True)
        if kept is not None and cluster is None:  # Ray has started it again
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
        self,
        spec: bytes,
        payloads: list[bytes],
        resources: dict[str, Any],
        replace: bool,
        canary: Optional[Canary] = None,
    ) -> str:
        """Want a model from now on; returns why not, or nothing. `progress` tells what becomes of it."""
        new = msgspec.msgpack.decode(spec, type=messages.ModelSpec)
        with self._lock:
            former = self._state.models.get(new.name)
            if former is not None and not replace:
                return f"model {new.name!r} is registered already; pass replace=True"
            why = "" if canary is None else _no_canary(former, resources)
            if why:
                return f"model {new.name!r} cannot be rolled out step by step: {why}"
            model = Model(new, list(payloads), resources, [], registration_digest(new, payloads))
            self._rollouts.forget(new.name)
            if former is not None:
                if canary is not None and model.digest != former.digest:
                    model.rolling = Rolling(former.version(), canary)
                    model.previous = former.previous
                else:
                    rolling = former.rolling
                    model.previous = former.version() if rolling is None else rolling.former
                model.serial, model.retired = former.serial, [*former.holders, *former.retired]
                if former.resources == resources:
                    model.holders, model.retired = former.holders, former.retired
            self._errors.pop(new.name, None)
            self._state.models[new.name] = model
            self._placement.make_holders(model)
            self._save(new.name)
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

    def rollback(self, name: str) -> str:
        """Want what a model was before it was last replaced, or is being replaced; returns why not, or nothing."""
        with self._lock:
            model = self._state.models.get(name)
            if model is None:
                return f"there is no model {name!r}"
            if model.rolling is not None:
                self._rollouts.take_back(name, model, "somebody rolled it back")
            elif model.previous is None:
                return f"model {name!r} has not been replaced since it was first registered"
            else:
                before = model.previous
                resources, model.resources = model.resources, before.resources
                model.previous = msgspec.structs.replace(model.version(), resources=resources)
                model.use(before)
                if resources != before.resources:
                    model.holders, model.retired = [], [*model.holders, *model.retired]
                    self._placement.make_holders(model)
            self._errors.pop(name, None)
            self._save(name)
        return ""

    def rollout(self, name: str) -> tuple[str, str]:
        """Return how far a new version is, and why the last one was taken back; nothing where nothing is to be told."""
        with self._lock:
            model = self._state.models.get(name)
            return self._rollouts.told.get(name, ""), "" if model is None else model.taken_back

    def scale(self, name: str, instances: int) -> bool:
        """Want another number of instances; whether there is such a model."""
        with self._lock:
            model = self._state.models.get(name)
            if model is None:
                return False
            model.spec = msgspec.structs.replace(model.spec, instances=instances)
            self._errors.pop(name, None)
            self._placement.make_holders(model)
            self._save(name)
        return True

    def unregister(self, name: str) -> bool:
        """Want a model no more; whether there was one."""
        with self._lock:
            model = self._state.models.pop(name, None)
            self._errors.pop(name, None)
            self._rollouts.forget(name)
            self._save(name)
        if model is None:
            return False
        self._placement.release(model)
        return True

    def drain(self, node: str) -> None:
        """Have a node serve nothing: its instances get places elsewhere first."""
        with self._lock:
            if node not in self._state.draining:
                self._state.draining.append(node)
            moved = [
                name
                for name, model in self._state.models.items()
                if self._placement.leave_node(model, node)
            ]
            self._save(*moved)

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
            done = done and model.rolling is None
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
                    self._statuses.get(node, b""),
                    "" if node in self._statuses else "its daemon does not answer (yet)",
                )
                for node, address in self._cluster.alive.items()
            ]

    def view(self, balancer: str, generation: int) -> tuple[int, bytes]:
        """Return what a balancer shall know, which has carried out `generation`: (generation, [NodeStatus]).

        The generation is -1 while not every node was looked at since this controller was started.
        """
        with self._lock:
            return self._balancers.answer(balancer, generation)

    def logs(self, name: Optional[str], lines: int) -> dict[str, list[str]]:
        """Return log lines by node."""
        return self._cluster.ask_all("logs", name, lines)

    def stop(self) -> None:
        """Stop all daemons, and forget everything; the loop has ended before that, so that it starts none again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_LOOP_ENDS_S)
        with self._lock:
            self._store.remove()
            for model in self._state.models.values():
                self._placement.release(model)
            self._state = State()
            self._placement = Placement(self._cluster, self._state)
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
            settings = {**self._state.settings, "among": self._state.among}
            holders = self._placement.all()
        self._cluster.look(settings, holders)
        with self._lock:
            self._finish_steps()
        found = self._cluster.looks()
        seen = self._look_at_rollouts()
        with self._lock:
            self._statuses = {node: look.status for node, look in found.items()}
            self._observed = {node: look.served for node, look in found.items()}
            moved = self._placement.place_anew()
            if moved is not None:
                self._save(*moved)
            self._wanted = {
                name: self._placement.wanted(one) for name, one in self._state.models.items()
            }
            self._advance_rollouts(seen)
            plan = reconcile(self._wanted, self._observed, self._balancers.left())
            lasting = {node: look.lasting for node, look in found.items()}
            shown = with_shares(lasting, self._state.models)
            self._balancers.publish(self._cluster.alive, shown, self._observed, plan.leaving)
            for step in plan.steps:
                self._begin(step)
            self._release_retired()

    def _begin(self, step: Step) -> None:
        key = step.node, step.model
        failed_at = self._errors.get(step.model, ("", -_RETRY_S))[1]
        if key in self._running or self._clock() - failed_at < _RETRY_S:
            return
        if isinstance(step, Register):
            model = self._state.models[step.model]
            one = model.rolling.former if step.former and model.rolling else model.version()
            devices = self._cluster.devices(model.holders, step.node)
            arguments: tuple[Any, ...] = (
                msgspec.msgpack.encode(one.spec),
                self._cluster.shared(one.digest, one.payloads),
                step.instances,
                devices,
                step.replace,
                one.digest,
            )
            self._running[key] = step, self._cluster.ask(step.node, "register", *arguments)
        elif isinstance(step, Scale):
            self._running[key] = (
                step,
                self._cluster.ask(step.node, "scale", step.model, step.instances),
            )
        else:
            self._running[key] = step, self._cluster.ask(step.node, "unregister", step.model)

    def _look_at_rollouts(self) -> dict[str, dict[str, Seen]]:
        """Return what nodes have counted of each model of which a new version is watched."""
        with self._lock:
            watched = [
                name
                for name, one in self._state.models.items()
                if one.rolling is not None and one.rolling.nodes and not one.rolling.watched
            ]
        return {name: self._cluster.ask_all("seen", name) for name in watched}

    def _advance_rollouts(self, seen: Mapping[str, Mapping[str, Seen]]) -> None:
        for name, model in self._state.models.items():
            if model.rolling is None:
                continue
            refused = self._errors.pop(name, ("", 0.0))[0]
            if refused:
                self._rollouts.take_back(name, model, refused)
            elif not self._rollouts.advance(
                name, model, self._wanted[name], self._observed, seen.get(name, {})
            ):
                continue
            self._wanted[name] = self._placement.wanted(model)
            self._save(name)

    def _finish_steps(self) -> None:
        ended = self._cluster.ended({key: one for key, (_, one) in self._running.items()})
        for key, (step, _) in list(self._running.items()):
            if key not in ended and step.node in self._cluster.alive:
                continue
            del self._running[key]
            error = ended.get(key, "")
            self._cluster.forget_look(step.node)  # it may be of before
            # A node that died is no fault of the model: Ray places it anew.
            if error and step.node in self._cluster.alive and isinstance(step, (Register, Scale)):
                self._errors[step.model] = f"{step.node[:8]}: {error}", self._clock()
            elif error:
                _logger.warning("step %s failed: %s", step, error)
            elif isinstance(step, (Register, Scale)):
                self._errors.pop(step.model, None)

        if not self._running:
            self._cluster.share_nothing()

    def _release_retired(self) -> None:
        """Give resources back once what they held is served elsewhere, and is served there no more."""
        for name, model in self._state.models.items():
            if model.retired and is_served(name, self._wanted[name], self._observed):
                self._placement.release_retired(model)
                self._save(name)

    def _save(self, *models: str) -> None:
        self._store.write(self._state, *models)


def _no_canary(former: Optional[Model], resources: dict[str, Any]) -> str:
    """Return why a new version cannot be compared with what there is; nothing where it can."""
    if former is None:
        return "there is none yet to compare it with"
    if former.rolling is not None:
        return "another new version of it is on its way; wait, or roll it back"
    if former.resources != resources:
        return "it holds other resources than the version that it is to replace"
    return ""
