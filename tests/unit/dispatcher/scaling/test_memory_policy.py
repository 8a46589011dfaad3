"""Who gets memory, and who is suspended for it: within the budget, least recently used first, no starvation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from pytriton.dispatcher.scaling.memory_policy import (
    MEMORY,
    MIN_ESTIMATE,
    PATIENCE_S,
    Amounts,
    Claim,
    MemoryHolder,
    MemoryPlan,
    added,
    amounts_text,
    estimate,
    plan,
)

MIB = 1 << 20
NOW = 1000.0


def claim(key: str, size: int, waited_s: float = 0.0) -> Claim:
    return Claim(key, {MEMORY: size}, NOW - waited_s)


def holder(key: str, size: int, quiet_s: float, *, idle: bool = True) -> MemoryHolder:
    return MemoryHolder(key, {MEMORY: size}, NOW - quiet_s, idle)


def planned(
    claims: Sequence[Claim], holders: Sequence[MemoryHolder], free: int, coming: int = 0
) -> tuple[list[str], list[str]]:
    found = plan(claims, holders, {MEMORY: free}, {MEMORY: coming}, NOW)
    return list(found.granted), list(found.suspend)


@pytest.mark.parametrize(
    ("claims", "holders", "free", "coming", "expected"),
    [
        pytest.param([claim("a", 5)], [], 5, 0, (["a"], []), id="there is room"),
        pytest.param([claim("a", 5), claim("b", 1)], [], 5, 0, (["a"], []), id="not for both"),
        pytest.param(
            [claim("a", 6), claim("b", 5)], [], 5, 0, (["b"], []), id="one that fits goes first"
        ),
        pytest.param(
            [claim("a", 6, PATIENCE_S), claim("b", 5)],
            [holder("busy", 1, 0, idle=False)],
            5,
            0,
            ([], []),
            id="but not for ever",
        ),
        pytest.param(
            [claim("a", 6, PATIENCE_S), claim("b", 5)],
            [MemoryHolder("stays", {MEMORY: 1}, NOW, False, False)],
            5,
            0,
            (["b"], []),
            id="unless it waits in vain",
        ),
        pytest.param(
            [claim("a", 3)],
            [holder("new", 3, 1), holder("old", 3, 9)],
            0,
            0,
            ([], ["old"]),
            id="the least recently used sleeps",
        ),
        pytest.param(
            [claim("a", 5)],
            [holder("1", 3, 1), holder("2", 3, 2), holder("3", 3, 3)],
            0,
            0,
            ([], ["3", "2"]),
            id="as many as it takes",
        ),
        pytest.param(
            [claim("a", 3)],
            [holder("old", 3, 9, idle=False), holder("new", 3, 1)],
            0,
            0,
            ([], ["new"]),
            id="but no busy one",
        ),
        pytest.param(
            [claim("a", 9)], [holder("1", 3, 9)], 0, 0, ([], []), id="nobody sleeps in vain"
        ),
        pytest.param(
            [claim("a", 9, PATIENCE_S)],
            [holder("1", 3, 9), holder("busy", 6, 0, idle=False)],
            0,
            0,
            ([], ["1"]),
            id="who has waited long gathers",
        ),
        pytest.param(
            [claim("a", 9, PATIENCE_S), claim("b", 1)],
            [holder("1", 3, 9), MemoryHolder("stays", {MEMORY: 6}, NOW, False, False)],
            1,
            0,
            (["b"], []),
            id="but not what never is enough",
        ),
        pytest.param(
            [claim("a", 9, PATIENCE_S)._replace(of="a")],
            [holder("1", 3, 9), holder("a", 6, 0, idle=False)],
            0,
            0,
            ([], []),
            id="nor with what it has itself",
        ),
        pytest.param(
            [claim("a", 3)], [holder("1", 3, 9)], 0, 3, ([], []), id="one is suspended already"
        ),
        pytest.param(
            [claim("a", 3), claim("b", 3)],
            [holder("1", 3, 9), holder("2", 3, 8)],
            0,
            3,
            ([], ["1"]),
            id="that one is for the first",
        ),
        pytest.param(
            [claim("a", 3)], [holder("1", 3, 0.1)], 0, 0, ([], []), id="between two requests"
        ),
        pytest.param(
            [claim("a", 3, PATIENCE_S)],
            [holder("1", 3, 0.1)],
            0,
            0,
            ([], ["1"]),
            id="even so at last",
        ),
        pytest.param([], [holder("1", 3, 9), holder("2", 3, 8)], -2, 0, ([], ["1"]), id="grown"),
        pytest.param([], [holder("1", 3, 9)], -2, 2, ([], []), id="grown, and somebody leaves"),
        pytest.param(
            [claim("a", 1)], [holder("1", 3, 9, idle=False)], -2, 0, ([], []), id="nothing for more"
        ),
        pytest.param([claim("a", 0)], [], -2, 0, (["a"], []), id="what takes nothing"),
    ],
)
def test_plans(
    claims: list[Claim],
    holders: list[MemoryHolder],
    free: int,
    coming: int,
    expected: tuple[list[str], list[str]],
) -> None:
    assert planned(claims, holders, free, coming) == expected


def test_each_gpu_has_its_own_budget() -> None:
    claims = [Claim("a", {MEMORY: 1, "0": 4}, NOW), Claim("b", {MEMORY: 1, "1": 4}, NOW)]
    holders = [
        MemoryHolder("on 1", {MEMORY: 1, "1": 4}, NOW - 9, True),
        MemoryHolder("on 0", {MEMORY: 1, "0": 4}, NOW - 5, True),
    ]
    found = plan(claims, holders, {MEMORY: 9, "0": 0, "1": 4}, {}, NOW)
    assert found == MemoryPlan(["b"], {"on 0": "a"})


def test_models_without_a_budget_are_unbounded() -> None:
    assert plan([Claim("a", {MEMORY: 9, "0": 5}, NOW)], [], {"0": 5}, {}, NOW) == MemoryPlan(
        ["a"], {}
    )


def test_an_estimate() -> None:
    assert estimate([], 10, 1000 * MIB) == 250 * MIB
    assert estimate([], 10, 100 * MIB) == MIN_ESTIMATE
    assert estimate([], 10, 10 * MIB) == 10 * MIB
    assert estimate([10 * MIB], 100 * MIB, 1000 * MIB) == 200 * MIB
    assert estimate([100 * MIB, 900 * MIB, 300 * MIB], 10, 10**10) == 900 * MIB
    assert estimate([900 * MIB], 10, 1000 * MIB) == 250 * MIB


def test_texts_of_decisions() -> None:
    assert amounts_text({MEMORY: 512 * MIB, "0": 20480 * MIB}) == (
        "512 MiB of memory and 20.00 GiB of memory of GPU 0"
    )
    assert amounts_text({MEMORY: 0}) == "no memory"


_SIZES = st.integers(1, 10)
_CLAIMS = st.lists(st.tuples(_SIZES, st.floats(0, 20)), max_size=6)
_HOLDERS = st.lists(st.tuples(_SIZES, st.floats(0, 60), st.booleans()), max_size=8)


@given(_CLAIMS, _HOLDERS, st.integers(-5, 20), st.integers(0, 10))
def test_grants_fit_and_the_least_recently_used_is_suspended_first(
    claims: list[tuple[int, float]],
    holders: list[tuple[int, float, bool]],
    free: int,
    coming: int,
) -> None:
    wishes = [claim(f"c{i}", size, waited) for i, (size, waited) in enumerate(claims)]
    wishes.sort(key=lambda one: one.since)
    have = [
        holder(f"h{i}", size, quiet, idle=idle) for i, (size, quiet, idle) in enumerate(holders)
    ]
    found = plan(wishes, have, {MEMORY: free}, {MEMORY: coming}, NOW)
    sizes = {one.key: one.needs[MEMORY] for one in wishes}
    assert sum(sizes[key] for key in found.granted) <= max(0, free)
    slept = [one for one in have if one.key in found.suspend]
    assert all(one.idle for one in slept)
    stayed = [one for one in have if one.idle and one not in slept]
    for one in slept:
        assert all(one.used_at <= other.used_at for other in stayed)
    for one in slept:  # nothing is suspended for a claim that fits without it
        assert found.suspend[one.key] not in found.granted


class _World:
    """Models that hold memory, are busy for random times, and suspend on request; a step is a tenth of a second."""

    def __init__(self, budget: int, seed: int) -> None:
        self.budget = budget
        self.dice = random.Random(seed)
        self.now = 0.0
        self.loaded: dict[str, tuple[int, float]] = {}  # size, used at
        self.busy_until: dict[str, float] = {}
        self.falling: dict[str, tuple[int, float]] = {}
        self.waiting: list[Claim] = []
        self.waited: list[float] = []

    def used(self) -> int:
        return sum(one[0] for one in (*self.loaded.values(), *self.falling.values()))

    def ask(self, key: str, size: int) -> None:
        if key in self.loaded:
            self.busy_until[key] = max(self.now, self.busy_until[key]) + self.dice.uniform(0, 0.5)
            self.loaded[key] = (size, self.now)
        elif key not in self.falling and all(one.key != key for one in self.waiting):
            self.waiting.append(Claim(key, {MEMORY: size}, self.now))

    def step(self) -> None:
        self.now += 0.1
        for key, (_, until) in list(self.falling.items()):
            if self.now >= until:
                del self.falling[key]
        holders = [
            MemoryHolder(
                key,
                {MEMORY: size},
                max(used, self.busy_until[key]),
                self.now > self.busy_until[key],
            )
            for key, (size, used) in self.loaded.items()
        ]
        coming: Amounts = added(*({MEMORY: size} for size, _ in self.falling.values()))
        found = plan(self.waiting, holders, {MEMORY: self.budget - self.used()}, coming, self.now)
        for one in [one for one in self.waiting if one.key in found.granted]:
            self.waiting.remove(one)
            self.waited.append(self.now - one.since)
            self.loaded[one.key] = (one.needs[MEMORY], self.now)
            self.busy_until[one.key] = self.now + self.dice.uniform(0.2, 1.0)
        for key in found.suspend:
            self.falling[key] = (self.loaded.pop(key)[0], self.now + self.dice.uniform(0.1, 0.5))
        assert self.used() <= self.budget


@pytest.mark.parametrize("seed", range(5))
def test_no_claim_starves(seed: int) -> None:
    """Forty models of sizes up to the whole budget get random requests: each load waits for a few seconds at most."""
    world = _World(100, seed)
    sizes = {f"m{i}": world.dice.choice([5, 10, 20, 40, 100]) for i in range(40)}
    steps = examples(6000)
    for _ in range(steps):
        if world.dice.random() < 0.3:
            key = world.dice.choice(list(sizes))
            world.ask(key, sizes[key])
        world.step()
    assert len(world.waited) > steps / 20
    for _ in range(3000):  # there are no more requests
        world.step()
    assert world.waiting == []
