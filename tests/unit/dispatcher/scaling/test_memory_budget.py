"""Histories of models that share a budget of memory, on a virtual clock: the daemon's own code but for processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes.asked_daemons import MIB, Budgeted

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.files.shared_entries import Entry, Holder

SLEEPY = messages.Autoscale(0, 4, idle_after_s=1e6)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.brain.close()


def failure_of(task: asyncio.Task[Any]) -> str:
    assert task.done(), "it waits"
    with pytest.raises(RemoteFailure) as failure:
        task.result()
    return failure.value.text


def test_the_least_recently_used_sleeps_for_one_that_is_asked(daemon: Budgeted) -> None:
    for name in "abcd":
        daemon.register(name, memory=300 * MIB)
    assert daemon.loaded() == set()
    for name in "abca":
        daemon.served(name)
    assert daemon.loaded() == {"a", "b", "c"}
    daemon.served("d")
    assert daemon.loaded() == {"a", "c", "d"}
    assert daemon.state("b") == "asleep"
    told = daemon.event("slept", "b")
    assert told.reason.startswith(
        "model d needs its memory: this frees 300 MiB of memory, and it had no"
    )
    assert told.numbers["idle_s"] >= 1.0

    daemon.served("b")
    assert daemon.loaded() == {"a", "d", "b"}
    assert daemon.status().memory == [messages.MemoryInfo("memory", 1000 * MIB, 900 * MIB)]


def test_a_registration_has_others_sleep_too(daemon: Budgeted) -> None:
    daemon.register("a", lazy=False, autoscale=SLEEPY, memory=600 * MIB)
    daemon.brain.advance(5.0)
    daemon.register("b", lazy=False, autoscale=SLEEPY, memory=600 * MIB)
    assert daemon.state("a") == "asleep"
    assert daemon.state("b") == "ready"


def test_a_busy_model_is_waited_for(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=600 * MIB)
    worker = daemon.served("a")
    worker.begin()
    batch = daemon.batch("b")
    daemon.brain.advance(30.0)
    assert not batch.done()
    assert worker.alive
    assert daemon.state("b") == "waking"
    assert daemon.status().memory[0].waiting == 1
    assert "it needs 600 MiB of memory, and 400 MiB of memory is free" in (
        daemon.event("waits_for_memory", "b").reason
    )
    worker.answer()
    daemon.wait(batch, 2.0)
    assert daemon.loaded() == {"b"}


def test_who_waits_too_long_is_told_the_figures_and_may_come_again(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=600 * MIB)
    worker = daemon.served("a")
    worker.begin()
    batch = daemon.batch("b")
    daemon.brain.advance(61.0)
    assert "waiting for memory for 60 s" in failure_of(batch) or "were free for 60 s" in failure_of(
        batch
    )
    daemon.brain.advance(5.0)
    assert daemon.state("b") == "asleep"
    told = daemon.event("no_memory", "b")
    assert (
        "needs 600 MiB of memory_budget, but only 400 MiB of 1,000 MiB were free for 60 s"
        in told.reason
    )
    assert told.numbers == {"needs": 600 * MIB, "budget": 1000 * MIB}
    batch = daemon.batch("b")
    worker.answer()
    daemon.wait(batch, 2.0)


def test_a_model_that_may_not_sleep_stays(daemon: Budgeted) -> None:
    daemon.register("a", lazy=False, memory=600 * MIB)
    daemon.register("b", memory=600 * MIB)
    batch = daemon.batch("b")
    daemon.brain.advance(70.0)
    failure_of(batch)
    assert daemon.loaded() == {"a"}


def test_unless_the_operator_says_so(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, any_may_sleep=True)
    daemon.register("a", lazy=False, memory=300 * MIB, instances=2)
    daemon.register("sequences", lazy=False, memory=300 * MIB, config={"sequence_batching": {}})
    daemon.register("b", memory=600 * MIB)
    daemon.brain.advance(5.0)
    daemon.served("b")
    assert daemon.loaded() == {"b", "sequences"}
    batch = daemon.batch("a")  # which needs room for both of its instances
    daemon.wait(batch, 5.0)
    assert len(daemon.brain.alive("a")) == 2
    assert daemon.loaded() == {"a", "sequences"}
    daemon.brain.close()


def test_one_that_is_larger_than_the_budget_is_refused_with_its_figure(daemon: Budgeted) -> None:
    for lazy in (True, False):
        answer = daemon.register("a", lazy=lazy, memory=400 * MIB, instances=3)
        assert isinstance(answer, messages.Failure)
        assert answer.kind == "invalid"
        assert (
            "model a needs 3 x 400 MiB of memory_budget, which is 1,000 MiB for all models"
            in answer.text
        )
        assert daemon.brain.is_clean("a")


def test_one_that_turned_out_to_be_larger_is_refused_from_then_on(daemon: Budgeted) -> None:
    daemon.sizes["a"] = 1100
    daemon.register("a")
    daemon.register("b", memory=500 * MIB)
    batch = daemon.batch("a")
    daemon.brain.advance(0.5)
    daemon.worker(batch).begin()
    daemon.worker(batch).answer()
    daemon.brain.advance(1.0)
    assert daemon.state("a") == "asleep"  # it is idle, and the budget is exceeded
    assert daemon.event("slept", "a").reason.startswith("the budget is exceeded")
    batch = daemon.batch("a")
    daemon.brain.advance(0.1)
    assert (
        "model a needs 1,100 MiB of memory_budget, which is 1,000 MiB for all models"
        in failure_of(batch)
    )
    assert daemon.state("a") == "asleep"
    daemon.served("b")


def test_many_at_once_never_overbook_and_all_are_answered(daemon: Budgeted) -> None:
    names = [f"m{number}" for number in range(12)]
    for name in names:
        daemon.register(name, memory=300 * MIB)
    batches = [daemon.batch(name) for name in names]
    end = daemon.brain.loop.time() + 60.0
    answered: set[asyncio.Task[Any]] = set()
    while len(answered) < len(batches) and daemon.brain.loop.time() < end:
        daemon.brain.advance(0.05)
        assert daemon.taken() <= 1000
        for batch in batches:
            if batch.done() and batch not in answered:
                answered.add(batch)
                daemon.worker(batch).begin()
                daemon.worker(batch).answer()
    assert len(answered) == 12
    assert daemon.brain.loop.ask(lambda: daemon.brain.daemon.registry.accounts.slept) == 9


def test_a_slow_load_blocks_nobody(daemon: Budgeted) -> None:
    for name in "abc":
        daemon.register(name, memory=300 * MIB)
    daemon.brain.plans = ["hangs"]
    slow = daemon.batch("a")
    daemon.served("b", 1.0)
    daemon.served("c", 1.0)
    assert not slow.done()


def test_what_waits_for_much_does_not_block_what_needs_little(daemon: Budgeted) -> None:
    daemon.register("a", memory=600 * MIB)
    daemon.register("big", memory=1000 * MIB)
    daemon.register("small", memory=100 * MIB)
    daemon.sizes.update(a=600, big=1000, small=100)
    worker = daemon.served("a")
    worker.begin()
    big = daemon.batch("big")
    daemon.served("small", 1.0)
    daemon.brain.advance(10.0)  # its patience is over: now all is gathered for it
    assert "small" not in daemon.loaded()
    worker.answer()
    daemon.wait(big, 3.0)


def test_a_first_load_is_estimated_and_then_corrected(daemon: Budgeted) -> None:
    daemon.sizes.update(a=100, b=700)
    for name in "abc":
        daemon.register(name)
    daemon.brain.plans = ["hangs"]
    daemon.batch("a")
    assert daemon.used() == 250  # a quarter of the budget
    daemon.brain.alive("a")[0].loaded()
    daemon.brain.advance(1.0)
    assert daemon.used() == 109  # it may grow a little with its first requests
    daemon.served("b")
    assert daemon.used() == 109 + 739
    batch = daemon.batch("b")
    daemon.worker(batch).begin()
    daemon.brain.plans = ["hangs"]
    daemon.batch("c")  # a quarter again, for b takes more than that
    daemon.brain.advance(1.0)
    assert daemon.used() == 739 + 250
    assert daemon.loaded() == {"b", "c"}


def test_a_model_that_grows_has_others_sleep(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=300 * MIB)
        daemon.served(name)
    daemon.sizes["b"] = 800
    daemon.brain.advance(1.0)
    assert daemon.loaded() == {"b"}
    assert daemon.used() == 800


def test_a_worker_that_crashes_keeps_its_room(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=600 * MIB)
    worker = daemon.served("a")
    daemon.batch("b")
    daemon.brain.plans = ["hangs"]
    worker.end()
    daemon.brain.settle()
    assert daemon.used() >= 600


def test_a_spent_worker_is_replaced_when_there_is_room_beside_it(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=400 * MIB)
        daemon.usual = 400
    daemon.served("a")
    spent = daemon.served("b")
    spent.is_spent("it has answered enough")
    daemon.brain.advance(3.0)
    assert not spent.alive
    assert len(daemon.brain.alive("b")) == 1
    assert daemon.state("a") == "asleep"
    assert daemon.used() == 400


def test_more_instances_have_others_sleep(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=300 * MIB)
        daemon.served(name)
    daemon.brain.served(daemon.brain.client.ask(messages.Scale("b", 3)))
    assert daemon.state("a") == "asleep"
    assert len(daemon.brain.alive("b")) == 3
    refused = daemon.brain.answered(daemon.brain.client.ask(messages.Scale("b", 4)))
    assert isinstance(refused, messages.Failure)
    assert "needs 4 x 300 MiB" in refused.text
    assert len(daemon.brain.alive("b")) == 3
    assert daemon.used() == 900


def test_instances_that_could_not_be_loaded_give_their_room_back(daemon: Budgeted) -> None:
    daemon.register("a", memory=300 * MIB)
    daemon.served("a")
    daemon.brain.usual_plan = "fails"
    answer = daemon.brain.answered(daemon.brain.client.ask(messages.Scale("a", 3)))
    assert isinstance(answer, messages.Failure)
    assert daemon.used() == 300


def test_a_parked_worker_stays_for_its_own_model(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, parked_workers=4)
    rules = messages.Autoscale(0, 1, idle_after_s=5.0)
    daemon.register("a", lazy=False, autoscale=rules, memory=600 * MIB)
    daemon.brain.advance(10.0)
    (parked,) = daemon.brain.alive("a")
    daemon.usual = 100
    daemon.register("b", memory=600 * MIB)
    worker = daemon.served("b")
    worker.begin()
    batch = daemon.batch("a")
    daemon.brain.advance(20.0)
    assert parked.alive
    worker.answer()
    daemon.wait(batch, 3.0)
    assert daemon.worker(batch) is parked
    daemon.brain.close()


def test_parked_workers_go_first(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, parked_workers=4)
    daemon.register(
        "a", lazy=False, autoscale=messages.Autoscale(0, 1, idle_after_s=5.0), memory=300 * MIB
    )
    daemon.brain.advance(10.0)
    assert daemon.state("a") == "asleep"
    (parked,) = daemon.brain.alive("a")
    daemon.usual = 200
    for name in "bc":
        daemon.register(name, memory=400 * MIB)
        daemon.served(name)
    assert parked.alive
    daemon.register("d", memory=150 * MIB)
    daemon.sizes["d"] = 150
    daemon.served("d")
    assert not parked.alive
    assert daemon.loaded() == {"b", "c", "d"}
    daemon.brain.close()


def test_what_waits_can_be_unregistered_and_the_daemon_stopped(daemon: Budgeted) -> None:
    for name in "abc":
        daemon.register(name, memory=600 * MIB)
    daemon.served("a").begin()
    batches = [daemon.batch("b"), daemon.batch("c")]
    daemon.brain.answered(daemon.brain.client.ask(messages.Unregister("b")))
    assert "is being stopped" in failure_of(batches[0])
    assert daemon.brain.is_clean("b")
    accounts = daemon.brain.daemon.registry.accounts
    assert [one.account.spec.name for one in accounts.waiting] == ["c"]
    daemon.brain.stop()
    assert batches[1].done()
    assert daemon.brain.daemon.registry.accounts.open_accounts == []


def test_a_broken_model_gives_its_room_back(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory=600 * MIB)
    daemon.brain.usual_plan = "fails"
    failed = daemon.batch("a")
    daemon.brain.advance(20.0)
    failure_of(failed)
    daemon.brain.usual_plan = "serves"
    daemon.served("b", 20.0)


def test_weights_that_workers_share_count_once_and_for_the_first_that_maps_them(
    daemon: Budgeted,
) -> None:
    daemon.usual = 100
    daemon.register("a", instances=2, memory=100 * MIB)
    daemon.register("b", memory=500 * MIB)
    daemon.sizes["b"] = 500
    daemon.served("a")
    holders = [Holder(one.pid, 1, 3) for one in daemon.brain.alive("a")]
    daemon.shared = {"weights": Entry("w", "memory", 400 * MIB, holders)}
    daemon.brain.advance(1.0)
    assert daemon.used() == 600
    batch = daemon.batch("b")
    daemon.brain.advance(0.2)
    daemon.shared = {}  # gone with the last that had it
    daemon.wait(batch, 2.0)
    assert daemon.loaded() == {"b"}
    daemon.worker(batch).begin()
    daemon.worker(batch).answer()
    daemon.brain.advance(1.0)
    daemon.wait(daemon.batch("a"), 2.0)  # two workers of 100 MiB, and 400 MiB that they share
    assert daemon.event("slept", "b").reason.startswith("model a needs its memory")


def test_without_a_budget_nothing_is_measured(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, memory_budget=None)
    daemon.memory.memory = lambda pid: pytest.fail("it was measured")
    for name in "abcde":
        daemon.register(name, memory=600 * MIB, lazy=False)
    daemon.brain.advance(5.0)
    assert len(daemon.loaded()) == 5
    assert daemon.status().memory == []
    daemon.brain.close()
