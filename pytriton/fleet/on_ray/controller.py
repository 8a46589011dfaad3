"""The controller: a detached actor that makes daemons serve each model on the nodes where Ray has placed it.

Its loop polls the live nodes, the holders' locations and the daemons' models, lets `reconcile` compute the necessary
steps, and has node actors execute them. Changes are stored in Ray's key-value store first, so Ray may restart the
controller at any time.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import msgspec

from pytriton._protocol import messages
from pytriton.fleet.canary import Canary, CanaryCounters
from pytriton.fleet.on_ray import versions
from pytriton.fleet.on_ray.balancers import Balancers
from pytriton.fleet.on_ray.cluster import ALL_MODELS, Cluster, nodes_to_clear
from pytriton.fleet.on_ray.controller_state import ControllerState, ControllerStore, RegisteredModel
from pytriton.fleet.on_ray.environments import without_mark
from pytriton.fleet.on_ray.placement import Placement
from pytriton.fleet.on_ray.reconciler import (
    ModelOnNode,
    RegisterAction,
    Remove,
    Step,
    Wanted,
    is_served,
    reconcile,
)
from pytriton.fleet.on_ray.rollouts import Rollouts, watched, with_shares

_logger = logging.getLogger("pytriton.fleet.on_ray")
_POLL_INTERVAL_S = 0.5
#: Maximum wait for the end of the loop, in seconds.
_LOOP_ENDS_S = 60.0
#: Number of withdrawn requests that are remembered.
_WITHDRAWN = 100


class Controller:
    """The controller actor. Several threads call its methods concurrently (max_concurrency)."""

    def __init__(
        self,
        fleet: str,
        store: Optional[ControllerStore] = None,
        cluster: Optional[Cluster] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._store = ControllerStore(fleet) if store is None else store
        kept = self._store.read()
        self._state = ControllerState(known=[]) if kept is None else kept
        self._lock = threading.RLock()
        self._cluster = Cluster(fleet) if cluster is None else cluster
        self._placement = Placement(self._cluster, self._state)
        if kept is not None:
            self._cluster.release_all_but(self._placement.all())
        self._statuses: dict[str, bytes] = {}
        self._observed: dict[str, dict[str, ModelOnNode]] = {}
        self._wanted: dict[str, Wanted] = {}
        #: (node, model) that all balancers have removed.
        self._left: frozenset[tuple[str, str]] = frozenset()
        self._steps = Steps(self._cluster, clock)
        #: Models whose state could not be stored.
        self._unsaved: set[str] = set()
        self._stopping = threading.Event()
        self._balancers = Balancers(clock, self._state.balanced)
        self._rollouts = Rollouts(clock)
        self._thread = threading.Thread(target=self._run, daemon=True)
        if kept is not None and cluster is None:  # restarted by Ray
            self._thread.start()

    # ── what clients call ────────────────────────────────────────────────────────────────────────

    def start(self, settings: Optional[dict[str, Any]] = None) -> None:
        """Start the loop. If it is already running, change the fleet's settings."""
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
        request: str = "",
        environment: bytes = b"",
    ) -> str:
        """Register a model. Return an error message, or "". Query the outcome with `progress`.

        Args:
            spec: the encoded `ModelSpec`
            payloads: the pickled callables, followed by the packages of the environment
            resources: Ray resources of each instance
            replace: whether to replace an existing model of this name
            canary: settings of a canary rollout; None: all nodes at once
            request: ID of this call, for `withdraw`. A call with a repeated ID has no effect, because Ray retries
                calls after a crash
            environment: the serialized runtime_env
        """
        new = without_mark(msgspec.msgpack.decode(spec, type=messages.ModelSpec))
        with self._lock:
            if request and request in self._state.withdrawn:
                return f"the registration of model {new.name!r} was withdrawn"
            former = self._state.models.get(new.name)
            if former is not None and request and former.request == request:
                return ""
            why = versions.reason_to_reject(new, former, replace, canary, resources)
            if why:
                return why
            model = versions.new_model(new, list(payloads), resources, environment, request, former)
            self._state.remember_name(new.name)
            with self._change(new.name):
                if former is not None:
                    versions.replace(former, model, canary)
                self._state.models[new.name] = model
                self._placement.make_holders(model)
            self._rollouts.forget(new.name)
        return ""

    def withdraw(self, name: str, request: str) -> None:
        """Undo the `register` call with this ID, if its version is still current.

        A later `register` call with this ID has no effect.
        """
        with self._lock:
            if request not in self._state.withdrawn:
                self._state.withdrawn = [*self._state.withdrawn, request][-_WITHDRAWN:]
            model = self._state.models.get(name)
            if model is None or model.request != request or model.rollback_reason:
                self._save()
                return
            why = "the registration was cancelled"
            with self._change(name):
                if model.rolling is not None:
                    self._rollouts.roll_back(name, model, why)
                elif model.previous is not None:
                    versions.withdraw(model, why)
                else:
                    del self._state.models[name]
                if name in self._state.models:
                    self._placement.make_holders(model)
            if name not in self._state.models:
                self._placement.release(model)

    def rollback(self, name: str, request: str = "") -> Optional[str]:
        """Restore the version that a model had before its last replacement, or cancel its rollout.

        Return an error message, or ""; None if there is no such model. A call with a repeated `request` has no
        effect.
        """
        with self._lock:
            model = self._state.models.get(name)
            if model is None:
                return None
            if request and model.request == request:
                return ""
            if model.rolling is None and model.previous is None:
                return versions.roll_back(model)
            with self._change(name):
                if model.rolling is not None:
                    self._rollouts.roll_back(name, model, "it was rolled back by a client")
                else:
                    versions.roll_back(model)
                self._placement.make_holders(model)
                model.request = request
        return ""

    def rollout(self, name: str) -> tuple[str, str]:
        """Return the progress of a model's rollout, and why its last rollout was rolled back. Either is "" if there
        is none.
        """
        with self._lock:
            model = self._state.models.get(name)
            return self._rollouts.progress.get(
                name, ""
            ), "" if model is None else model.rollback_reason

    def scale(self, name: str, instances: int) -> bool:
        """Change a model's number of instances. Return False if there is no such model."""
        with self._lock:
            model = self._state.models.get(name)
            if model is None:
                return False
            versions.check_instances(instances)
            with self._change(name):
                versions.scale(model, instances)
                self._placement.make_holders(model)
        return True

    def unregister(self, name: str, request: str = "") -> bool:
        """Unregister a model. Return False if it does not exist. A repeated `request` has no effect."""
        with self._lock:
            model = self._state.models.get(name)
            if request and request in self._state.withdrawn:
                return True
            left = any(
                name in one for one in self._observed.values()
            ) and not self._state.owns_name(name)
            if model is None and not left:
                return False
            self._state.remember_name(name)
            with self._change(name):
                self._state.models.pop(name, None)
                self._state.withdrawn = [*self._state.withdrawn, request][-_WITHDRAWN:]
            self._rollouts.forget(name)
            if model is not None:
                self._placement.release(model)
        return True

    def drain(self, node: str) -> str:
        """Drain a node: move its instances to other nodes. Return an error message, or ""."""
        with self._lock:
            if node not in self._cluster.alive:
                return f"the fleet has no node {node!r}"
            self._store.check()
            if node not in self._state.draining:
                self._state.draining.append(node)
            models = self._state.models.items()
            self._save(*[name for name, one in models if self._placement.vacate_node(one, node)])
        return ""

    def progress(self, name: str, request: str = "") -> tuple[bool, int, int, str]:
        """Return whether a model is served as registered, its numbers of ready and wanted instances, and its last error.

        With `request`, the ID of a `register` call, a later change by another client is an error.
        """
        with self._lock:
            model = self._state.models.get(name)
            if request and (model is None or model.request != request):
                what = "unregistered it" if model is None else "registered it or rolled it back"
                return False, 0, 0, f"in the meantime, another client has {what}"
            gone = model is None and not any(name in one for one in self._observed.values())
            if model is None:
                return gone, 0, 0, ""
            wanted = self._wanted.get(name)
            served = sum(
                one[name].instances
                for one in self._observed.values()
                if name in one and one[name].digest == model.digest
            )
            done = (
                wanted is not None and model.rolling is None and wanted.digest == model.digest
                and wanted.instances == model.spec.instances and is_served(name, wanted, self._observed)
            )  # fmt: skip
            return done, served, model.spec.instances, self._steps.error(name)

    def drained(self, node: str) -> bool:
        """Return whether a draining node is empty: it has no models and no holders, and balancers do not use it."""
        with self._lock:
            return (node not in self._observed or (node, ALL_MODELS) in self._left) and not (
                self._observed.get(node)
                or any(wanted.nodes.get(node) for wanted in self._wanted.values())
            )

    def nodes(self) -> list[tuple[str, str, bool, bytes, str]]:
        """Return the ID, address, draining flag, encoded daemon status (empty if missing) and error of each node."""
        with self._lock:
            draining, statuses = self._placement.draining, self._statuses
            wrong = {node: self._cluster.fault(node) for node in self._cluster.alive}
            return [
                (node, address, node in draining, statuses.get(node, b""), "" if node in statuses else wrong[node])
                for node, address in self._cluster.alive.items()
            ]  # fmt: skip

    def view(self, balancer: str, generation: int) -> tuple[int, bytes]:
        """Return the state for a balancer; see `Balancers.answer`."""
        with self._lock:
            if not self._state.balanced:
                self._state.balanced = True
                self._save()
            return self._balancers.answer(balancer, generation)

    def logs(self, name: Optional[str], lines: int) -> dict[str, list[str]]:
        """Return log lines by node."""
        return self._cluster.logs(name, lines)

    def stop(self) -> None:
        """Stop all daemons and delete all state. The loop is stopped first, so that it does not start daemons again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_LOOP_ENDS_S)
        with self._lock:
            self._store.remove()
            for model in self._state.models.values():
                self._placement.release(model)
            self._state = ControllerState()
            self._placement = Placement(self._cluster, self._state)
        self._cluster.stop()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_INTERVAL_S):
            self._try_step()

    def _try_step(self) -> None:
        try:
            self.step()
        except Exception:  # Ray raises many kinds of errors, and most are transient
            _logger.exception("controller step failed; retrying")

    def step(self) -> None:
        """Poll once and start the necessary steps. Called by the loop."""
        if self._store.is_superseded():
            self._stopping.set()
            return
        with self._lock:
            if self._unsaved:
                self._save()
            also = {"among": self._state.among, "draining": list(self._state.draining)}
            settings = {**self._state.settings, **also}
            holders = self._placement.all()
        self._cluster.poll(settings, holders)
        with self._lock:
            self._steps.finish(self._state.models)
            names = watched(self._state.models)
        found = self._cluster.poll_daemons()
        seen = self._cluster.canary_counters(names)
        with self._lock:
            self._statuses = {node: state.status for node, state in found.items()}
            self._observed = {node: state.served for node, state in found.items()}
            moved = self._placement.replace_misplaced()
            if moved is not None:
                self._save(*moved)
            self._wanted = {
                name: self._placement.wanted(one) for name, one in self._state.models.items()
            }
            self._advance_rollouts(seen)
            self._left = self._balancers.left()
            plan = reconcile(self._wanted, self._observed, self._left, self._state.owns_name)
            going = nodes_to_clear(
                self._placement.draining, self._wanted, self._observed, plan.leaving
            )
            lasting = {node: state.lasting for node, state in found.items()}
            shown = with_shares(lasting, self._state.models)
            there = self._cluster.alive, shown, self._observed
            self._balancers.publish(*there, plan.leaving | going, self._state.models)
            for node in self._cluster.surplus:
                if (node, ALL_MODELS) in going & self._left and not self._observed[node]:
                    self._cluster.dismiss(node)
            for step in plan.steps:
                self._steps.begin(step, self._state.models)
            self._settle()

    def _advance_rollouts(self, seen: Mapping[str, Mapping[str, CanaryCounters]]) -> None:
        for name, model in self._state.models.items():
            if model.rolling is None:
                continue
            refused = self._steps.error(name)
            self._steps.forget_error(name)
            if refused:
                self._rollouts.roll_back(name, model, refused)
            elif not self._advance(name, model, seen.get(name, {})):
                continue
            self._placement.make_holders(model)
            self._wanted[name] = self._placement.wanted(model)
            self._save(name)

    def _advance(
        self, name: str, model: RegisteredModel, seen: Mapping[str, CanaryCounters]
    ) -> bool:
        """Advance a rollout. If it cannot be evaluated, roll it back, without affecting other models."""
        try:
            return self._rollouts.advance(name, model, self._wanted[name], self._observed, seen)
        except Exception as error:
            _logger.exception("could not evaluate the new version of model %s", name)
            self._rollouts.roll_back(name, model, f"it could not be evaluated: {error!r}")
            return True

    def _settle(self) -> None:
        """Clean up models that are served as registered: release retired holders and forget old versions."""
        for name, model in self._state.models.items():
            if not (model.retired or model.older or self._steps.error(name)):
                continue  # the case of nearly all models at each poll
            if not is_served(name, self._wanted[name], self._observed):
                continue
            self._steps.forget_error(name)  # errors of nodes that should no longer serve it
            settled = versions.settle(model)
            if model.retired or settled:
                self._placement.release_retired(model)
                self._save(name)

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Store the change that the block makes to a model. Undo the change if storing it fails."""
        self._store.check()
        before = copy.deepcopy(self._state.models.get(name))
        try:
            yield
            self._save(name)
        except BaseException:
            now = self._state.models.pop(name, None)
            if before is not None:
                self._state.models[name] = before
            self._placement.release_new(now, before)
            raise
        self._steps.forget_error(name)

    def _save(self, *models: str) -> None:
        self._unsaved.update(models)
        self._store.write(self._state, *sorted(self._unsaved))
        self._unsaved.clear()


