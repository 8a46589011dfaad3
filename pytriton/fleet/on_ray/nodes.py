"""Selects the nodes of a fleet among those of Ray, and those that leave it. Pure.

If a fleet is limited to fewer nodes than it has, the surplus ones are drained as by `fleet drain`: instances start
elsewhere first. So does a draining node, if another one can replace it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Optional

from pytriton.fleet.on_ray.reconciler import Observed, Wanted

#: Used in (node, model) for the whole node, which balancers remove completely.
ALL_MODELS = ""
#: An ID that no node has: Ray requires a non-empty list.
_NOWHERE = "none"


class Members(NamedTuple):
    """The nodes that a fleet uses, and those that it has and should leave."""

    kept: list[str]
    surplus: list[str]


def members(
    alive: Collection[str],
    most: Optional[int],
    had: Collection[str],
    among: Collection[str] = (),
    draining: Collection[str] = (),
    load: Mapping[str, int] = {},
) -> Members:
    """Return the fleet's nodes; the choice is stable as long as nothing changes.

    Args:
        alive: live nodes
        most: maximum number of nodes; None: all
        had: nodes with an actor of the fleet
        among: nodes of the previous choice
        draining: nodes that should serve nothing
        load: node -> number of instances placed there
    """
    if most is None:
        return Members(sorted(alive), [])
    # A drained node that has left must not come back.
    may = [one for one in alive if one in had or one not in draining]
    may.sort(
        key=lambda one: (one in draining, one not in among, one not in had, -load.get(one, 0), one)
    )
    return Members(sorted(may[:most]), sorted(one for one in may[most:] if one in had))


def departing(
    leaving: Collection[str],
    wanted: Mapping[str, Wanted],
    observed: Observed,
    models: Collection[tuple[str, str]],
) -> set[tuple[str, str]]:
    """Return (node, `ALL_MODELS`) of each leaving node on which nothing is wanted any more.

    Args:
        leaving: nodes that should serve nothing
        wanted: wanted state by model
        observed: served models by node; only nodes that answer
        models: (node, model) to be removed
    """
    needed = {node for one in wanted.values() for node in one.nodes} if leaving else set()
    return {
        (node, ALL_MODELS)
        for node in leaving
        if node in observed
        and node not in needed
        and all((node, model) in models for model in observed[node])
    }


def nodes_expression(wish: str, but: Sequence[str], only: Optional[Sequence[str]]) -> str:
    """Return the single expression that Ray accepts for the node label of a holder; empty: any node.

    Args:
        wish: the user's own expression for the node's ID: `ID`, `!ID`, `in(ID,…)` or `!in(ID,…)`; empty: none
        but: draining nodes
        only: the fleet's nodes, if they are not the whole cluster
    """
    inner = wish.lstrip("!")
    inner = inner[3:-1] if inner.startswith("in(") else inner
    named = [one.strip() for one in inner.split(",") if one.strip()]
    if wish.startswith("!"):
        but = [*but, *named]
    elif named:
        only = [one for one in named if only is None or one in only]
    if only is not None:
        return f"in({','.join(one for one in only if one not in but) or _NOWHERE})"
    return f"!in({','.join(but)})" if but else ""
