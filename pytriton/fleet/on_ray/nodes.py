"""The nodes of a fleet, among those of Ray, and those that leave it: pure.

A fleet that may use fewer nodes than it has leaves those that are too many as `fleet drain` does: first elsewhere, then
gone. So may a node that drains, where another one is there to take its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Optional

from pytriton.fleet.on_ray.reconciler import Observed, Wanted

#: In (node, model): the node itself, which balancers leave altogether.
ALL_MODELS = ""
#: The id of no node: Ray wants at least one in a list.
_NOWHERE = "none"


class Members(NamedTuple):
    """The nodes that a fleet uses, and those that it has and is to leave."""

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
    """Return which nodes are the fleet's; the same ones each time, as long as nothing has changed.

    Args:
        alive: nodes that live
        most: how many it may use; None: all
        had: nodes on which it has an actor
        among: nodes that it was confined to before
        draining: nodes that are to serve nothing
        load: node -> how many instances have their place there
    """
    if most is None:
        return Members(sorted(alive), [])
    # One that has been drained and left must not come back.
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
    """Return (node, `ALL_MODELS`) of each node that is to be left, and that nothing is to be served on any more.

    Args:
        leaving: nodes that are to serve nothing
        wanted: by model
        observed: by node; only nodes that answer
        models: (node, model) that is to go
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
    """Return where a holder may be, in the one expression that Ray takes for a label; empty: anywhere.

    Args:
        wish: the user's own expression for the node's id: `ID`, `!ID`, `in(ID,…)` or `!in(ID,…)`; empty: none
        but: nodes that drain
        only: the fleet's nodes where they are not the whole cluster
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
