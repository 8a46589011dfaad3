"""Routes: every proxy has a worker, no worker has two while another has none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytriton.dispatcher.routing import Routes

WORKERS = ["w1", "w2", "w3"]


def test_proxies_spread_over_the_workers() -> None:
    routes = Routes()
    assert sorted(routes.assign(f"p{i}", WORKERS) for i in range(3)) == WORKERS
    assert len(routes) == 3


def test_a_proxy_that_asks_again_is_counted_once() -> None:
    routes = Routes()
    for _ in range(3):
        routes.assign("p0", WORKERS)
    assert len(routes) == 1


def test_a_worker_with_two_gives_one_to_a_worker_with_none() -> None:
    routes = Routes()
    for i in range(2):
        routes.assign(f"p{i}", ["w1"])
    assert routes.too_many_for("w2") == "w1"
    assert routes.too_many_for("w1") is None


def test_nothing_is_taken_from_a_worker_with_one() -> None:
    routes = Routes()
    routes.assign("p0", ["w1"])
    assert routes.too_many_for("w2") is None
    routes.clear()
    assert routes.too_many_for("w2") is None


@given(st.lists(st.tuples(st.integers(0, 5), st.sets(st.sampled_from(WORKERS), min_size=1))))
def test_the_choice_is_always_one_of_the_least_busy(steps: list[tuple[int, set[str]]]) -> None:
    routes = Routes()
    for proxy, ready in steps:
        routes.forget(f"p{proxy}")
        least = min(routes.lanes_of(worker) for worker in ready)
        chosen = routes.assign(f"p{proxy}", sorted(ready))
        assert chosen in ready
        assert routes.lanes_of(chosen) == least + 1
    assert len(routes) == sum(routes.lanes_of(worker) for worker in WORKERS)
