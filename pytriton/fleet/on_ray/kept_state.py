"""The controller's state: all that it is told, and where it is kept while Ray may start the controller again."""

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
    """A registration of a model's name; `environment` is its `runtime_env`, whose packages are the last payloads."""

    spec: messages.ModelSpec
    payloads: list[bytes]
    resources: dict[str, Any]
    digest: str
    environment: bytes = b""


class Rolling(msgspec.Struct):
    """A new version on its way to all nodes.

    Attributes:
        former: what the other nodes serve
        canary: how it is done
        nodes: that have the new one, or are to get it now
        watched: it did well; what is left are the other nodes
    """

    former: Version
    canary: Canary
    nodes: list[str] = msgspec.field(default_factory=list)
    watched: bool = False


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
    #: Some nodes are still to serve another version.
    rolling: Optional[Rolling] = None
    #: What it was before it was last replaced.
    previous: Optional[Version] = None
    #: What `previous` was before that, until this is served: a registration that fails leaves no trace.
    older: Optional[Version] = None
    #: Why the last new version was taken back; "": it was not.
    taken_back: str = ""
    #: The id of the request that made it this version.
    request: str = ""
    environment: bytes = b""

    def version(self) -> Version:
        """Return what is registered now."""
        return Version(self.spec, self.payloads, self.resources, self.digest, self.environment)

    def on(self, node: str) -> Version:
        """Return what a node is to serve."""
        rolling = self.rolling
        return self.version() if rolling is None or node in rolling.nodes else rolling.former

    def become(self, version: Version) -> None:
        """Be another version; what is held for it is left as it is."""
        self.spec, self.payloads = version.spec, version.payloads
        self.digest, self.environment = version.digest, version.environment

    def use(self, version: Version) -> None:
        """Be another version, with as many instances as now."""
        instances = self.spec.instances
        self.become(version)
        self.spec = msgspec.structs.replace(version.spec, instances=instances)


class State(msgspec.Struct):
    """All that the controller is told."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    models: dict[str, Model] = msgspec.field(default_factory=dict)
    draining: list[str] = msgspec.field(default_factory=list)
    #: The nodes that holders were last confined to, where the fleet is not to have the whole cluster.
    among: list[str] = msgspec.field(default_factory=list)
    #: The newest requests that were withdrawn, or that have unregistered a model: Ray may ask once more.
    withdrawn: list[str] = msgspec.field(default_factory=list)
    #: Balancers have asked where models are.
    balanced: bool = False
    #: All names that were ever registered; None: it is not known which.
    known: Optional[list[str]] = None

    def note(self, name: str) -> None:
        """Take note that a name is the fleet's from now on."""
        if self.known is not None and name not in self.known:
            self.known = [*self.known, name]

    def knows(self, name: str) -> bool:
        """Whether a model of this name is the fleet's to remove: daemons may serve what a lost fleet has registered."""
        return self.known is None or name in self.known or name in self.models


class Store:
    """The controller's state in Ray's key-value store: a change writes the model that it changes, and no payload anew.

    `fleet-F` has all that is of no model, `fleet-F/model/NAME` a model without its payloads, and
    `fleet-F/payloads/DIGEST` these, of each of its versions. Payloads are written before the model that needs them.

    `fleet-F/known/NAME` says that a name was ever registered. `fleet-F/life` names the controller that was made last:
    Ray may start another one while the former lives still, on a node that was away, and that one must not undo what the
    other does.

    Args:
        fleet: whose state
        kv: Ray's module of its key-value store, or one that does as it does
    """

    def __init__(self, fleet: str, kv: Any = None) -> None:
        self._kv = import_ray("ray.experimental.internal_kv") if kv is None else kv
        self._head = f"fleet-{fleet}"
        self._models = f"{self._head}/model/"
        self._payloads = f"{self._head}/payloads/"
        self._known = f"{self._head}/known/"
        self._life = f"{self._head}/life"
        self._own = secrets.token_bytes(8)
        #: The digests of the versions of each model that are kept.
        self._kept: dict[str, set[str]] = {}
        #: How many of the names that were ever registered are kept: there are only ever more.
        self._names = 0

    def is_anothers(self) -> bool:
        """Whether a controller that was made later has read the state."""
        return self._get(self._life) not in (None, self._own)

    def check(self) -> None:
        """Raise PyTritonDaemonError where a controller that was made later has read the state."""
        if self.is_anothers():
            raise PyTritonDaemonError("Ray has started another controller of this fleet; ask again")

    def read(self) -> Optional[State]:
        """Return what was written; None when nothing was. From now on, nobody else may write."""
        self._put(self._life, self._own)
        head = self._get(self._head)
        if head is None:
            return None
        state = msgspec.msgpack.decode(head, type=State)
        if state.known is not None:
            names = [key[len(self._known) :] for key in self._keys(self._known)]
            state.known, self._names = names, len(names)
        for key in self._keys(self._models):
            kept = self._get(key)
            if kept is not None:
                model = msgspec.msgpack.decode(kept, type=Model)
                for one in _versions(model):
                    payloads = self._get(f"{self._payloads}{one.digest}")
                    one.payloads = msgspec.msgpack.decode(payloads or b"\x90", type=list[bytes])
                state.models[model.spec.name] = model
        self._kept = {
            name: {one.digest for one in _versions(model)} for name, model in state.models.items()
        }
        needed = {f"{self._payloads}{one}" for digests in self._kept.values() for one in digests}
        for key in self._keys(self._payloads):  # of a change that a controller did not live to end
            if key not in needed:
                self._delete(key)
        return state

    def write(self, state: State, *models: str) -> None:
        """Keep a state as far as it has changed since it was kept: these models, and all that is of no model.

        Raises:
            PyTritonDaemonError: it is another controller's by now
        """
        self.check()
        for name in models:
            # At each moment what is there by now: whatever fails is written when this is said again.
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
                self._put(f"{self._models}{name}", msgspec.msgpack.encode(_light(model)))
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
        """Forget it."""
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


def _versions(model: Model) -> list[Union[Model, Version]]:
    """Return all that a model may have to be: what it is, is coming from, and was."""
    former = None if model.rolling is None else model.rolling.former
    others = (former, model.previous, model.older)
    return [model, *(one for one in others if one is not None)]


def _light(model: Model) -> Model:
    """Return a model without payloads."""
    rolling = model.rolling
    if rolling is not None:
        rolling = msgspec.structs.replace(rolling, former=_bare(rolling.former))
    previous, older = (None if one is None else _bare(one) for one in (model.previous, model.older))
    return msgspec.structs.replace(
        model, payloads=[], rolling=rolling, previous=previous, older=older
    )


def _bare(version: Version) -> Version:
    return msgspec.structs.replace(version, payloads=[])
