"""The steps that node actors execute for the controller: those in progress, and the failures by model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from pytriton.fleet.on_ray.cluster import Cluster
from pytriton.fleet.on_ray.controller_state import RegisteredModel
from pytriton.fleet.on_ray.reconciler import RegisterAction, Remove, Step

_logger = logging.getLogger("pytriton.fleet.on_ray")
#: Delay before a failed step is retried, in seconds.
_RETRY_S = 30.0
#: Maximum number of steps per node: its actor needs free threads to report what it serves.
_AT_ONCE = 12


class _Running(NamedTuple):
    """A step in progress: `digest` is the version that was wanted there when it started."""

    step: Step
    digest: str
    reference: Any


class _Failed(NamedTuple):
    """A model's last failure on a node, and its time."""

    text: str
    at: float


class Steps:
    """The steps in progress. A node executes one step at a time for each model.

    Args:
        cluster: provides the node actors
        clock: the time in seconds
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
        """Start a step on a node, unless one is in progress, or the last one has failed recently."""
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
            self._cluster.forget_look(step.node)  # it may be outdated
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
            self._cluster.share_nothing()

    def error(self, model: str) -> str:
        """Return a model's last failure; "" if there is none."""
        faults = self._failed.get(model)
        return "" if not faults else list(faults.values())[-1].text

    def forget_error(self, model: str) -> None:
        """Clear a model's failures: something else is wanted now, or it is served as wanted."""
        self._failed.pop(model, None)

    def _forget(self, model: str, node: str) -> None:
        faults = self._failed.get(model, {})
        faults.pop(node, None)
        if not faults:
            self._failed.pop(model, None)

    def _is_wanted(self, step: Step, digest: str, models: Mapping[str, RegisteredModel]) -> bool:
        """Whether a failure concerns the wanted version, and a node that is alive."""
        model = models.get(step.model)
        if model is None or isinstance(step, Remove) or step.node not in self._cluster.alive:
            return False
        return model.on(step.node).digest == digest
