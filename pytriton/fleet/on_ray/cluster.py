"""The controller's interface to Ray: live nodes, their actors, and the locations of holders.

Contains all calls to Ray.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, TypeVar

import msgspec

from pytriton._protocol import messages
from pytriton.fleet.canary import CanaryCounters
from pytriton.fleet.on_ray import NAMESPACE, import_ray
from pytriton.fleet.on_ray.actors import NodeActor, ResourceHolder
from pytriton.fleet.on_ray.environments import named_actors
from pytriton.fleet.on_ray.reconciler import ModelOnNode, Observed, Wanted

#: Timeout of a call that an actor answers immediately.
_ANSWER_S = 2.0
#: Timeout of calls to holders. A holder that Ray has not placed yet does not answer.
_HOLDER_S = 0.2
#: Maximum number of concurrent short calls to one node.
_CONCURRENCY = 16
#: Ray's label for the ID of each node.
_NODE_LABEL = "ray.io/node-id"
#: Number of holders queried for their location per poll, besides those with an unknown location.
_MAX_HOLDERS_PER_POLL = 250
#: Number of polls without a holder's actor before it is recreated, so that no resources are held twice.
_MIN_CONFIRMING_POLLS = 3
#: Number of polls that a node may miss before its last state is discarded. It may be starting its daemon.
_MAX_SILENT_POLLS = 60
#: Timeout of all nodes' answers to a client's query, in seconds.
_ALL_S = 10.0

_Key = TypeVar("_Key", bound=Hashable)
_facts = msgspec.msgpack.Decoder(tuple[messages.Status, dict[str, tuple[str, int]]])


class DaemonState(NamedTuple):
    """The state of a node's daemon.

    Attributes:
        status: the encoded status
        key: key of the other fields, which are the same objects as before if they have not changed
        lasting: the status without volatile fields
        served: model -> its state on the node
    """

    status: bytes
    key: str
    lasting: messages.Status
    served: dict[str, ModelOnNode]


class _ActorDied(str):
    """The error of a call to an actor that has exited and will not be restarted by Ray."""


class Cluster:
    """The actors of a fleet on a Ray cluster.

    Attributes:
        alive: address of each live node of the fleet, by ID
        surplus: nodes that the fleet should no longer use
        dead: dead nodes that Ray still lists, and that never come back
        faults: node -> why its daemon did not answer
        places: holder -> (node ID, GPUs), for each holder that Ray has placed
        gone: holders that have been killed and that Ray does not restart
    """

    def __init__(self, fleet: str, ray: Any = None) -> None:
        self._ray = import_ray() if ray is None else ray
        self._fleet = fleet
        self._settings: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._pending_calls: dict[str, Any] = {}
        self._states: dict[str, DaemonState] = {}
        #: Node -> number of polls that it has missed.
        self._silent: Counter[str] = Counter()
        self._counted: dict[tuple[str, str], Any] = {}
        self._holders: dict[str, Any] = {}
        self._where: dict[str, Any] = {}
        self._round: list[str] = []
        #: Holder -> number of consecutive polls without its actor.
        self._missing: Counter[str] = Counter()
        self._shared: dict[str, Any] = {}
        self._dismissed: dict[str, Any] = {}
        self.alive: dict[str, str] = {}
        self.surplus: list[str] = []
        self.dead: set[str] = set()
        self.faults: dict[str, str] = {}
        self.places: dict[str, tuple[str, list[str]]] = {}
        self.gone: set[str] = set()

    def poll(self, settings: dict[str, Any], holders: Sequence[str]) -> None:
        """Query Ray for the live nodes and the holders' locations, and create missing node actors.

        Args:
            settings: settings of the fleet, with its current nodes if their number is limited (`among`), and the
                draining nodes (`draining`)
            holders: names of all existing holders
        """
        self._settings = settings
        self._forget_dismissed()
        found = self._ray.nodes()
        nodes = {one["NodeID"]: one["NodeManagerAddress"] for one in found if one["Alive"]}
        self.dead = {one["NodeID"] for one in found if not one["Alive"]}
        kept, self.surplus = members(
            nodes, settings.get("nodes"), self._actors or self._nodes_with_actors(),
            settings.get("among", ()), settings.get("draining", ()),
            Counter(node for node, _ in self.places.values()),
        )  # fmt: skip
        self.alive = {node: nodes[node] for node in [*kept, *self.surplus]}
        for node in list(self._actors):
            if node not in self.alive:
                self._forget(node)
        for node in self.alive:
            if node not in self._actors:
                self._actors[node] = self._node_actor(node, settings)
        self._poll_holders(holders)

    def dismiss(self, node: str) -> None:
        """Stop the daemon of a surplus node that serves nothing. The node then leaves the fleet."""
        if node not in self._dismissed:
            self._dismissed[node] = self.ask(node, "stop")

    def _forget_dismissed(self) -> None:
        for node in self._take_results(self._dismissed, 0):
            if node in self._actors:
                self._ray.kill(self._actors[node], no_restart=True)
                self._forget(node)

    def _forget(self, node: str) -> None:
        del self._actors[node]
        for one in (self._pending_calls, self._states, self._dismissed, self.faults):
            one.pop(node, None)

    def _nodes_with_actors(self) -> set[str]:
        """Return the nodes that have an actor of this fleet, possibly created by a previous controller."""
        beginning = f"fleet-{self._fleet}/node-"
        return {one[len(beginning) :] for one in named_actors(self._ray, beginning)}

    def poll_daemons(self) -> dict[str, DaemonState]:
        """Query the node actors, and return the latest state of each daemon except those that do not answer."""
        for node, actor in self._actors.items():
            if node not in self._pending_calls:
                known = self._states[node].key if node in self._states else ""
                self._pending_calls[node] = actor.report_state.remote(
                    known, self._settings.get("flags", [])
                )
        for node, (answer, error) in self._take_results(self._pending_calls, _ANSWER_S).items():
            try:
                state = None if error else _parse_state(answer, self._states.get(node))
            except (msgspec.MsgspecError, AttributeError, TypeError, ValueError) as wrong:
                # The daemon has another version, or the answer is corrupt. The other nodes must not wait for it.
                state, error = None, f"invalid answer: {wrong}"
            if state is None:
                self._states.pop(node, None)
                self.faults[node] = str(error)
                if isinstance(error, _ActorDied):
                    self._actors.pop(node, None)  # the next poll creates another one
                continue
            self.faults.pop(node, None)
            self._states[node] = state
        self._silent = Counter({node: self._silent[node] + 1 for node in self._pending_calls})
        for node, missed in self._silent.items():
            if missed > _MAX_SILENT_POLLS and self._states.pop(node, None) is not None:
                self.faults[node] = "its actor or machine hangs"
        return dict(self._states)

    def fault(self, node: str) -> str:
        """Return why the state of a node is missing."""
        why = self.faults.get(node, "")
        return "its daemon does not answer (yet)" + (f": {why}" if why else "")

    def canary_counters(self, models: Sequence[str]) -> dict[str, dict[str, CanaryCounters]]:
        """Return model -> node -> counters, for the nodes that answer quickly.

        A late answer is used for the next poll, unless that poll is for other models.
        """
        former, self._counted = self._counted, {}
        for node in self._actors:
            for model in models:
                key = node, model
                late = key in former
                self._counted[key] = (
                    former[key] if late else self.ask(node, "canary_counters", model)
                )
        found: dict[str, dict[str, CanaryCounters]] = {model: {} for model in models}
        for (node, model), (seen, error) in self._take_results(self._counted, _ANSWER_S).items():
            if not error:
                found[model][node] = seen
        return found

    def discard_state(self, node: str) -> None:
        """Discard a node's state, because its models have changed, and query it again in the next poll."""
        self._pending_calls.pop(node, None)
        self._states.pop(node, None)

    def ask(self, node: str, method: str, *arguments: Any) -> Any:
        """Call a method of a node's actor and return Ray's reference to its result."""
        return getattr(self._actors[node], method).remote(*arguments)

    def shared(self, digest: str, payloads: Sequence[bytes]) -> Any:
        """Put payloads into Ray's object store, and return an argument for `ask`. `release_shared` removes them."""
        if digest not in self._shared:
            self._shared[digest] = self._ray.put(list(payloads))
        return self._shared[digest]

    def release_shared(self) -> None:
        """Release the payloads in Ray's object store."""
        self._shared.clear()

    def logs(self, name: Optional[str], lines: int) -> dict[str, list[str]]:
        """Return log lines of the nodes that answer in time, by node."""
        # A copy: nodes may leave during the calls, since clients call in their own threads.
        actors = dict(self._actors)
        calls = {node: one.logs.remote(name, lines) for node, one in actors.items()}
        answers = self._take_results(calls, _ALL_S)
        return {node: answer for node, (answer, error) in answers.items() if not error}

    def ended(self, references: Mapping[_Key, Any]) -> dict[_Key, str]:
        """Return the calls that have ended, each with its error, or "" if it succeeded."""
        answers = self._take_results(dict(references), 0)
        return {key: error for key, (_, error) in answers.items()}

    def hold(
        self,
        name: str,
        resources: dict[str, Any],
        but: Sequence[str],
        only: Optional[Sequence[str]] = None,
    ) -> None:
        """Create a holder for one instance on a node that is not in `but` and, if `only` is set, is in `only`."""
        options = dict(resources)
        selector = dict(options.get("label_selector") or {})
        where = nodes_expression(selector.get(_NODE_LABEL, ""), but, only)
        if where:
            options["label_selector"] = {**selector, _NODE_LABEL: where}
        self._holders[name] = (
            self._ray.remote(ResourceHolder)
            .options(
                name=f"fleet-{self._fleet}/{name}", namespace=NAMESPACE, lifetime="detached", max_restarts=-1,
                max_task_retries=0, get_if_exists=True, scheduling_strategy="SPREAD", **options,
            )
            .remote()
        )  # fmt: skip

    def release(self, name: str) -> None:
        """Release the resources of a holder."""
        actor = self._holder(name)
        self._holders.pop(name, None)
        self._where.pop(name, None)
        self.places.pop(name, None)
        if actor is not None:
            self._ray.kill(actor, no_restart=True)

    def release_all_but(self, holders: Collection[str]) -> None:
        """Release all holders except these.

        A controller that died before it could record or release a holder leaves it behind.
        """
        beginning = f"fleet-{self._fleet}/"
        for name in named_actors(self._ray, beginning):
            holder = name[len(beginning) :]
            if "/" in holder and holder not in holders:  # others have no serial
                self.release(holder)

    def devices(self, holders: Sequence[str], node: str) -> list[str]:
        """Return the GPUs of the instances on a node, one entry for each instance; empty if Ray assigns no GPUs."""
        found = [
            ",".join(self.places[one][1])
            for one in holders
            if self.places.get(one, ("",))[0] == node
        ]
        return found if all(found) else []

    def stop(self) -> None:
        """Stop all daemons and kill all actors, including those on nodes that have left the fleet."""
        beginning = f"fleet-{self._fleet}/"
        actors = self._named(f"{beginning}node-")
        calls = [actor.stop.remote() for actor in actors]
        if calls:
            self._ray.wait(calls, num_returns=len(calls), timeout=120.0)
        for actor in [*actors, *self._named(beginning)]:
            self._ray.kill(actor, no_restart=True)
        self._actors.clear()

    def _named(self, beginning: str) -> list[Any]:
        found = []
        for name in named_actors(self._ray, beginning):
            with contextlib.suppress(ValueError):  # it has ended
                found.append(self._ray.get_actor(name, NAMESPACE))
        return found

    def _poll_holders(self, holders: Sequence[str]) -> None:
        missing: set[str] = set()
        for name in self._holders_to_query(holders):
            actor = self._holder(name)
            if actor is None:
                missing.add(name)
            elif name not in self._where:
                self._where[name] = actor.where.remote()
        for name, (place, error) in self._take_results(self._where, _HOLDER_S).items():
            if error:
                self.places.pop(name, None)
                if isinstance(error, _ActorDied):
                    missing.add(name)
            else:
                node, gpus = place
                self.places[name] = node, gpus
        self._missing = Counter({name: self._missing[name] + 1 for name in missing})
        self.gone = {
            name for name, missed in self._missing.items() if missed >= _MIN_CONFIRMING_POLLS
        }

    def _holders_to_query(self, holders: Sequence[str]) -> list[str]:
        """Return all holders without a location, and a few of the others in turn, because Ray rarely moves those."""
        lost = [one for one in holders if self.places.get(one, ("",))[0] not in self.alive]
        if not self._round:
            self._round = list(holders)
        share, self._round = (
            self._round[:_MAX_HOLDERS_PER_POLL],
            self._round[_MAX_HOLDERS_PER_POLL:],
        )
        there = set(holders)
        return list(dict.fromkeys([*lost, *(one for one in share if one in there)]))

    def _take_results(self, calls: dict[_Key, Any], wait_s: float) -> dict[_Key, tuple[Any, str]]:
        """Wait until all calls have ended, or until the timeout expires.

        Remove finished calls from `calls`; return key -> (result, error).

        Only one call to Ray is made, because there may be thousands of calls. Calls that another thread has removed
        in the meantime, for example when a holder was released, are left out.
        """
        waiting = dict(calls)
        if not waiting:
            return {}
        done, _ = self._ray.wait(list(waiting.values()), num_returns=len(waiting), timeout=wait_s)
        ended = set(done)
        results = {key: self._result(one) for key, one in waiting.items() if one in ended}
        return {key: one for key, one in results.items() if calls.pop(key, None) is not None}

    def _result(self, reference: Any) -> tuple[Any, str]:
        try:
            return self._ray.get(reference), ""
        except self._ray.exceptions.RayTaskError as error:
            return None, str(error.cause)
        except self._ray.exceptions.ActorDiedError as error:
            return None, _ActorDied(str(error) or "it has ended")
        except self._ray.exceptions.RayError as error:
            return None, str(error)

    def _holder(self, name: str) -> Optional[Any]:
        actor = self._holders.get(name)
        if actor is None:
            try:
                actor = self._ray.get_actor(f"fleet-{self._fleet}/{name}", NAMESPACE)
            except ValueError:  # it was released
                return None
            self._holders[name] = actor
        return actor

    def _node_actor(self, node: str, settings: dict[str, Any]) -> Any:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
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
            .remote(
                f"{folder}/{self._fleet}-{node[:8]}",
                settings.get("flags", []),
                f"fleet-{self._fleet}/environment-{node[:16]}-",
                node,
            )
        )  # fmt: skip


