"""The balancers of a fleet: what they are told, and what they have carried out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from pytriton.fleet.on_ray.reconciling import Served
from pytriton.fleet.served import NodeStatus
from pytriton.ipc import messages

#: After that, balancers are told of those nodes that do answer.
_LATE_S = 60.0
#: A balancer that has not asked for so long is not waited for.
_BALANCER_S = 10.0

_View = dict[str, tuple[str, messages.Status]]


class Balancers:
    """Says to balancers where models are. What changes for them gets a number, the generation, which rises.

    Args:
        clock: the time in seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Higher than any of a former life, which balancers may still tell of.
        self._generation = time.time_ns()
        self._born = self._clock()
        self._view: _View = {}
        self._complete = False
        self._leaving: dict[tuple[str, str], int] = {}
        self._asked: dict[str, tuple[int, float]] = {}

    def publish(
        self,
        alive: Mapping[str, str],
        statuses: Mapping[str, messages.Status],
        observed: Mapping[str, Mapping[str, Served]],
        leaving: Collection[tuple[str, str]],
    ) -> None:
        """Tell balancers where models are; what is to go is left out, from this generation on.

        Args:
            alive: the address of each node that lives
            statuses: of the daemons that answer, by node
            observed: what each of these serves
            leaving: (node, model) that is to go
        """
        view = {}
        for node, address in sorted(alive.items()):
            status = statuses.get(node)
            if status is not None:
                models = [
                    one
                    for one in status.models
                    if (node, one.name) not in leaving and one.name in observed[node]
                ]
                view[node] = address, msgspec.structs.replace(status, models=models)
            elif node in self._view:  # it lives: whether its daemon does is HAProxy's to judge
                view[node] = self._view[node]
        if _facts(view) != _facts(self._view):
            self._generation += 1
        self._view = view
        late = self._clock() - self._born > _LATE_S
        self._complete = self._complete or len(view) == len(alive) > 0 or late
        self._leaving = {key: self._leaving.get(key, self._generation) for key in leaving}

    def left(self) -> frozenset[tuple[str, str]]:
        """Return each (node, model) that is to go, and that no balancer sends anything any more."""
        now = self._clock()
        if now - self._born < _BALANCER_S:  # those there are may not have asked yet
            return frozenset()
        self._asked = {name: one for name, one in self._asked.items() if now - one[1] < _BALANCER_S}
        slowest = min((done for done, _ in self._asked.values()), default=self._generation)
        return frozenset(key for key, since in self._leaving.items() if slowest >= since)

    def answer(self, balancer: str, generation: int) -> tuple[int, bytes]:
        """Return what a balancer shall know, which has carried out `generation`: (generation, [NodeStatus]).

        The generation is -1 while not every node was looked at since this controller was started. A balancer that has
        carried out the present one is told nothing more.
        """
        if not self._complete:  # Ray has just started it again: what the balancer has is better
            return -1, b""
        self._asked[balancer] = generation, self._clock()
        if generation == self._generation:
            return generation, b""
        found = [
            NodeStatus(f"tcp://{address}/{node}", status)
            for node, (address, status) in self._view.items()
        ]
        return self._generation, msgspec.msgpack.encode(found)


def _facts(view: _View) -> list[Any]:
    """Return what a balancer makes its configuration of."""
    return [
        (
            node,
            address,
            status.server.http_url,
            status.server.grpc_url,
            sorted(
                (one.name, 0.0 if one.trial is None else one.trial.share) for one in status.models
            ),
        )
        for node, (address, status) in view.items()
    ]
