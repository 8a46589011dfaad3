"""The nodes and models of a fleet, as it tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Protocol

import msgspec

from pytriton._protocol import messages
from pytriton.autoscale import Instances


class Fleet(Protocol):
    """The client that a model is asked of."""

    def scale(self, name: str, instances: Any) -> Any:
        """Have so many instances."""

    def unregister(self, name: str) -> None:
        """Stop serving a model."""


class NodeStatus(msgspec.Struct, frozen=True):
    """One node: the status of its daemon, or why there is none."""

    node: str
    status: Optional[messages.Status] = None
    error: str = ""


class FleetModel:
    """A model of a fleet, by its name; the facts are those of the moment it was asked for.

    Attributes:
        name: its name
        by_node: what each daemon that serves it says of it
        missing: nodes that answer, but do not serve it
    """

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        by_node: dict[str, messages.ModelInfo],
        missing: list[str],
    ) -> None:
        self._fleet = fleet
        self.name = name
        self.by_node = by_node
        self.missing = missing

    @property
    def ready(self) -> int:
        """The number of instances that serve, on all nodes together."""
        return sum(
            one.state == "ready" and not one.spare
            for info in self.by_node.values()
            for one in info.instances
        )

    @property
    def state(self) -> str:
        """The state on all nodes: one word where they agree, or else each with its nodes, the worst first."""
        nodes: dict[str, list[str]] = {}
        for node, info in self.by_node.items():
            nodes.setdefault(info.state, []).append(node)
        if len(nodes) == 1:
            return next(iter(nodes))
        worst_first = sorted(nodes, key=lambda state: state in messages.SERVED_STATES)
        worst_first.sort(key=lambda state: state == "ready")
        return "; ".join(f"{state} on {', '.join(nodes[state])}" for state in worst_first)

    @property
    def reasons(self) -> dict[str, str]:
        """Why it is degraded, unready or failed, by node."""
        return {node: info.error for node, info in self.by_node.items() if info.error}

    @property
    def instances(self) -> int:
        """The number of instances that there should be, on all nodes together."""
        return sum(not one.spare for info in self.by_node.values() for one in info.instances)

    @property
    def urls(self) -> dict[str, str]:
        """Its HTTP address for clients on each node."""
        return {node: info.url for node, info in self.by_node.items()}

    def scale(self, instances: Instances) -> None:
        """Have so many instances: on each node, or in all where Ray places them; see the `scale` of the client."""
        self._fleet.scale(self.name, instances)

    def unregister(self) -> None:
        """Stop serving it on all nodes; see `FleetClient.unregister`."""
        self._fleet.unregister(self.name)

    def __repr__(self) -> str:
        return f"FleetModel({self.name!r}, nodes={list(self.by_node)}, missing={self.missing})"


def models_of(
    fleet: Fleet, told: Mapping[str, list[messages.ModelInfo]], *, everywhere: bool
) -> list[FleetModel]:
    """Return the models that nodes tell of, in the order of the first that does.

    Args:
        fleet: they are asked of
        told: node -> its models
        everywhere: each node should serve each of them
    """
    by_model: dict[str, dict[str, messages.ModelInfo]] = {}
    for node, infos in told.items():
        for info in infos:
            by_model.setdefault(info.name, {})[node] = info
    return [
        FleetModel(fleet, name, found, [node for node in told if everywhere and node not in found])
        for name, found in by_model.items()
    ]
