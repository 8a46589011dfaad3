"""Histories of many concurrent loads: which fail, which are retried, and which wait for others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.load_slots import EXTRA_SLOT_AFTER_S, LoadSlots
from pytriton.dispatcher.repository.model_loader import LoadQueue
from pytriton.dispatcher.repository.model_records import TRITONSERVER, ModelRecords
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.telemetry.events.kinds import EventKind

#: Seconds until tritonserver is up again; seconds that a load takes.
_DOWN_S, _LOAD_S = 10.0, 1.0


class Loads(list[Any]):
    """The loaded models, with the outcomes of their loads; it also replaces the registry and the events.

    Attributes:
        fates: outcomes of the next loads of each model: "serves", "is refused", "has a fault", "ends it"
        tries: the models of all loads, in order
        most: the highest number of concurrent loads
        waits_for_memory: models that wait for memory
        hangs: models whose load takes very long
    """

    def __init__(self, loop: VirtualLoop, fates: dict[str, list[str]]) -> None:
        self.loop, self.fates = loop, fates
        self.changes = ChangeSignal()
        self.ready = True
        self.tries: list[str] = []
        self.under_way: set[str] = set()
        self.most = 0
        self.reported: list[str] = []
        self.waits_for_memory: set[str] = set()
        self.hangs: set[str] = set()
        self.load_slots = LoadSlots(self.until_deferred, most=4)
        anyone = cast(Any, self)
        self.known = ModelRecords(anyone, anyone)
        self.loads = LoadQueue(self.load, self.known, anyone, anyone, anyone)

    def emit(self, kind: EventKind, *, model: str, reason: str) -> None:
        self.reported.append(f"{kind.name} {model}")

    async def load(self, name: str) -> None:
        assert self.ready, "tritonserver is down"
        assert name not in self.under_way
        self.tries.append(name)
        self.under_way.add(name)
        self.most = max(self.most, len(self.under_way))
        try:
            await self._meet(name)
            if not self.ready:  # it ends with tritonserver
                raise ServerLost(ErrorKind.UNAVAILABLE, "tritonserver has ended")
        finally:
            self.under_way.discard(name)
        record = self.known.of(name)
        record.state, record.served_by = "ready", TRITONSERVER

    async def _meet(self, name: str) -> None:
        fates = self.fates.get(name, [])
        fate = fates.pop(0) if fates else "serves"
        slow = name in self.waits_for_memory | self.hangs
        await asyncio.sleep(1000.0 if slow else _LOAD_S)
        if fate == "is refused":
            raise RemoteFailure(ErrorKind.LOAD_FAILED, "no such backend")
        if fate == "has a fault":
            raise KeyError("backend")
        if fate == "ends it" and self.ready:
            self.ready = False
            self.changes.notify()
            self.loop.call_later(_DOWN_S, self._is_up)

    def _is_up(self) -> None:
        self.ready = True
        self.changes.notify()

    async def until_deferred(self, loading: asyncio.Task[Any], name: str) -> None:
        if name not in self.waits_for_memory:
            await asyncio.wait([loading])

    def states(self) -> dict[str, str]:
        return {name: one.state for name, one in self.known.items()}


def at_start(loads: Loads, names: str, ensembles: Mapping[str, Sequence[str]] = {}) -> None:
    loads.loop.run(loads.loads.load_all(names.split(), ensembles))


@pytest.mark.parametrize(
    ("fates", "tries", "failed"),
    [
        ({}, "a b c", ""),
        ({"b": ["is refused"]}, "a b c", "b"),
        ({"b": ["has a fault"]}, "a b c", "b"),
        # Loading them one by one shows which of them crashes it.
        ({"b": ["ends it"]}, "a b c b c", ""),
        ({"a": ["ends it"]}, "a b c a b c", ""),
        ({"a": ["ends it", "is refused"]}, "a b c a b c", "a"),
        ({"b": ["ends it"] * 9}, "a b c b b b c", "b"),
        ({"a": ["ends it", "ends it"], "b": ["is refused"]}, "a b c a a c", "b"),
    ],
)
def test_a_failed_load_affects_no_other_model(
    loop: VirtualLoop, fates: dict[str, list[str]], tries: str, failed: str
) -> None:
    loads = Loads(loop, fates)
    at_start(loads, "a b c")
    states = loads.states()
    assert [name for name, state in states.items() if state == "failed"] == failed.split()
    assert all(state in ("ready", "failed") for state in states.values())
    assert [line.split()[1] for line in loads.reported] == failed.split()
    assert all(loads.known.of(name).reason for name in failed.split())
    assert loads.tries == tries.split()


def test_concurrent_loads_are_limited_by_slots(loop: VirtualLoop) -> None:
    loads = Loads(loop, {})
    at_start(loads, "a b c d e f")
    assert loads.most == 4
    assert loads.tries == ["a", "b", "c", "d", "e", "f"]
    assert loop.time() == 2 * _LOAD_S


def test_an_ensemble_waits_only_for_its_steps(loop: VirtualLoop) -> None:
    """Including the steps of an ensemble that is its step; other loads may hang."""
    loads = Loads(loop, {})
    loads.hangs = {"x"}
    ensembles = {"pair": ["a", "b"], "triple": ["pair", "f", "cloud"], "stuck": ["x", "a"]}
    starting = loop.create_task(
        loads.loads.load_all([*ensembles, "x", "a", "b", "c", "d", "e", "f"], ensembles)
    )
    loop.advance(10 * _LOAD_S)
    assert loads.tries[:1] == ["x"]
    assert loads.tries.index("pair") < loads.tries.index("triple")
    assert "stuck" not in loads.tries
    assert not starting.done()
    loop.run(starting)
    assert loads.tries[-1] == "stuck"


def test_circular_ensembles_fail_without_hanging(loop: VirtualLoop) -> None:
    """tritonserver reports what is wrong with them."""
    loads = Loads(loop, {})
    at_start(loads, "chicken egg", {"chicken": ["egg"], "egg": ["chicken"]})
    assert sorted(loads.tries) == ["chicken", "egg"]


def test_hanging_loads_do_not_block_others(loop: VirtualLoop) -> None:
    """With all slots taken, one more load starts every ten seconds, and finished loads free their slots at once."""
    loads = Loads(loop, {})
    loads.hangs = set("abcdef")
    starting = loop.create_task(loads.loads.load_all(list("abcdefghij"), {}))
    loop.advance(3 * EXTRA_SLOT_AFTER_S + 4 * _LOAD_S + 0.1)
    ready = [name for name, state in loads.states().items() if state == "ready"]
    assert ready == ["g", "h", "i", "j"]
    loop.run(starting)


def test_ensemble_steps_are_loaded_once(loop: VirtualLoop) -> None:
    loads = Loads(loop, {})
    loads.known.of("pair").served_by = TRITONSERVER  # a step of another one
    at_start(loads, "pair triple a", {"pair": ["a"], "triple": ["a"]})
    assert loads.tries == ["a", "triple"]


def test_loads_waiting_for_memory_block_no_others(loop: VirtualLoop) -> None:
    loads = Loads(loop, {})
    loads.waits_for_memory = {"a", "b", "c", "d"}
    starting = loop.create_task(loads.loads.load_all(list("abcdefgh"), {}))
    loop.advance(2 * _LOAD_S)
    ready = [name for name, state in loads.states().items() if state == "ready"]
    assert ready == ["e", "f", "g", "h"]
    assert not starting.done()
    loop.run(starting)
    assert set(loads.states().values()) == {"ready"}


@pytest.mark.parametrize("after_s", [0.5, 3.5, 12.0])
def test_cancelling_stops_all_loads(loop: VirtualLoop, after_s: float) -> None:
    """During loads, while tritonserver is down, and during retries."""
    loads = Loads(loop, {"a": ["serves"], "f": ["ends it"]})
    starting = loop.create_task(loads.loads.load_all(list("abcdefgh"), {}))
    loop.advance(after_s)
    starting.cancel()
    loop.settle()
    assert starting.cancelled()
    tried = list(loads.tries)
    assert loads.under_way == set()
    loop.advance(100.0)
    assert loads.tries == tried


def test_changed_models_are_loaded_one_by_one(loop: VirtualLoop) -> None:
    loads = Loads(loop, {"a": ["is refused"], "b": ["ends it"]})
    for name in ("a", "b"):
        loads.known.of(name).state, loads.known.of(name).served_by = "ready", TRITONSERVER
    loop.run(loads.loads.reload(["pair", "b", "a"], ["pair"]))
    assert loads.tries == ["b", "b", "a", "pair"]
    assert loads.most == 1
    assert loads.states() == {
        "a": "ready",
        "b": "ready",
        "pair": "ready",
    }  # the old `a` keeps serving
    assert loads.known.of("a").reason == "no such backend"


def test_previously_served_models_are_loaded_first_after_a_restart(loop: VirtualLoop) -> None:
    loads = Loads(loop, {})
    loads.known.server_lost = True
    loading = loop.create_task(loads.loads.reload(["a"], []))
    loop.advance(100.0)
    assert loads.tries == []
    loads.known.server_lost = False
    loads.changes.notify()
    loop.run(loading)
    assert loads.tries == ["a"]
