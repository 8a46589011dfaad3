"""The controller's state, and its storage in Ray's key-value store."""

from __future__ import annotations

import secrets
from typing import Any, Optional, Union

import msgspec

from pytriton._protocol import messages
from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet.canary import Canary
from pytriton.fleet.on_ray import NAMESPACE, import_ray

_NAMESPACE = NAMESPACE.encode()


class Version(msgspec.Struct):
    """A registered version of a model. The last payloads are the packages of its runtime_env (`environment`)."""

    spec: messages.ModelSpec
    payloads: list[bytes]
    resources: dict[str, Any]
    digest: str
    environment: bytes = b""


class Rolling(msgspec.Struct):
    """A rollout in progress.

    Attributes:
        former: the old version, which the other nodes serve
        canary: settings of the rollout
        nodes: nodes that have the new version, or are getting it
        watched: whether the watch has succeeded, so that the other nodes get the new version
    """

    former: Version
    canary: Canary
    nodes: list[str] = msgspec.field(default_factory=list)
    watched: bool = False


class RegisteredModel(msgspec.Struct):
    """A model registered with the fleet. `serial` counts its holders, whose names are `NAME/SERIAL`."""

    spec: messages.ModelSpec
    payloads: list[bytes]
    resources: dict[str, Any]
    holders: list[str]
    digest: str = ""
    serial: int = 0
    #: Holders to be replaced once others serve.
    retired: list[str] = msgspec.field(default_factory=list)
    #: Set while some nodes should still serve another version.
    rolling: Optional[Rolling] = None
    #: The version before its last replacement.
    previous: Optional[Version] = None
    #: The version before `previous`. It is kept until this version is served, so that a failed registration leaves
    #: no trace.
    older: Optional[Version] = None
    #: Why the last new version was rolled back; "" if it was not.
    rollback_reason: str = ""
    #: ID of the request that registered this version.
    request: str = ""
    environment: bytes = b""

    def version(self) -> Version:
        """Return the current version."""
        return Version(self.spec, self.payloads, self.resources, self.digest, self.environment)

    def on(self, node: str) -> Version:
        """Return the version that a node should serve."""
        rolling = self.rolling
        return self.version() if rolling is None or node in rolling.nodes else rolling.former

    def become(self, version: Version) -> None:
        """Switch to another version without changing the holders."""
        self.spec, self.payloads = version.spec, version.payloads
        self.digest, self.environment = version.digest, version.environment

    def use(self, version: Version) -> None:
        """Switch to another version but keep the number of instances."""
        instances = self.spec.instances
        self.become(version)
        self.spec = msgspec.structs.replace(version.spec, instances=instances)


