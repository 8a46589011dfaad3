"""Synchronisation: the registrations that have to travel so that all nodes serve the same, and their travel.

`plan_sync` is pure: a table of nodes and digests comes in, steps come out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

from pytriton._control.registration_progress import Report
from pytriton.daemon import DaemonClient
from pytriton.exceptions import (
    FleetError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonError,
)
from pytriton.ipc import messages


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
    for node, registered in kept.items():
        for model, digest in truth.items():
            if registered.get(model) != digest:
                plan.steps.append(Copy(node, model, source, replace=model in registered))
        plan.steps.extend(Removal(node, model) for model in registered if model not in truth)
    return plan


def carry_out(plan: Plan, clients: Mapping[str, DaemonClient], report: Report | None) -> list[str]:
    """Take the steps of a plan; return a sentence for each.

    One after the other: a payload is in memory once, and nodes are not all loading at once.

    Raises:
        FleetError: some failed; the others were taken
    """
    done: list[str] = []
    failures: dict[str, Exception] = {}
    for step in plan.steps:
        try:
            done.append(_take(step, clients, report))
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


def _take(step: Step, clients: Mapping[str, DaemonClient], report: Report | None) -> str:
    client = clients[step.node]
    if isinstance(step, Removal):
        with contextlib.suppress(ModelNotFoundError):  # as it should be
            client.unregister(step.model)
        return f"{step.node}: {step.model} was unregistered"
    (kept,) = clients[step.source].registrations(step.model, payloads=True)
    message = messages.Register(kept.spec, replace=step.replace)
    with contextlib.suppress(ModelExistsError):  # somebody else was faster
        client.register_prepared(message, kept.payloads, report)
    verb = "was replaced" if step.replace else "was registered"
    return f"{step.node}: {step.model} {verb}, as on {step.source}"
