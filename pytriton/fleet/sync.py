"""Synchronisation: the registrations that have to travel so that all nodes serve the same, and their travel.

`plan_sync` is pure: a table of nodes and digests comes in, steps come out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

import msgspec

from pytriton._control.registration_progress import Report
from pytriton._protocol import messages
from pytriton._protocol.registration_digest import registration_digest
from pytriton.daemon import DaemonClient
from pytriton.exceptions import (
    FleetError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonDaemonError,
    PyTritonError,
)


class Copy(NamedTuple):
    """Register on `node` what `source` has; with `replace`, in the place of something else."""

    node: str
    model: str
    source: str
    replace: bool = False


class Removal(NamedTuple):
    """Unregister on `node` what the source does not have."""

    node: str
    model: str


Step = Union[Copy, Removal]


class Plan(NamedTuple):
    """The steps of a `sync`, and the models of which nodes have different registrations (model -> nodes)."""

    steps: list[Step]
    conflicts: dict[str, list[str]]


#: Node -> model -> digest of its registration.
Kept = Mapping[str, Mapping[str, str]]


def plan_sync(kept: Kept, source: Optional[str] = None) -> Plan:
    """Return what makes all nodes alike.

    Without `source` the union of all nodes is the truth: nothing is replaced or removed, and a model of which nodes
    have different registrations is a conflict, which is left alone. With it, that node is the truth.

    Raises:
        PyTritonBadParameterError: there is no such node.
    """
    if source is not None and source not in kept:
        raise PyTritonBadParameterError(
            f"source={source!r} is none of the nodes that answer: {', '.join(kept)}"
        )
    return _union(kept) if source is None else _as(kept, source)


def _union(kept: Kept) -> Plan:
    plan = Plan([], {})
    models = dict.fromkeys(model for registered in kept.values() for model in registered)
    for model in models:
        holders = [node for node, registered in kept.items() if model in registered]
        if len({kept[node][model] for node in holders}) > 1:
            plan.conflicts[model] = holders
            continue
        missing = (node for node in kept if node not in holders)
        plan.steps.extend(Copy(node, model, holders[0]) for node in missing)
    return plan


def _as(kept: Kept, source: str) -> Plan:
    plan = Plan([], {})
    truth = kept[source]
    for model, digest in truth.items():
        for node, registered in kept.items():
            if registered.get(model) != digest:
                plan.steps.append(Copy(node, model, source, replace=model in registered))
    for node, registered in kept.items():
        plan.steps.extend(Removal(node, model) for model in registered if model not in truth)
    return plan


def carry_out(plan: Plan, clients: Mapping[str, DaemonClient], report: Report | None) -> list[str]:
    """Take the steps of a plan; return a sentence for each.

    One after the other: a payload is in memory once, and nodes are not all loading at once. It is fetched once for all
    nodes that lack it, and has to be what its digest says.

    Raises:
        FleetError: some failed; the others were taken
    """
    done: list[str] = []
    failures: dict[str, Exception] = {}
    source = _Source(clients)
    for step in plan.steps:
        try:
            done.append(_take(step, clients, source, report))
        except PyTritonError as error:  # noqa: PERF203
            failures[step.node] = error
    if failures:
        texts = [f"{node}: {error}" for node, error in failures.items()]
        raise FleetError(
            f"The nodes are not all alike yet. Done: {'; '.join(done) or 'nothing'}.\n"
            + "\n".join(texts),
            failures=failures,
        )
    return done


class _Source:
    """Registrations with their payloads, of which it keeps the newest."""

    def __init__(self, clients: Mapping[str, DaemonClient]) -> None:
        self._clients = clients
        self._newest: Optional[tuple[str, messages.KeptRegistration]] = None

    def fetch(self, node: str, model: str) -> messages.KeptRegistration:
        """Return what a node has registered.

        Raises:
            PyTritonDaemonError: it is not what its digest says
        """
        if self._newest is None or (self._newest[0], self._newest[1].spec.name) != (node, model):
            (kept,) = self._clients[node].registrations(model, payloads=True)
            if registration_digest(kept.spec, kept.payloads) != kept.digest:
                raise PyTritonDaemonError(
                    f"{node} sent another model {model!r} than its digest says: it was damaged on the way, or that "
                    "daemon is of another version"
                )
            self._newest = node, kept
        return self._newest[1]


def _take(
    step: Step, clients: Mapping[str, DaemonClient], source: _Source, report: Report | None
) -> str:
    client = clients[step.node]
    if isinstance(step, Removal):
        with contextlib.suppress(ModelNotFoundError):  # as it should be
            client.unregister(step.model)
        return f"{step.node}: {step.model} was unregistered"
    kept = source.fetch(step.source, step.model)
    spec = msgspec.structs.replace(kept.spec, trial=None)
    message = messages.Register(spec, replace=step.replace)
    try:
        client.register_prepared(message, kept.payloads, report)
    except ModelExistsError:
        if step.replace:
            raise
        return f"{step.node}: {step.model} was registered by somebody else"
    verb = "was replaced" if step.replace else "was registered"
    return f"{step.node}: {step.model} {verb}, as on {step.source}"
