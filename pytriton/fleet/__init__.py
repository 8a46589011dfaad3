"""Several daemons as one: a client that registers with all of them, and the configuration of their load balancer.

Belongs here: operations on many nodes at once. This is client code: it talks to daemons like any other client, and
imports the public modules. It has no process of its own, no scheduler and no consensus protocol: see
docs/operations/fleet.md.

    >>> fleet = pytriton.connect(nodes="dns:models", key_file="alice.pytriton-key")     # doctest: +SKIP
    >>> fleet.register(infer_fn)                                                        # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.fleet.canary import Canary as Canary
    from pytriton.fleet.client import FleetClient as FleetClient
    from pytriton.fleet.placement_status import FleetModel as FleetModel
    from pytriton.fleet.placement_status import NodeStatus as NodeStatus

__all__ = ["Canary", "FleetClient", "FleetModel", "NodeStatus"]

_NAMES = {
    "Canary": "pytriton.fleet.canary",
    "FleetClient": "pytriton.fleet.client",
    "FleetModel": "pytriton.fleet.placement_status",
    "NodeStatus": "pytriton.fleet.placement_status",
}


def __getattr__(name: str) -> Any:
    """Resolve a public name on its first use."""
    from importlib import import_module

    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)
