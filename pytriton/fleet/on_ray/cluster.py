"""Ray as the controller sees it: nodes that live, actors on them, where holders are. All questions to Ray are here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any, Optional

from pytriton.fleet.on_ray import NAMESPACE, import_ray
from pytriton.fleet.on_ray.actors import Holder, NodeActor
from pytriton.ipc import messages

#: Of a question that an actor answers at once.
_ANSWER_S = 2.0
#: What one node is asked at a time, besides what takes long.
_CONCURRENCY = 16
#: The label by which Ray knows each node.
_NODE_LABEL = "ray.io/node-id"
#: The id of no node: Ray wants at least one in a list.
_NOWHERE = "none"

Look = tuple[messages.Status, dict[str, tuple[str, int]]]


class Cluster:
    """One fleet's actors on a Ray cluster.

    Attributes:
        alive: address of each node that lives, by id
        places: (node id, GPUs) of each holder that Ray has placed
    """

    def __init__(self, fleet: str) -> None:
        self._ray = import_ray()
        self._fleet = fleet
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._looks: dict[str, Look] = {}
        self._holders: dict[str, Any] = {}
        self._where: dict[str, Any] = {}
        self.alive: dict[str, str] = {}
        self.places: dict[str, tuple[str, list[str]]] = {}

    def look(self, settings: dict[str, Any], holders: Sequence[str]) -> None:
        """See which nodes live and where holders are; each node gets its actor."""
        nodes = [one for one in self._ray.nodes() if one["Alive"]]
        most = settings.get("nodes") or len(nodes)
        nodes.sort(key=lambda one: (one["NodeID"] not in self._actors, one["NodeID"]))
        self.alive = {one["NodeID"]: one["NodeManagerAddress"] for one in nodes[:most]}
        for node in list(self._actors):
            if node not in self.alive:
                del self._actors[node]
                self._asked.pop(node, None)
                self._looks.pop(node, None)
        for node in self.alive:
            if node not in self._actors:
                self._actors[node] = self._node_actor(node, settings)
        self._look_at_holders(holders)

    def looks(self) -> dict[str, Look]:
        """Return the newest look of each node's daemon; of one that does not answer, none."""
        for node, actor in self._actors.items():
            if node not in self._asked:
                self._asked[node] = actor.look.remote()
        if self._asked:
            self._ray.wait(
                list(self._asked.values()), num_returns=len(self._asked), timeout=_ANSWER_S
            )
        for node, reference in list(self._asked.items()):
            ended, error = self.ended(reference)
            if ended:
                del self._asked[node]
                if error:
                    self._looks.pop(node, None)
                else:
                    self._looks[node] = self._ray.get(reference)
        return dict(self._looks)

    def forget_look(self, node: str) -> None:
        """Look at a node anew: what it serves has changed."""
        self._asked.pop(node, None)
        self._looks.pop(node, None)

    def ask(self, node: str, method: str, *arguments: Any) -> Any:
        """Have a node's actor do something; returns the reference of its answer. Large arguments travel once."""
        return getattr(self._actors[node], method).remote(*arguments)

    def ask_all(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Return the answers of all nodes that give one soon."""
        asked = {node: self.ask(node, method, *arguments) for node in list(self._actors)}
        self._ray.wait(list(asked.values()), num_returns=max(1, len(asked)), timeout=10.0)
        return {
            node: self._ray.get(reference)
            for node, reference in asked.items()
            if self.ended(reference) == (True, "")
        }

    def ended(self, reference: Any) -> tuple[bool, str]:
        """Return whether something has ended, and how it failed if it did."""
        done, _ = self._ray.wait([reference], timeout=0)
        if not done:
            return False, ""
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return True, str(error.cause)
        except self._ray.exceptions.RayError as error:
            return True, str(error)
        return True, ""

    def hold(
        self,
        name: str,
        resources: dict[str, Any],
        but: Sequence[str],
        only: Optional[Sequence[str]] = None,
    ) -> None:
        """Have Ray hold resources for one instance, on any node but those, or on one of `only` alone."""
        options = dict(resources)
        selector = dict(options.get("label_selector") or {})
        where = nodes_expression(selector.get(_NODE_LABEL, ""), but, only)
        if where:
            options["label_selector"] = {**selector, _NODE_LABEL: where}
        self._holders[name] = (
            self._ray.remote(Holder)
            .options(
                name=f"fleet-{self._fleet}/{name}", namespace=NAMESPACE, lifetime="detached", max_restarts=-1,
                max_task_retries=0, get_if_exists=True, scheduling_strategy="SPREAD", **options,
            )
            .remote()
        )  # fmt: skip

    def release(self, name: str) -> None:
        """Give the resources of a holder back."""
        actor = self._holder(name)
        self._holders.pop(name, None)
        self._where.pop(name, None)
        self.places.pop(name, None)
        if actor is not None:
            self._ray.kill(actor, no_restart=True)

    def devices(self, holders: Sequence[str], node: str) -> list[str]:
        """Return the GPUs of the instances on a node, one entry each; none where Ray gives none."""
        found = [
            ",".join(self.places[one][1])
            for one in holders
            if self.places.get(one, ("",))[0] == node
        ]
        return found if all(found) else []

    def stop(self) -> None:
        """Stop all daemons, and end the nodes' actors."""
        asked = [actor.stop.remote() for actor in self._actors.values()]
        if asked:
            self._ray.wait(asked, num_returns=len(asked), timeout=120.0)
        for actor in self._actors.values():
            self._ray.kill(actor, no_restart=True)
        self._actors.clear()

    def _look_at_holders(self, holders: Sequence[str]) -> None:
        for name in holders:
            actor = self._holder(name)
            if actor is not None and name not in self._where:
                self._where[name] = actor.where.remote()
        if self._where:
            self._ray.wait(list(self._where.values()), num_returns=len(self._where), timeout=0.2)
        for name, reference in list(self._where.items()):
            ended, error = self.ended(reference)
            if not ended:
                continue
            del self._where[name]
            if error:
                self.places.pop(name, None)
            else:
                node, gpus = self._ray.get(reference)
                self.places[name] = node, gpus

    def _holder(self, name: str) -> Optional[Any]:
        if name not in self._holders:
            try:
                self._holders[name] = self._ray.get_actor(f"fleet-{self._fleet}/{name}", NAMESPACE)
            except ValueError:  # it was released
                return None
        return self._holders[name]

    def _node_actor(self, node: str, settings: dict[str, Any]) -> Any:
        strategy = import_ray("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        folder = settings.get("runtime_dir") or os.path.join(
            tempfile.gettempdir(), f"ptf-{os.geteuid()}"
        )
        return (
            self._ray.remote(NodeActor)
            .options(
                name=f"fleet-{self._fleet}/node-{node}", namespace=NAMESPACE, lifetime="detached", max_restarts=-1,
                max_task_retries=-1, get_if_exists=True, num_cpus=0, max_concurrency=_CONCURRENCY,
                scheduling_strategy=strategy(node, soft=False),
            )
            .remote(f"{folder}/{self._fleet}-{node[:8]}", settings.get("flags", []))
        )  # fmt: skip


def nodes_expression(wish: str, but: Sequence[str], only: Optional[Sequence[str]]) -> str:
    """Return where a holder may be, in the one expression that Ray takes for a label; empty: anywhere.

    Args:
        wish: the user's own expression for the node's id: `ID`, `!ID`, `in(ID,…)` or `!in(ID,…)`; empty: none
        but: nodes that drain
        only: the fleet's nodes where they are not the whole cluster
    """
    inner = wish.lstrip("!")
    inner = inner[3:-1] if inner.startswith("in(") else inner
    named = [one.strip() for one in inner.split(",") if one.strip()]
    if wish.startswith("!"):
        but = [*but, *named]
    elif named:
        only = [one for one in named if only is None or one in only]
    if only is not None:
        return f"in({','.join(one for one in only if one not in but) or _NOWHERE})"
    return f"!in({','.join(but)})" if but else ""