def _parse_state(answer: Any, before: Optional[DaemonState]) -> DaemonState:
    """Decode the answer of a node actor. Unchanged fields are taken from the previous state."""
    status, key, facts = answer
    if not isinstance(status, bytes):
        raise TypeError(f"a status of type {type(status).__name__}")
    if facts is None:
        if before is None:
            raise ValueError("it reported no change before ever reporting its state")
        return before._replace(status=status)
    lasting, kept = _facts.decode(facts)
    return DaemonState(
        status, str(key), lasting, {model: ModelOnNode(*one) for model, one in kept.items()}
    )


# ── Selects the nodes of a fleet among those of Ray, and those that leave it. Pure ──

#: Stands for all models in (node, model): balancers remove the whole node.
ALL_MODELS = ""
#: An ID that no node has, because Ray requires a non-empty list.
_NOWHERE = "none"


class Members(NamedTuple):
    """The nodes that a fleet uses, and the nodes that it should leave but that still have one of its actors."""

    kept: list[str]
    surplus: list[str]


def members(
    alive: Collection[str],
    max_nodes: Optional[int],
    had: Collection[str],
    among: Collection[str] = (),
    draining: Collection[str] = (),
    load: Mapping[str, int] = {},
) -> Members:
    """Choose the fleet's nodes. The choice is stable as long as nothing changes.

    Args:
        alive: live nodes
        max_nodes: maximum number of nodes; None: all
        had: nodes with an actor of the fleet
        among: previously chosen nodes
        draining: nodes that should serve nothing
        load: node -> number of instances placed there
    """
    if max_nodes is None:
        return Members(sorted(alive), [])
    # A drained node that has left must not come back.
    may = [one for one in alive if one in had or one not in draining]
    may.sort(
        key=lambda one: (one in draining, one not in among, one not in had, -load.get(one, 0), one)
    )
    return Members(sorted(may[:max_nodes]), sorted(one for one in may[max_nodes:] if one in had))


def nodes_to_clear(
    leaving: Collection[str],
    wanted: Mapping[str, Wanted],
    observed: Observed,
    models: Collection[tuple[str, str]],
) -> set[tuple[str, str]]:
    """Return (node, `ALL_MODELS`) for each leaving node on which nothing should be served any longer.

    Args:
        leaving: nodes that should serve nothing
        wanted: wanted state by model
        observed: node -> models that it serves, for each node that answers
        models: (node, model) to be removed
    """
    needed = {node for one in wanted.values() for node in one.nodes} if leaving else set()
    return {
        (node, ALL_MODELS)
        for node in leaving
        if node in observed
        and node not in needed
        and all((node, model) in models for model in observed[node])
    }


def nodes_expression(wish: str, but: Sequence[str], only: Optional[Sequence[str]]) -> str:
    """Return the expression for the node label of a holder; "" allows any node. Ray accepts only one expression.

    Args:
        wish: the user's expression for the node's ID: `ID`, `!ID`, `in(ID,…)` or `!in(ID,…)`; empty: none
        but: nodes to exclude: those that are draining
        only: the fleet's nodes, if they are not the whole cluster
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
