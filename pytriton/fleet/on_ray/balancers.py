"""The balancers of a fleet: what they are told, and what they have carried out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from pytriton._protocol import messages
from pytriton.fleet.on_ray.nodes import ALL_MODELS
from pytriton.fleet.on_ray.reconciler import Served
from pytriton.fleet.placement_status import NodeStatus

#: After that, balancers are told of those nodes that do answer.
_LATE_S = 60.0
#: A balancer that has not asked for so long is not waited for.
_BALANCER_S = 10.0
#: One that was told something new asks again when it has carried that out: HAProxy may take a while to read it.
_BUSY_S = 150.0
#: Until balancers that a former controller had are back: those that ended with Ray are started again, and HAProxy has
#: served on meanwhile.
_RETURN_S = 120.0

#: The addresses, the statuses, what is to go, and what is registered, as they were published last.
_Published = tuple[dict[str, str], dict[str, messages.Status], set[tuple[str, str]], set[str]]
_View = dict[str, tuple[str, messages.Status]]


class Balancers:
    """Says to balancers where models are. What changes for them gets a number, the generation, which rises.

    Args:
        clock: the time in seconds
        expected: a former controller had balancers
    """

    def __init__(self, clock: Callable[[], float], expected: bool = False) -> None:
        self._clock = clock
        self._expected = expected
        # Higher than any of a former life, which balancers may still tell of.
        self._generation = time.time_ns()
        self._born = self._clock()
        self._view: _View = {}
        self._told: tuple[int, bytes] = (0, b"")
        self._published: _Published = ({}, {}, set(), set())
        self._complete = False
        self._leaving: dict[tuple[str, str], int] = {}
        #: Balancer -> what it has carried out, until when it is waited for.
        self._asked: dict[str, tuple[int, float]] = {}

    def publish(
        self,
        alive: Mapping[str, str],
        statuses: Mapping[str, messages.Status],
        observed: Mapping[str, Mapping[str, Served]],
        leaving: Collection[tuple[str, str]],
        wanted: Collection[str] = (),
    ) -> None:
        """Tell balancers where models are; what is to go is left out, from this generation on.

        Args:
            alive: the address of each node that lives
            statuses: of the daemons that answer, by node; the same object as long as it has not changed
            observed: what each of these serves
            leaving: (node, model) that is to go, or (node, `ALL_MODELS`)
            wanted: models that are registered. A controller that was started again tells nothing before all of them are
                served: nodes that Ray has given up may serve them still, and that is what balancers have
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
            elif node in self._view:  # it lives: whether its daemon does is HAProxy's to judge
                view[node] = self._view[node]
        shown = {one.name for _, status in view.values() for one in status.models}
        self._keep_absent(view, set(wanted) - shown, leaving)
        if _facts(view) != _facts(self._view):
            self._generation += 1
        self._view = view
        whole = len(view) == len(staying) > 0 and shown.issuperset(wanted)
        self._complete = self._complete or whole
        self._leaving = {key: self._leaving.get(key, self._generation) for key in leaving}

    def _keep_absent(
        self, view: _View, absent: Collection[str], leaving: Collection[tuple[str, str]]
    ) -> None:
        """Leave models that nobody serves just now where they were: else clients hear that there are none such.

        A daemon that was started again has nothing at first. HAProxy asks it for the model, and says 503 meanwhile.
        """
        for node, (address, status) in view.items() if absent else ():
            _, before = self._view.get(node, ("", status))
            there = [
                one
                for one in before.models
                if one.name in absent and (node, one.name) not in leaving
            ]
            models = [*status.models, *there]
            view[node] = address, msgspec.structs.replace(status, models=models)

    def _is_published(
        self,
        alive: Mapping[str, str],
        statuses: Mapping[str, messages.Status],
        leaving: Collection[tuple[str, str]],
        wanted: Collection[str],
    ) -> bool:
        """Whether all is as it was published last; remembers it."""
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
        """Return each (node, model) that is to go, and that no balancer sends anything any more."""
        now = self._clock()
        if now - self._born < (_RETURN_S if self._expected else _BALANCER_S):
            return frozenset()  # those there are may not have asked yet
        self._asked = {name: one for name, one in self._asked.items() if now < one[1]}
        slowest = min((done for done, _ in self._asked.values()), default=self._generation)
        return frozenset(key for key, since in self._leaving.items() if slowest >= since)

    def answer(self, balancer: str, generation: int) -> tuple[int, bytes]:
        """Return what a balancer shall know, which has carried out `generation`: (generation, [NodeStatus]).

        The generation is -1 while not every node was looked at since this controller was started. A balancer that has
        carried out the present one is told nothing more.
        """
        self._expected = False
        # One that this controller has not reached yet is of a former life, on a machine whose clock was ahead.
        done = generation if generation <= self._generation else -1
        fresh = done == self._generation
        # Also one that is told nothing: it has HAProxy serve as a former controller said.
        self._asked[balancer] = done, self._clock() + (_BALANCER_S if fresh else _BUSY_S)
        if not self._complete:  # Ray has just started it again: what the balancer has is better
            return -1, b""
        if fresh:
            return generation, b""
        if self._told[0] != self._generation:
            found = [
                NodeStatus(f"tcp://{address}/{node}", status)
                for node, (address, status) in self._view.items()
            ]
            self._told = self._generation, msgspec.msgpack.encode(found)
        return self._told


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
