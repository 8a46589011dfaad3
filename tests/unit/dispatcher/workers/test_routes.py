"""Routes: a worker gets its number of proxies before the next gets one; none has too many while another lacks some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.dispatcher.workers.routes import Routes

WORKERS = ["w1", "w2", "w3"]


def loads(routes: Routes) -> list[int]:
    return [routes.lanes_of(worker) for worker in WORKERS]


def routes_for(lanes: int) -> Routes:
    return Routes(lambda: lanes)


def test_proxies_spread_over_the_workers() -> None:
    routes = Routes()
    assert sorted(routes.assign(f"p{i}", WORKERS) for i in range(3)) == WORKERS
    assert len(routes) == 3


def test_a_proxy_that_asks_again_is_counted_once() -> None:
    routes = routes_for(2)
    for _ in range(3):
        routes.assign("p0", WORKERS)
    assert len(routes) == 1
    assert routes.worker_of("p0") == "w1"


def test_a_worker_gets_its_number_before_the_next_gets_one() -> None:
    routes = routes_for(2)
    assert [routes.assign(f"p{i}", WORKERS) for i in range(6)] == [w for w in WORKERS for _ in "12"]


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_spares_stay_free(lanes: int) -> None:
    routes = routes_for(lanes)
    for i in range(2 * lanes):
        routes.assign(f"p{i}", WORKERS)
    assert loads(routes) == [lanes, lanes, 0]


def test_proxies_beyond_the_number_go_to_the_least_busy() -> None:
    """A worker has ended and nothing replaces it yet: its four proxies do not all go to one of the others."""
    routes = routes_for(4)
    for i in range(12):
        routes.assign(f"p{i}", WORKERS)
    for i in range(4):
        assert routes.worker_of(f"p{i}") == "w1"
        routes.assign(f"p{i}", WORKERS[1:])
    assert loads(routes) == [0, 6, 6]


def test_a_replacement_gets_its_full_number_back() -> None:
    """One at a time, each from a worker that has too many at that moment."""
    routes = routes_for(2)
    for i in range(6):
        routes.assign(f"p{i}", ["w2", "w3"])
    assert loads(routes) == [0, 3, 3]
    given_away = 0
    while (giver := routes.too_many_for("w1")) is not None:
        proxy = next(f"p{i}" for i in range(6) if routes.worker_of(f"p{i}") == giver)
        assert routes.assign(proxy, WORKERS) == "w1"
        given_away += 1
    assert given_away == 2
    assert loads(routes) == [2, 2, 2]
    assert [routes.too_many_for(worker) for worker in WORKERS] == [None] * 3


def test_a_worker_with_more_than_its_number_gives_to_one_with_less() -> None:
    for lanes in (1, 2):
        routes = routes_for(lanes)
        for i in range(lanes + 1):
            routes.assign(f"p{i}", ["w1"])
        assert routes.too_many_for("w2") == "w1"
        assert routes.too_many_for("w1") is None


def test_nothing_is_taken_from_a_worker_with_its_number() -> None:
    for lanes in (1, 2):
        routes = routes_for(lanes)
        for i in range(lanes):
            routes.assign(f"p{i}", ["w1"])
        assert routes.too_many_for("w2") is None
        routes.clear()
        assert routes.too_many_for("w2") is None


STEPS = st.lists(st.tuples(st.integers(0, 7), st.sets(st.sampled_from(WORKERS), min_size=1)))


@given(st.integers(1, 3), STEPS)
def test_the_choice_is_one_with_some_but_not_all_else_one_of_the_least_busy(
    lanes: int, steps: list[tuple[int, set[str]]]
) -> None:
    routes = routes_for(lanes)
    for proxy, ready in steps:
        routes.forget(f"p{proxy}")
        before = {worker: routes.lanes_of(worker) for worker in ready}
        chosen = routes.assign(f"p{proxy}", sorted(ready))
        assert routes.lanes_of(chosen) == before[chosen] + 1
        begun = [count for count in before.values() if 0 < count < lanes]
        assert before[chosen] == (max(begun) if begun else min(before.values()))
    assert len(routes) == sum(loads(routes))


@given(st.integers(1, 3), STEPS)
def test_giving_away_ends_with_nobody_lacking_what_another_has_too_much(
    lanes: int, steps: list[tuple[int, set[str]]]
) -> None:
    routes = routes_for(lanes)
    for proxy, ready in steps:
        routes.assign(f"p{proxy}", sorted(ready))
    for _ in range(8):  # as many as there are proxies at most
        asked = [(routes.too_many_for(idle), idle) for idle in WORKERS]
        moves = [(giver, idle) for giver, idle in asked if giver is not None]
        if not moves:
            break
        giver = moves[0][0]
        routes.assign(
            next(f"p{i}" for i in range(8) if routes.worker_of(f"p{i}") == giver), WORKERS
        )
    assert max(loads(routes)) <= lanes or min(loads(routes)) >= lanes
