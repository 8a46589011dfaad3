"""How long the exits of proxies are awaited, and what happens to those that stay."""

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
    """The part of a pool that detached proxies use; `answered` is the number of answered batches, None while one is in flight."""

    def __init__(self) -> None:
        self.proxies = FakeProxies()
        self.answered: int | None = 0

    def answered_if_idle(self) -> int | None:
        return self.answered


class Ends:
    """The exits of three compiled proxies."""

    def __init__(self) -> None:
        self.pool = FakePool()
        self.ends = ProxyExits(cast(Pool, self.pool), pytest.fail)
        for name in ("p0", "p1", "p2"):
            self.pool.proxies.add(name)
            self.ends.proxies.watch(name, None)


@pytest.fixture
def three(loop: VirtualLoop) -> Ends:
    return loop.ask(Ends)


def test_the_wait_ends_when_tritonserver_has_exited(loop: VirtualLoop, three: Ends) -> None:
    waiting = loop.create_task(three.ends.until_all_ended(30.0, decoupled=False))
    loop.advance(1.0)
    three.ends.forget_all()
    assert loop.run(waiting) is True
    assert three.ends.proxies.names() == set()


def test_remaining_proxies_are_detached_after_the_grace_period(
    loop: VirtualLoop, three: Ends
) -> None:
    assert loop.run(three.ends.until_all_ended(30.0, decoupled=False)) is False
    assert loop.time() == 30.0
    three.ends.end_all()
    assert not three.pool.proxies


@pytest.mark.parametrize(
    ("delay_s", "over_s"), [(0.0, 2.0), (5.0, 12.0)], ids=["at once", "with a queue's delay"]
)
def test_proxies_of_an_idle_decoupled_model_may_stay(
    loop: VirtualLoop, three: Ends, delay_s: float, over_s: float
) -> None:
    """Its workers have been idle for longer than a request may wait in Triton's queue."""
    ended = three.ends.until_all_ended(30.0, decoupled=True, queue_delay_s=delay_s)
    assert loop.run(ended) is True
    assert loop.time() == over_s
    assert len(three.pool.proxies) == 3


def test_a_batch_in_flight_of_a_decoupled_model_is_awaited(loop: VirtualLoop, three: Ends) -> None:
    three.pool.answered = None
    waiting = loop.create_task(three.ends.until_all_ended(30.0, decoupled=True))
    loop.advance(10.0)
    three.pool.answered = 1
    loop.advance(0.5)
    assert not waiting.done()
    assert loop.run(waiting) is True
    three.pool.answered = None
    assert loop.run(three.ends.until_all_ended(30.0, decoupled=True)) is False
