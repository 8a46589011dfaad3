"""The controller's state: all that it is told, and where it is kept while Ray may start the controller again."""

from __future__ import annotations

from typing import Any, Optional

import msgspec

from pytriton.fleet.on_ray import NAMESPACE, import_ray
from pytriton.ipc import messages


class Store:
    """The controller's state in Ray's key-value store."""

    def __init__(self, fleet: str) -> None:
        self._kv = import_ray("ray.experimental.internal_kv")
        self._place = {"key": f"fleet-{fleet}".encode(), "namespace": NAMESPACE.encode()}

    def read(self) -> Optional[bytes]:
        """Return what was written; None when nothing was."""
        kept: Optional[bytes] = self._kv._internal_kv_get(**self._place)
        return kept

    def write(self, value: bytes) -> None:
        """Keep a state instead of the former one."""
        self._kv._internal_kv_put(value=value, **self._place)

    def remove(self) -> None:
        """Forget it."""
        self._kv._internal_kv_del(**self._place)


class Model(msgspec.Struct):
    """A model as it was registered with the fleet: `serial` numbers its holders, which are (slot, serial) each."""

    spec: messages.ModelSpec
    payloads: list[bytes]
    resources: dict[str, Any]
    holders: list[str]
    digest: str = ""
    serial: int = 0
    #: Holders whose place is to be left once others serve.
    retired: list[str] = msgspec.field(default_factory=list)


class State(msgspec.Struct):
    """All that the controller is told."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    models: dict[str, Model] = msgspec.field(default_factory=dict)
    draining: list[str] = msgspec.field(default_factory=list)
    #: The nodes that holders were last confined to, where the fleet is not to have the whole cluster.
    among: list[str] = msgspec.field(default_factory=list)