# ── The steps that node actors execute for the controller: those in progress, and the failures by model ──

#: Delay before a failed step is retried, in seconds.
_RETRY_S = 30.0
#: Maximum number of concurrent steps per node. Its actor needs free threads to report its state.
_AT_ONCE = 12


class _Running(NamedTuple):
    """A step in progress. `digest` identifies the version that the node should serve as of the start of the step."""

    step: Step
    digest: str
    reference: Any


class _Failed(NamedTuple):
    """The error of a model's last failed step on a node, and its time."""

    text: str
    at: float


class Steps:
    """The steps in progress. A node executes only one step at a time for each model.

    Args:
        cluster: provides the node actors
        clock: function like time.monotonic
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._running: dict[tuple[str, str], _Running] = {}
        #: Node -> number of its steps in progress.
        self._at: Counter[str] = Counter()
        #: Model -> node -> its last failure there, the newest one last.
        self._failed: dict[str, dict[str, _Failed]] = {}

    def begin(self, step: Step, models: Mapping[str, RegisteredModel]) -> None:
        """Start a step on a node, unless one for this model is in progress there or has failed recently."""
        key = step.node, step.model
        failed = self._failed.get(step.model, {}).get(step.node)
        if key in self._running or (failed is not None and self._clock() - failed.at < _RETRY_S):
            return
        if self._at[step.node] >= _AT_ONCE:
            return
        digest = ""
        question: tuple[Any, ...] = "unregister", step.model
        if not isinstance(step, Remove):
            model = models[step.model]
            one = model.on(step.node)
            digest = one.digest
            question = "scale", step.model, step.instances
            if isinstance(step, RegisterAction):
                spec = msgspec.msgpack.encode(one.spec)
                payloads = self._cluster.shared(digest, one.payloads)
                devices = self._cluster.devices(model.holders, step.node)
                question = "register", spec, payloads, step.instances, devices, step.replace, digest
                question = *question, one.environment
        self._running[key] = _Running(step, digest, self._cluster.ask(step.node, *question))
        self._at[step.node] += 1

    def finish(self, models: Mapping[str, RegisteredModel]) -> None:
        """Process the steps that have ended."""
        ended = self._cluster.ended({key: one.reference for key, one in self._running.items()})
        for key, (step, digest, _) in list(self._running.items()):
            if key not in ended and step.node in self._cluster.alive:
                continue
            del self._running[key]
            self._at[step.node] -= 1
            error = ended.get(key, "")
            self._cluster.discard_state(step.node)  # it may be outdated
            if error and not self._is_wanted(step, digest, models):
                _logger.warning("step %s failed: %s", step, error)
                continue
            self._forget(step.model, step.node)
            if error:
                failed = _Failed(f"{step.node[:8]}: {error}", self._clock())
                self._failed.setdefault(step.model, {})[step.node] = failed
        for model, faults in list(self._failed.items()):
            for node in faults.keys() - self._cluster.alive.keys():
                self._forget(model, node)
        if not self._running:
            self._cluster.release_shared()

    def error(self, model: str) -> str:
        """Return the error of a model's last failed step; "" if there is none."""
        faults = self._failed.get(model)
        return "" if not faults else list(faults.values())[-1].text

    def forget_error(self, model: str) -> None:
        """Forget a model's errors, because its registration has changed or it is served as registered."""
        self._failed.pop(model, None)

    def _forget(self, model: str, node: str) -> None:
        faults = self._failed.get(model, {})
        faults.pop(node, None)
        if not faults:
            self._failed.pop(model, None)

    def _is_wanted(self, step: Step, digest: str, models: Mapping[str, RegisteredModel]) -> bool:
        """Return whether the node of a failed step is alive and should still serve the step's version."""
        model = models.get(step.model)
        if model is None or isinstance(step, Remove) or step.node not in self._cluster.alive:
            return False
        return model.on(step.node).digest == digest
