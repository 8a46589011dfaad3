"""Fleets: a client that operates several daemons as one, and the load balancer in front of them.

This package contains operations on many nodes. It is client code, which uses daemons like any other client and
imports only public modules. There is no fleet process, no scheduler and no consensus protocol; see
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
    """Import a public name on first use."""
    from importlib import import_module

    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)
