"""Synchronizes registrations, so that all nodes serve the same models.

`plan_sync` is a pure function that computes the steps from each node's registrations; `carry_out` executes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

import msgspec

from pytriton._control.connection import Report
from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.daemon_client import DaemonClient
from pytriton.exceptions import (
    FleetError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonDaemonError,
    PyTritonError,
)


class Copy(NamedTuple):
    """Step that registers `source`'s model on `node`. With `replace`, it replaces a different registration."""

    node: str
    model: str
    source: str
    replace: bool = False


class SyncRemoval(NamedTuple):
    """Step that unregisters a model on `node` because the source lacks it."""

    node: str
    model: str


Step = Union[Copy, SyncRemoval]


class SyncPlan(NamedTuple):
    """The steps of a `sync`, and the models with conflicting registrations (model -> nodes)."""

    steps: list[Step]
    conflicts: dict[str, list[str]]


#: Node -> model -> digest of its registration.
Kept = Mapping[str, Mapping[str, str]]


def plan_sync(kept: Kept, source: Optional[str] = None) -> SyncPlan:
    """Return the steps after which all nodes have the same registrations.

    Without `source`, the result is the union of all registrations: nothing is replaced or removed, and a model whose
    registrations differ is a conflict, for which there are no steps. With `source`, that node is copied.

    Raises:
        PyTritonBadParameterError: `source` is not one of the nodes.
    """
    if source is not None and source not in kept:
        raise PyTritonBadParameterError(
            f"source={source!r} is not one of the nodes that answered: {', '.join(kept)}"
        )
    return _union(kept) if source is None else _as(kept, source)


def _union(kept: Kept) -> SyncPlan:
    plan = SyncPlan([], {})
    models = dict.fromkeys(model for registered in kept.values() for model in registered)
    for model in models:
        holders = [node for node, registered in kept.items() if model in registered]
        if len({kept[node][model] for node in holders}) > 1:
            plan.conflicts[model] = holders
            continue
        missing = (node for node in kept if node not in holders)
        plan.steps.extend(Copy(node, model, holders[0]) for node in missing)
    return plan


def _as(kept: Kept, source: str) -> SyncPlan:
    plan = SyncPlan([], {})
    truth = kept[source]
    for model, digest in truth.items():
        for node, registered in kept.items():
            if registered.get(model) != digest:
                plan.steps.append(Copy(node, model, source, replace=model in registered))
    for node, registered in kept.items():
        plan.steps.extend(SyncRemoval(node, model) for model in registered if model not in truth)
    return plan


def carry_out(
    plan: SyncPlan, clients: Mapping[str, DaemonClient], report: Report | None
) -> list[str]:
    """Execute the steps of a plan and return a description of each.

    Steps run one after the other, so that only one payload is in memory and not all nodes load at once. A payload is
    fetched once for all nodes that lack it, and must match its digest.

    Raises:
        FleetError: some steps failed; the others were carried out
    """
    done: list[str] = []
    failures: dict[str, Exception] = {}
    source = _SyncSource(clients)
    for step in plan.steps:
        try:
            done.append(_take(step, clients, source, report))
        except PyTritonError as error:  # noqa: PERF203
            failures[step.node] = error
    if failures:
        texts = [f"{node}: {error}" for node, error in failures.items()]
        raise FleetError(
            f"The nodes still differ. Completed steps: {'; '.join(done) or 'none'}.\n"
            + "\n".join(texts),
            failures=failures,
        )
    return done


class _SyncSource:
    """Fetches registrations with their payloads, and caches the last one."""

    def __init__(self, clients: Mapping[str, DaemonClient]) -> None:
        self._clients = clients
        self._newest: Optional[tuple[str, messages.KeptRegistration]] = None

    def fetch(self, node: str, model: str) -> messages.KeptRegistration:
        """Fetch the registration of a model from a node.

        Raises:
            PyTritonDaemonError: the registration does not match its digest
        """
        if self._newest is None or (self._newest[0], self._newest[1].spec.name) != (node, model):
            (kept,) = self._clients[node].registrations(model, payloads=True)
            if registration_digest(kept.spec, kept.payloads) != kept.digest:
                raise PyTritonDaemonError(
                    f"{node} sent a model {model!r} that does not match its digest: it was damaged in transit, "
                    f"or the daemon runs a different version"
                )
            self._newest = node, kept
        return self._newest[1]


def _take(
    step: Step, clients: Mapping[str, DaemonClient], source: _SyncSource, report: Report | None
) -> str:
    client = clients[step.node]
    if isinstance(step, SyncRemoval):
        with contextlib.suppress(ModelNotFoundError):  # already unregistered
            client.unregister(step.model)
        return f"{step.node}: {step.model} was unregistered"
    kept = source.fetch(step.source, step.model)
    spec = msgspec.structs.replace(kept.spec, lease=None)
    if spec.autoscale is None:
        # A model that was scaled down keeps the devices of all its former instances.
        spec = msgspec.structs.replace(spec, devices=spec.devices[: spec.instances])
    message = messages.Register(spec, replace=step.replace)
    try:
        client.register_prepared(message, kept.payloads, report)
    except ModelExistsError:
        if step.replace:
            raise
        return f"{step.node}: {step.model} was registered by another client"
    verb = "was replaced" if step.replace else "was registered"
    return f"{step.node}: {step.model} {verb}, as on {step.source}"
