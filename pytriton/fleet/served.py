"""The nodes and models of a fleet, as it tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import msgspec

from pytriton.autoscale import Instances
from pytriton.ipc import messages

if TYPE_CHECKING:
    from pytriton.fleet.client import FleetClient


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
        fleet: FleetClient,
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
    def instances(self) -> int:
        """The number of instances that there should be, on all nodes together."""
        return sum(not one.spare for info in self.by_node.values() for one in info.instances)

    @property
    def urls(self) -> dict[str, str]:
        """Its HTTP address for clients on each node."""
        return {node: info.url for node, info in self.by_node.items()}

    def scale(self, instances: Instances) -> None:
        """Have so many instances on each node; see `FleetClient.scale`."""
        self._fleet.scale(self.name, instances)

    def rollback(self) -> None:
        """Put back what it was before it was last replaced; see `FleetClient.rollback`."""
        self._fleet.rollback(self.name)

    def unregister(self) -> None:
        """Stop serving it on all nodes; see `FleetClient.unregister`."""
        self._fleet.unregister(self.name)

    def __repr__(self) -> str:
        return f"FleetModel({self.name!r}, nodes={list(self.by_node)}, missing={self.missing})"
