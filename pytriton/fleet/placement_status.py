"""The status of a fleet's nodes and models, as returned by a fleet's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Protocol

import msgspec

from pytriton._protocol import messages
from pytriton.autoscale import Instances

#: State of a model that a fleet on Ray has served and will serve again, but that no node serves at the moment.
ABSENT = "absent"


class Fleet(Protocol):
    """Interface of the client that a model belongs to."""

    def scale(self, name: str, instances: Any) -> Any:
        """Change the number of instances."""

    def unregister(self, name: str) -> None:
        """Stop serving a model."""


class NodeStatus(msgspec.Struct, frozen=True):
    """The status of a node's daemon, or the reason why it is missing."""

    node: str
    status: Optional[messages.Status] = None
    error: str = ""


class FleetModel:
    """A model of a fleet, as it was when the fleet was queried.

    Attributes:
        name: name of the model
        by_node: node -> state of the model, for each node that serves it
        missing: nodes that answer but do not serve the model
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
        """The number of ready instances on all nodes."""
        return sum(
            one.state == "ready" and not one.standby
            for info in self.by_node.values()
            for one in info.instances
        )

    @property
    def state(self) -> str:
        """The state on all nodes: one word if they agree, otherwise each state with its nodes, the worst first."""
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
        """Node -> reason why the model is degraded, not ready or failed there."""
        return {node: info.error for node, info in self.by_node.items() if info.error}

    @property
    def instances(self) -> int:
        """The desired number of instances on all nodes."""
        return sum(not one.standby for info in self.by_node.values() for one in info.instances)

    @property
    def urls(self) -> dict[str, str]:
        """The model's HTTP address on each node."""
        return {node: info.url for node, info in self.by_node.items()}

    def scale(self, instances: Instances) -> None:
        """Change the number of instances: on each node or, for a fleet on Ray, in total. See the client's `scale`."""
        self._fleet.scale(self.name, instances)

    def unregister(self) -> None:
        """Stop serving the model on all nodes; see `FleetClient.unregister`."""
        self._fleet.unregister(self.name)

    def __repr__(self) -> str:
        return f"FleetModel({self.name!r}, nodes={list(self.by_node)}, missing={self.missing})"


def models_of(
    fleet: Fleet, models_by_node: Mapping[str, list[messages.ModelInfo]], *, everywhere: bool
) -> list[FleetModel]:
    """Combine the models that the nodes report, in the order in which they first appear.

    Args:
        fleet: client of the fleet
        models_by_node: node -> its models
        everywhere: whether every node should serve every model
    """
    by_model: dict[str, dict[str, messages.ModelInfo]] = {}
    for node, infos in models_by_node.items():
        for info in infos:
            by_model.setdefault(info.name, {})[node] = info
    return [
        FleetModel(
            fleet,
            name,
            found,
            [node for node in models_by_node if everywhere and node not in found],
        )
        for name, found in by_model.items()
    ]
