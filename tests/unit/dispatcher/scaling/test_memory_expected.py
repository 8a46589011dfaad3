"""What models are expected to take of a budget: claims that cannot be met, estimates, what workers make for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes.asked_daemons import MIB, Budgeted
from support.fakes.fake_worker import FakeWorker

from pytriton._protocol import messages
from pytriton._protocol.files.shared_entries import Entry, Holder
from pytriton.dispatcher.elastic.memory import Size
from pytriton.dispatcher.workers.sleep import WakeBounds


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.brain.close()


def test_who_waits_in_vain_takes_nothing_from_others(daemon: Budgeted) -> None:
    daemon.register("fixed", lazy=False, memory=600 * MIB)
    daemon.register("big", memory=500 * MIB)
    for name in "abc":
        daemon.register(name, memory=100 * MIB)
    daemon.sizes.update(fixed=600, big=500, a=100, b=100, c=100)
    daemon.served("a")
    big = daemon.batch("big")
    daemon.brain.advance(4.0)
    assert not big.done()
    for name in "bc":
        daemon.served(name, 1.0)
    assert daemon.loaded() == {"fixed", "a", "b", "c"}


def test_an_estimate_keeps_nobody_from_being_loaded(daemon: Budgeted) -> None:
    daemon.register("fixed", lazy=False, memory=850 * MIB)
    daemon.usual = 50
    daemon.register("new")  # a quarter of the budget, as far as anybody knows
    daemon.served("new", 2.0)
    assert daemon.loaded() == {"fixed", "new"}


def test_what_the_first_worker_makes_for_all_is_not_charged_to_each(daemon: Budgeted) -> None:
    daemon.register("a", instances=3)
    daemon.usual = 100
    loaded = daemon.memory.memory
    daemon.brain.plans = ["hangs"] * 3
    batch = daemon.batch("a")
    daemon.memory.memory = lambda pid: Size(300 * MIB)
    daemon.brain.advance(1.0)
    daemon.memory.memory = loaded
    workers = daemon.brain.alive("a")
    holders = [Holder(one.pid, 1, 3) for one in workers]
    daemon.shared = {"table": Entry("t", "memory", 200 * MIB, holders)}
    for one in workers:
        one.loaded()
    daemon.wait(batch, 1.0)
    daemon.brain.advance(1.0)
    assert daemon.used() == 3 * 109 + 200


def test_a_model_that_crashes_again_and_again_sleeps_for_others(daemon: Budgeted) -> None:
    daemon.register("a", memory=600 * MIB)
    daemon.register("b", memory=600 * MIB)
    worker = daemon.served("a")
    daemon.brain.usual_plan = "crashes"
    worker.end()
    daemon.brain.advance(100.0)
    assert daemon.state("a") == "unready"
    daemon.brain.usual_plan = "serves"
    daemon.served("b")
    assert daemon.loaded() == {"b"}
    assert daemon.state("a") == "asleep"
    daemon.brain.advance(2.0)
    daemon.served("a")  # it is asked for again


def with_a_spare(
    daemon: Budgeted, needs: int, *, bounds: WakeBounds | None = None, **more: Any
) -> FakeWorker:
    """A model whose spare serves, while another leaves its instances no room; return what is busy."""
    daemon.usual = 200
    daemon.register("m", spares=1, memory=200 * MIB, **more)
    daemon.served("m")
    daemon.brain.advance(30.0)
    daemon.register("busy", memory=needs * MIB)
    daemon.sizes["busy"] = needs
    busy = daemon.served("busy")
    busy.begin()
    assert daemon.state("m") == "asleep"
    (spare,) = daemon.brain.alive("m")
    if bounds is not None:
        registration = daemon.brain.daemon.registry.get("m")
        assert registration is not None
        pool = registration.pool
        pool._policy = dataclasses.replace(pool._policy, wake_bounds=bounds)
    daemon.wait(daemon.batch("m"), 1.0)
    spare.begin()
    daemon.brain.advance(1.0)
    assert daemon.state("m") == "ready"
    assert daemon.brain.alive("m") == [spare]
    return busy


def test_fewer_instances_are_waited_for_when_fewer_are_wanted(daemon: Budgeted) -> None:
    busy = with_a_spare(daemon, 500, instances=3)
    daemon.brain.served(daemon.brain.client.ask(messages.Scale("m", 1)))
    daemon.brain.advance(1.0)
    assert len(daemon.brain.alive("m")) == 2  # with the spare
    busy.answer()
    daemon.brain.advance(10.0)
    assert daemon.used() == 400 + 500


def test_that_holds_for_the_next_claim_too(daemon: Budgeted) -> None:
    busy = with_a_spare(daemon, 700, instances=3)
    daemon.brain.served(daemon.brain.client.ask(messages.Scale("m", 1)))
    daemon.brain.advance(70.0)
    busy.answer()
    daemon.brain.advance(10.0)
    assert len(daemon.brain.alive("m")) == 2
    assert daemon.used() == 400


def test_a_model_whose_spare_serves_does_not_sleep_for_want_of_room(daemon: Budgeted) -> None:
    busy = with_a_spare(daemon, 500, instances=3)
    daemon.brain.advance(70.0)
    assert daemon.state("m") == "ready"
    busy.answer()
    daemon.brain.advance(10.0)
    assert len(daemon.brain.alive("m")) == 4


def test_nor_does_it_keep_the_daemon_busy_where_requests_may_not_wait(daemon: Budgeted) -> None:
    busy = with_a_spare(daemon, 500, bounds=WakeBounds(seconds=0.0), instances=3)
    daemon.brain.advance(70.0)
    busy.answer()
    daemon.brain.advance(10.0)
    assert len(daemon.brain.alive("m")) == 4


def test_who_falls_asleep_waits_for_no_room(daemon: Budgeted) -> None:
    rules = messages.Autoscale(0, 3, idle_after_s=20.0)
    busy = with_a_spare(daemon, 700, lazy=False, autoscale=rules)
    for worker in daemon.brain.alive("m"):
        worker.answer()
    daemon.brain.advance(40.0)
    assert daemon.state("m") == "asleep"
    busy.answer()
    daemon.brain.advance(10.0)
    assert len(daemon.brain.alive("m")) == 1


def test_what_nobody_may_ever_give_is_refused_soon_with_the_ways(daemon: Budgeted) -> None:
    """Neither is waited for what will not come, nor is `later` said where that does not help."""
    for name in "ab":
        daemon.register(name, lazy=False, memory=400 * MIB)
    daemon.sizes.update(a=400, b=400, c=150)
    daemon.register("c", memory=150 * MIB)
    daemon.served("c")
    request = daemon.brain.client.register("d", memory=500 * MIB)
    daemon.brain.advance(7.0)
    needs = "model d needs 500 MiB of memory_budget, but only 50 MiB of 1,000 MiB were free for "
    assert request.failure.startswith((f"{needs}5 s", f"{needs}6 s"))
    assert "a, b may never sleep, so waiting does not help: raise the budget" in request.failure
    assert "later" not in request.failure
    told = daemon.brain.answered(daemon.brain.client.ask(messages.Explain("d")))
    assert isinstance(told, messages.Explanation)
    assert "any_may_sleep = true" in told.findings[0].advice
    assert daemon.loaded() == {"a", "b", "c"}


@pytest.mark.parametrize("what", ["ends", "may shrink"])
def test_what_may_come_yet_is_waited_for(daemon: Budgeted, what: str) -> None:
    """Another one is about to end, or may soon need fewer instances."""
    scaling = messages.Autoscale(1, 4) if what == "may shrink" else None
    spec: dict[str, Any] = {"memory": 300 * MIB, "instances": 2, "autoscale": scaling}
    daemon.register("a", lazy=False, **spec)
    for worker in daemon.brain.alive("a"):
        worker.begin()
    if what == "ends":
        daemon.brain.server.hold_proxies = True
        daemon.brain.client.ask(messages.Unregister("a"))
    request = daemon.brain.client.register("d", memory=500 * MIB)
    daemon.brain.advance(15.0)
    assert request.answer is None
    if what == "ends":
        daemon.brain.let_batches_end()
    else:
        daemon.brain.client.ask(messages.Scale("a", 1))
    daemon.brain.served(request)
