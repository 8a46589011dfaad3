"""`Placement`: creates a holder for each instance (Ray decides where) and replaces holders on unusable nodes."""

from __future__ import annotations

from typing import Optional

from pytriton.fleet.on_ray.cluster import Cluster
from pytriton.fleet.on_ray.controller_state import ControllerState, RegisteredModel
from pytriton.fleet.on_ray.reconciler import Wanted


class Placement:
    """The holders of a fleet's instances. Their names are part of the fleet's state, which the caller saves.

    Args:
        cluster: creates the holders
        state: state with the models and the draining nodes
    """

    def __init__(self, cluster: Cluster, state: ControllerState) -> None:
        self._cluster = cluster
        self._state = state

    @property
    def draining(self) -> list[str]:
        """The nodes that should serve nothing."""
        return [*self._state.draining, *self._cluster.surplus]

    def all(self) -> list[str]:
        """Return the names of all existing holders."""
        return [one for model in self._state.models.values() for one in _all_of(model)]

    def wanted(self, model: RegisteredModel) -> Wanted:
        """Return the desired state of a model: on which nodes its instances should run."""
        nodes: dict[str, int] = {}
        pending = 0
        for holder in model.holders:
            place = self._cluster.places.get(holder)
            if place is None or place[0] not in self._cluster.alive:
                pending += 1
            else:
                nodes[place[0]] = nodes.get(place[0], 0) + 1
        rolling = model.rolling
        if rolling is None:
            return Wanted(model.digest, nodes, pending)
        return Wanted(model.digest, nodes, pending, rolling.former.digest, frozenset(rolling.nodes))

    def make_holders(self, model: RegisteredModel) -> None:
        """Create or retire holders until a model has one for each instance."""
        while len(model.holders) < model.spec.instances:
            model.serial += 1
            name = f"{model.spec.name}/{model.serial}"
            self._cluster.hold(name, model.resources, self.draining, self._only())
            model.holders.append(name)
        while len(model.holders) > model.spec.instances:
            model.retired.append(model.holders.pop())

    def vacate_node(self, model: RegisteredModel, node: str) -> bool:
        """Replace a model's holders on a node. Return whether there were any."""
        there = [one for one in model.holders if self._cluster.places.get(one, ("", []))[0] == node]
        if not there:
            return False
        model.holders = [one for one in model.holders if one not in there]
        model.retired.extend(there)
        self.make_holders(model)
        return True

    def replace_misplaced(self) -> Optional[list[str]]:
        """Replace holders on unusable nodes, and holders that Ray may still place there.

        Return the names of the affected models; None if nothing has changed.
        """
        kept = [one for one in self._state.draining if one not in self._cluster.dead]
        forgotten = kept != self._state.draining
        self._state.draining = kept
        draining = self.draining
        # A holder that was pending when its node began to drain, or that Ray has restarted, may be placed there
        # only now.
        there = (
            {name: node for name, (node, _) in self._cluster.places.items() if node in draining}
            if draining
            else {}
        )
        moved = [
            name
            for name, model in (self._state.models.items() if there else ())
            for node in dict.fromkeys(there[one] for one in model.holders if one in there)
            if self.vacate_node(model, node)
        ]
        if self._cluster.gone:
            models = self._state.models.items()
            moved += [name for name, model in models if self._replace_gone(model)]
        only = self._only() or []
        if only == self._state.among:
            return moved if moved or forgotten else None
        self._state.among = only
        for model in self._state.models.values():
            self._renew_pending(model)
        return list(self._state.models)

    def release(self, model: RegisteredModel) -> None:
        """Release all of a model's holders."""
        for holder in _all_of(model):
            self._cluster.release(holder)

    def release_new(
        self, model: Optional[RegisteredModel], before: Optional[RegisteredModel]
    ) -> None:
        """Release the holders that a model has acquired since `before` was recorded."""
        held = [] if before is None else _all_of(before)
        for holder in [] if model is None else _all_of(model):
            if holder not in held:
                self._cluster.release(holder)

    def release_retired(self, model: RegisteredModel) -> None:
        """Release a model's retired holders."""
        for holder in model.retired:
            self._cluster.release(holder)
        model.retired = []

    def _only(self) -> Optional[list[str]]:
        """Return the nodes to which holders are restricted; None if they are not restricted."""
        if not self._state.settings.get("nodes"):
            return None
        return sorted(set(self._cluster.alive).difference(self._cluster.surplus))

    def _replace_gone(self, model: RegisteredModel) -> bool:
        """Recreate a model's lost holders. Return whether there were any."""
        gone = [one for one in model.holders if one in self._cluster.gone]
        for one in gone:
            model.holders.remove(one)
            self._cluster.release(one)
        if gone:
            self.make_holders(model)
        return bool(gone)

    def _renew_pending(self, model: RegisteredModel) -> None:
        """Recreate holders that are on none of the fleet's nodes: they are restricted to the nodes that the fleet had before."""
        places = self._cluster.places
        lost = [
            one for one in model.holders if places.get(one, ("", []))[0] not in self._cluster.alive
        ]
        model.holders = [one for one in model.holders if one not in lost]
        for one in lost:
            self._cluster.release(one)
        self.make_holders(model)


def _all_of(model: RegisteredModel) -> list[str]:
    return [*model.holders, *model.retired]
