"""The controller's state: all that it is told, and where it is kept while Ray may start the controller again."""

from __future__ import annotations

from typing import Any, Optional

import msgspec

from pytriton.fleet.on_ray import NAMESPACE, import_ray
from pytriton.ipc import messages

_NAMESPACE = NAMESPACE.encode()


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


class Store:
    """The controller's state in Ray's key-value store: a change writes the model that it changes, and no payload anew.

    `fleet-F` has all that is of no model, `fleet-F/model/NAME` a model without its payloads, and
    `fleet-F/payloads/DIGEST` these. Payloads are written before the model that needs them.

    Args:
        fleet: whose state
        kv: Ray's module of its key-value store, or one that does as it does
    """

    def __init__(self, fleet: str, kv: Any = None) -> None:
        self._kv = import_ray("ray.experimental.internal_kv") if kv is None else kv
        self._head = f"fleet-{fleet}"
        self._models = f"{self._head}/model/"
        self._payloads = f"{self._head}/payloads/"
        #: The digest of each model that is kept.
        self._kept: dict[str, str] = {}

    def read(self) -> Optional[State]:
        """Return what was written; None when nothing was."""
        head = self._get(self._head)
        if head is None:
            return None
        state = msgspec.msgpack.decode(head, type=State)
        for key in self._keys(self._models):
            kept = self._get(key)
            if kept is not None:
                model = msgspec.msgpack.decode(kept, type=Model)
                payloads = self._get(f"{self._payloads}{model.digest}")
                model.payloads = msgspec.msgpack.decode(payloads or b"\x90", type=list[bytes])
                state.models[model.spec.name] = model
        self._kept = {name: model.digest for name, model in state.models.items()}
        needed = {f"{self._payloads}{digest}" for digest in self._kept.values()}
        for key in self._keys(self._payloads):  # of a change that a controller did not live to end
            if key not in needed:
                self._delete(key)
        return state

    def write(self, state: State, *models: str) -> None:
        """Keep a state as far as it has changed since it was kept: these models, and all that is of no model."""
        for name in models:
            model, former = state.models.get(name), self._kept.pop(name, None)
            if model is None:
                self._delete(f"{self._models}{name}")
            else:
                if model.digest != former:
                    payloads = msgspec.msgpack.encode(model.payloads)
                    self._put(f"{self._payloads}{model.digest}", payloads)
                light = msgspec.structs.replace(model, payloads=[])
                self._put(f"{self._models}{name}", msgspec.msgpack.encode(light))
                self._kept[name] = model.digest
            if former is not None and former != self._kept.get(name):
                self._delete(f"{self._payloads}{former}")
        head = msgspec.structs.replace(state, models={})
        self._put(self._head, msgspec.msgpack.encode(head))

    def remove(self) -> None:
        """Forget it."""
        for key in [*self._keys(self._models), *self._keys(self._payloads), self._head]:
            self._delete(key)
        self._kept = {}

    def _keys(self, prefix: str) -> list[str]:
        found = self._kv._internal_kv_list(prefix.encode(), namespace=_NAMESPACE)
        return [key.decode() for key in found]

    def _get(self, key: str) -> Optional[bytes]:
        kept: Optional[bytes] = self._kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
        return kept

    def _put(self, key: str, value: bytes) -> None:
        self._kv._internal_kv_put(key.encode(), value, namespace=_NAMESPACE)

    def _delete(self, key: str) -> None:
        self._kv._internal_kv_del(key.encode(), namespace=_NAMESPACE)