class ControllerState(msgspec.Struct):
    """The complete state of the controller."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    models: dict[str, RegisteredModel] = msgspec.field(default_factory=dict)
    draining: list[str] = msgspec.field(default_factory=list)
    #: The nodes to which holders were last restricted, if the fleet is limited to a part of the cluster.
    among: list[str] = msgspec.field(default_factory=list)
    #: The last requests that were withdrawn, or that unregistered a model. Ray may retry them.
    withdrawn: list[str] = msgspec.field(default_factory=list)
    #: Whether balancers have polled the controller.
    balanced: bool = False
    #: All names that were ever registered; None: unknown.
    known: Optional[list[str]] = None

    def remember_name(self, name: str) -> None:
        """Record that a name has been registered with the fleet."""
        if self.known is not None and name not in self.known:
            self.known = [*self.known, name]

    def owns_name(self, name: str) -> bool:
        """Return whether the fleet may remove models with this name.

        Daemons may also serve models of a fleet whose state was lost.
        """
        return self.known is None or name in self.known or name in self.models


class ControllerStore:
    """Storage of the controller's state in Ray's key-value store.

    A change writes only the changed model, and its payloads only once.

    `fleet-F` contains the state that does not belong to a model, `fleet-F/model/NAME` a model without its payloads,
    and `fleet-F/payloads/DIGEST` the payloads of each version. Payloads are written before the model that needs them.

    `fleet-F/known/NAME` records each name that was ever registered. `fleet-F/life` identifies the newest controller:
    Ray may start a new one while the old one still runs on a disconnected node, and the old one must not overwrite
    the changes of the new one.

    Args:
        fleet: name of the fleet
        kv: Ray's module `internal_kv`, or a fake for tests
    """

    def __init__(self, fleet: str, kv: Any = None) -> None:
        self._kv = import_ray("ray.experimental.internal_kv") if kv is None else kv
        self._head = f"fleet-{fleet}"
        self._models = f"{self._head}/model/"
        self._payloads = f"{self._head}/payloads/"
        self._known = f"{self._head}/known/"
        self._life = f"{self._head}/life"
        self._own = secrets.token_bytes(8)
        #: Digests of the stored versions of each model.
        self._kept: dict[str, set[str]] = {}
        #: Number of stored names that were ever registered. It never decreases.
        self._names = 0

    def is_superseded(self) -> bool:
        """Return whether a newer controller has taken over the state."""
        return self._get(self._life) not in (None, self._own)

    def check(self) -> None:
        """Raise PyTritonDaemonError if a newer controller has taken over the state."""
        if self.is_superseded():
            raise PyTritonDaemonError("Ray has started another controller of this fleet. Try again")

    def read(self) -> Optional[ControllerState]:
        """Return the stored state; None if there is none. From now on, older controllers cannot write."""
        self._put(self._life, self._own)
        head = self._get(self._head)
        if head is None:
            return None
        state = msgspec.msgpack.decode(head, type=ControllerState)
        if state.known is not None:
            names = [key[len(self._known) :] for key in self._keys(self._known)]
            state.known, self._names = names, len(names)
        for key in self._keys(self._models):
            kept = self._get(key)
            if kept is not None:
                model = msgspec.msgpack.decode(kept, type=RegisteredModel)
                for one in _versions(model):
                    payloads = self._get(f"{self._payloads}{one.digest}")
                    one.payloads = msgspec.msgpack.decode(payloads or b"\x90", type=list[bytes])
                state.models[model.spec.name] = model
        self._kept = {
            name: {one.digest for one in _versions(model)} for name, model in state.models.items()
        }
        needed = {f"{self._payloads}{one}" for digests in self._kept.values() for one in digests}
        # Delete payloads that an incomplete change by a controller has left behind.
        for key in self._keys(self._payloads):
            if key not in needed:
                self._delete(key)
        return state

    def write(self, state: ControllerState, *models: str) -> None:
        """Store the given models, and the state that does not belong to a model.

        Raises:
            PyTritonDaemonError: a newer controller has taken over
        """
        self.check()
        for name in models:
            # This is updated after each write, so that a retry after a failure writes the rest.
            model, kept = state.models.get(name), self._kept.setdefault(name, set())
            needed: set[str] = set()
            if model is None:
                self._delete(f"{self._models}{name}")
            else:
                for one in _versions(model):
                    needed.add(one.digest)
                    if one.digest not in kept:
                        payloads = msgspec.msgpack.encode(one.payloads)
                        self._put(f"{self._payloads}{one.digest}", payloads)
                        kept.add(one.digest)
                self._put(f"{self._models}{name}", msgspec.msgpack.encode(_without_payloads(model)))
            for digest in kept - needed:
                self._delete(f"{self._payloads}{digest}")
                kept.remove(digest)
            if model is None:
                del self._kept[name]
        known = state.known
        for name in [] if known is None else known[self._names :]:
            self._put(f"{self._known}{name}", b"1")
            self._names += 1
        head = msgspec.structs.replace(state, models={}, known=None if known is None else [])
        self._put(self._head, msgspec.msgpack.encode(head))

    def remove(self) -> None:
        """Delete the stored state."""
        every = (self._models, self._payloads, self._known)
        for key in [*(key for one in every for key in self._keys(one)), self._head, self._life]:
            self._delete(key)
        self._kept, self._names = {}, 0

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


def _versions(model: RegisteredModel) -> list[Union[RegisteredModel, Version]]:
    """Return all versions whose payloads are stored: current, being replaced, and previous ones."""
    former = None if model.rolling is None else model.rolling.former
    others = (former, model.previous, model.older)
    return [model, *(one for one in others if one is not None)]


def _without_payloads(model: RegisteredModel) -> RegisteredModel:
    """Return a copy of a model without payloads."""
    rolling = model.rolling
    if rolling is not None:
        rolling = msgspec.structs.replace(rolling, former=_bare(rolling.former))
    previous, older = (None if one is None else _bare(one) for one in (model.previous, model.older))
    return msgspec.structs.replace(
        model, payloads=[], rolling=rolling, previous=previous, older=older
    )


def _bare(version: Version) -> Version:
    return msgspec.structs.replace(version, payloads=[])
