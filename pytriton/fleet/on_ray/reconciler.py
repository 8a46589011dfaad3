"""Pure functions that compute the steps after which each node serves the instances that Ray has placed on it.

    wanted (where Ray has placed instances) + observed (what each daemon serves) ▶ steps

Instances are started elsewhere before others are removed: nothing is removed while a step of the model is still in
progress, Ray has not placed all of its instances, or a balancer has not applied the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Union


class Wanted(NamedTuple):
    """The desired state of a model.

    Attributes:
        digest: digest of the model's registration
        nodes: node -> number of instances that Ray has placed there
        pending: number of instances that Ray has not placed yet
        former: during a rollout, digest of the old version, which all nodes that are not in `fresh` serve
        fresh: nodes that should serve the new version
    """

    digest: str
    nodes: Mapping[str, int]
    pending: int = 0
    former: str = ""
    fresh: frozenset[str] = frozenset()

    @property
    def instances(self) -> int:
        """The total number of instances."""
        return sum(self.nodes.values()) + self.pending

    def digest_on(self, node: str) -> str:
        """Return the digest of the version that a node should serve."""
        return self.former if self.former and node not in self.fresh else self.digest


class ModelOnNode(NamedTuple):
    """The digest and number of instances of a model on a node."""

    digest: str
    instances: int


class RegisterAction(NamedTuple):
    """Step that registers a model on a node. With `replace`, it replaces another version."""

    node: str
    model: str
    instances: int
    replace: bool = False


class ScaleAction(NamedTuple):
    """Step that changes a model's number of instances on a node."""

    node: str
    model: str
    instances: int


class Remove(NamedTuple):
    """Step that unregisters a model on a node, after balancers have stopped sending requests there."""

    node: str
    model: str


Step = Union[RegisterAction, ScaleAction, Remove]


class ReconcilePlan(NamedTuple):
    """The steps to take now, and each (node, model) that balancers must remove before further steps are possible."""

    steps: list[Step]
    leaving: set[tuple[str, str]]


#: Node -> model -> its state there.
Observed = Mapping[str, Mapping[str, ModelOnNode]]


def reconcile(
    wanted: Mapping[str, Wanted],
    observed: Observed,
    left: frozenset[tuple[str, str]] = frozenset(),
    is_ours: Callable[[str], bool] = lambda _: True,
) -> ReconcilePlan:
    """Compute the next steps.

    Args:
        wanted: model -> wanted state
        observed: node -> state of its models, for each node that answers
        left: each (node, model) that all balancers have removed
        is_ours: function that returns whether a model that is not wanted may be removed
    """
    plan = ReconcilePlan([], set())
    where = _by_model(observed)
    for model, one in wanted.items():
        additions = _plan_additions(model, one, observed)
        plan.steps.extend(additions)
        if not additions and not one.pending and all(node in observed for node in one.nodes):
            _plan_removals(model, one.nodes, where.get(model, {}), left, plan)
    for model in filter(is_ours, where.keys() - wanted.keys()):
        _plan_removals(model, {}, where[model], left, plan)
    return plan


def is_served(model: str, wanted: Wanted, observed: Observed) -> bool:
    """Return whether all nodes serve a model as they should."""
    places = all(
        observed.get(node, {}).get(model) == ModelOnNode(wanted.digest_on(node), count)
        for node, count in wanted.nodes.items()
    )
    return places and not wanted.pending and bool(wanted.nodes)


def _by_model(observed: Observed) -> dict[str, dict[str, ModelOnNode]]:
    """Return model -> node -> state, in a single pass: searching all nodes for each model would take seconds."""
    where: dict[str, dict[str, ModelOnNode]] = {}
    for node, models in observed.items():
        for model, served in models.items():
            where.setdefault(model, {})[node] = served
    return where


def _plan_additions(model: str, wanted: Wanted, observed: Observed) -> list[Step]:
    steps: list[Step] = []
    for node, count in wanted.nodes.items():
        if node not in observed:
            continue  # its daemon is starting, or it is about to be declared dead
        served = observed[node].get(model)
        digest = wanted.digest_on(node)
        if served is None or served.digest != digest:
            steps.append(RegisterAction(node, model, count, served is not None))
        elif served.instances < count:
            steps.append(ScaleAction(node, model, count))
    return steps


def _plan_removals(
    model: str,
    stays: Mapping[str, int],
    where: Mapping[str, ModelOnNode],
    left: frozenset[tuple[str, str]],
    plan: ReconcilePlan,
) -> None:
    for node, served in where.items():
        if node not in stays:
            plan.leaving.add((node, model))
            if (node, model) in left:
                plan.steps.append(Remove(node, model))
        elif served.instances > stays[node]:
            plan.steps.append(ScaleAction(node, model, stays[node]))
