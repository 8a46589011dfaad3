"""How long the ends of proxies are waited for, and what is done to those that stay."""

from __future__ import annotations

from typing import cast

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.models.in_triton.attached_proxies import ProxyExits
from pytriton.dispatcher.workers.pool import Pool


class FakeProxies(set[str]):
    """The names of the proxies that a pool serves."""

    def detach(self, proxy: str) -> None:
        self.discard(proxy)

    def forget_all(self) -> None:
        self.clear()


class FakePool:
    """As much of a pool as proxies end in; `answered` is how many batches are, None while one is under way."""

    def __init__(self) -> None:
        self.proxies = FakeProxies()
        self.answered: int | None = 0

    def answered_if_idle(self) -> int | None:
        return self.answered


class Ends:
    """The ends of three compiled proxies."""

    def __init__(self) -> None:
        self.pool = FakePool()
        self.broken: list[str] = []
        self.ends = ProxyExits(cast(Pool, self.pool), self.broken.append)
        for name in ("p0", "p1", "p2"):
            self.pool.proxies.add(name)
            self.ends.proxies.watch(name, None)


@pytest.fixture
def three(loop: VirtualLoop) -> Ends:
    return loop.ask(Ends)


def test_it_is_over_when_the_last_one_has_detached(loop: VirtualLoop, three: Ends) -> None:
    waiting = loop.create_task(three.ends.until_all_ended(30.0, decoupled=False))
    for name in ("p0", "p1"):
        loop.advance(1.0)
        three.ends.detach(name)
    loop.advance(1.0)
    assert not waiting.done()
    three.ends.detach("p2")
    assert loop.run(waiting) is True
    assert loop.time() == 3.0
    assert three.broken == []


def test_it_is_over_when_tritonserver_has_ended(loop: VirtualLoop, three: Ends) -> None:
    waiting = loop.create_task(three.ends.until_all_ended(30.0, decoupled=False))
    loop.advance(1.0)
    three.ends.forget_all()
    assert loop.run(waiting) is True
    assert three.ends.proxies.names() == set()


def test_those_that_stay_are_let_go_after_the_grace_period(loop: VirtualLoop, three: Ends) -> None:
    assert loop.run(three.ends.until_all_ended(30.0, decoupled=False)) is False
    assert loop.time() == 30.0
    three.ends.end_all()
    assert not three.pool.proxies


@pytest.mark.parametrize(
    ("delay_s", "over_s"), [(0.0, 2.0), (5.0, 12.0)], ids=["at once", "with a queue's delay"]
)
def test_of_a_decoupled_model_they_may_stay_when_nothing_is_under_way(
    loop: VirtualLoop, three: Ends, delay_s: float, over_s: float
) -> None:
    """Its workers have had nothing to do for longer than a request may wait in Triton's queue."""
    ended = three.ends.until_all_ended(30.0, decoupled=True, queue_delay_s=delay_s)
    assert loop.run(ended) is True
    assert loop.time() == over_s
    assert len(three.pool.proxies) == 3


def test_of_a_decoupled_model_a_batch_under_way_is_waited_for(
    loop: VirtualLoop, three: Ends
) -> None:
    three.pool.answered = None
    waiting = loop.create_task(three.ends.until_all_ended(30.0, decoupled=True))
    loop.advance(10.0)
    three.pool.answered = 1
    loop.advance(0.5)
    assert not waiting.done()
    assert loop.run(waiting) is True
    three.pool.answered = None
    assert loop.run(three.ends.until_all_ended(30.0, decoupled=True)) is False


def test_only_the_former_ones_are_ended(loop: VirtualLoop, three: Ends) -> None:
    """Once the model has been loaded anew beside a proxy that broke."""
    waiting = loop.create_task(three.ends.until_ended({"p0", "p1", "gone"}, 10.0))
    loop.advance(1.0)
    three.ends.detach("p0")
    loop.run(waiting)
    assert loop.time() == 10.0
    assert three.ends.proxies.names() == {"p2"}
    assert three.pool.proxies == {"p2"}
