"""`Balancers`: publishes where models are served, and tracks which state each balancer has applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from pytriton._protocol import messages
from pytriton.fleet.on_ray.cluster import ALL_MODELS
from pytriton.fleet.on_ray.reconciler import ModelOnNode
from pytriton.fleet.placement_status import ABSENT, NodeStatus

#: Timeout after which balancers get the state of the nodes that answer.
_LATE_S = 60.0
#: A balancer that has not polled for this long is no longer waited for.
_BALANCER_S = 10.0
#: The same for a balancer with a new state, which polls again once HAProxy has applied it.
_BUSY_S = 150.0
#: Time for a previous controller's balancers to reconnect: those that stopped with Ray are restarted, while
#: HAProxy has kept serving.
_RETURN_S = 120.0

#: The addresses, statuses, leaving models and registrations, as last published.
_Published = tuple[dict[str, str], dict[str, messages.Status], set[tuple[str, str]], set[str]]
_View = dict[str, tuple[str, messages.Status]]


class Balancers:
    """Reports to balancers where models are served. Each change increments a generation number.

    Args:
        clock: function like time.monotonic
        expected: whether balancers were connected to a previous controller
    """

    def __init__(self, clock: Callable[[], float], expected: bool = False) -> None:
        self._clock = clock
        self._expected = expected
        # Higher than any generation of a previous controller, which balancers may still report.
        self._generation = time.time_ns()
        self._born = self._clock()
        self._view: _View = {}
        #: Registered models that nodes have served, with the path of each typed function: those of the view, and those that
        #: no node serves at the moment.
        self._served: dict[str, str] = {}
        self._absent: dict[str, str] = {}
        self._encoded_view: tuple[int, bytes] = (0, b"")
        self._published: _Published = ({}, {}, set(), set())
        self._complete = False
        self._leaving: dict[tuple[str, str], int] = {}
        #: Balancer -> the generation it has applied, and until when it is waited for.
        self._polls: dict[str, tuple[int, float]] = {}

    def publish(
        self,
        alive: Mapping[str, str],
        statuses: Mapping[str, messages.Status],
        observed: Mapping[str, Mapping[str, ModelOnNode]],
        leaving: Collection[tuple[str, str]],
        wanted: Collection[str] = (),
    ) -> None:
        """Publish where models are served, except for the models and nodes in `leaving`.

        Args:
            alive: address of each node that is alive
            statuses: node -> status, for each daemon that answers; the same object as long as it has not changed
            observed: node -> models that it serves
            leaving: (node, model) or (node, `ALL_MODELS`) that balancers must no longer use
            wanted: names of the registered models. A model that no node serves any longer is published as absent, so
                that its clients do not get "not found". A restarted controller publishes nothing until all models are
                served, because nodes that Ray considers dead may still serve them, and balancers still use these
                nodes
        """
        late = self._clock() - self._born > _LATE_S
        self._complete = self._complete or late
        if self._is_published(alive, statuses, leaving, wanted):
            return
        view = {}
        staying = {node: one for node, one in alive.items() if (node, ALL_MODELS) not in leaving}
        for node, address in sorted(staying.items()):
            status = statuses.get(node)
            if status is not None:
                models = [
                    one
                    for one in status.models
                    if (node, one.name) not in leaving and one.name in observed[node]
                ]
                view[node] = address, msgspec.structs.replace(status, models=models)
            elif node in self._view:
                # The node is alive, and HAProxy checks the health of its daemon.
                view[node] = self._view[node]
        shown = {one.name: one.route for _, status in view.values() for one in status.models}
        served = {**self._served, **shown}
        self._served = {name: route for name, route in served.items() if name in wanted}
        absent = {name: route for name, route in self._served.items() if name not in shown}
        if (_facts(view), absent) != (_facts(self._view), self._absent):
            self._generation += 1
        self._view, self._absent = view, absent
        whole = len(view) == len(staying) > 0 and shown.keys() >= set(wanted)
        self._complete = self._complete or whole
        self._leaving = {key: self._leaving.get(key, self._generation) for key in leaving}

    def _is_published(
        self,
        alive: Mapping[str, str],
        statuses: Mapping[str, messages.Status],
        leaving: Collection[tuple[str, str]],
        wanted: Collection[str],
    ) -> bool:
        """Return whether the arguments equal those of the last publication, and store them for the next comparison."""
        now = dict(alive), dict(statuses), set(leaving), set(wanted)
        before, self._published = self._published, now
        return (
            before[0] == alive
            and before[2] == leaving
            and before[3] == now[3]
            and before[1].keys() == statuses.keys()
            and all(before[1][node] is status for node, status in statuses.items())
        )

    def left(self) -> frozenset[tuple[str, str]]:
        """Return the (node, model) pairs in `leaving` to which no balancer sends requests any longer."""
        now = self._clock()
        if now - self._born < (_RETURN_S if self._expected else _BALANCER_S):
            return frozenset()  # existing balancers may not have reported yet
        self._polls = {name: one for name, one in self._polls.items() if now < one[1]}
        slowest = min((done for done, _ in self._polls.values()), default=self._generation)
        return frozenset(key for key, since in self._leaving.items() if slowest >= since)

    def answer(self, balancer: str, generation: int) -> tuple[int, bytes]:
        """Return the generation and the state (an encoded [NodeStatus]) for a balancer that has applied `generation`.

        The returned generation is -1 until this controller has polled every node. The state is empty then, and for a
        balancer that has already applied the current generation.
        """
        self._expected = False
        # A generation that this controller has not reached is from a previous one, on a machine whose clock
        # was ahead.
        done = generation if generation <= self._generation else -1
        fresh = done == self._generation
        # Record this even if it gets no state: its HAProxy still uses the state of a previous controller.
        self._polls[balancer] = done, self._clock() + (_BALANCER_S if fresh else _BUSY_S)
        # Ray has just restarted this controller, so the balancer's own state is better.
        if not self._complete:
            return -1, b""
        if fresh:
            return generation, b""
        if self._encoded_view[0] != self._generation:
            self._encoded_view = self._generation, msgspec.msgpack.encode(self._nodes())
        return self._encoded_view

    def _nodes(self) -> list[NodeStatus]:
        # Each node lists the absent models, because balancers may leave out any node; none gets their requests.
        absent = [
            messages.ModelInfo(name, 0, ABSENT, [], route=route)
            for name, route in sorted(self._absent.items())
        ]
        found = []
        for node, (address, status) in self._view.items():
            shown = msgspec.structs.replace(status, models=[*status.models, *absent])
            found.append(NodeStatus(f"tcp://{address}/{node}", shown))
        return found


def _facts(view: _View) -> list[Any]:
    """Return the parts of a view from which a balancer generates its configuration."""
    return [
        (
            node,
            address,
            status.server.http_url,
            status.server.grpc_url,
            sorted(
                (one.name, 0.0 if one.lease is None else one.lease.share, one.route)
                for one in status.models
            ),
        )
        for node, (address, status) in view.items()
    ]
