"""Histories of models that share a memory budget, on a virtual clock: the daemon's own code except for processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.suspending_daemons import MIB, Budgeted

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.files.shared_entries import Holder, SharedEntry

SLEEPY = messages.Autoscale(0, 4, idle_after_s=1e6)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.sim.close()


def failure_of(task: asyncio.Task[Any]) -> str:
    assert task.done(), "it waits"
    with pytest.raises(RemoteFailure) as failure:
        task.result()
    return failure.value.text


def test_the_least_recently_used_model_is_suspended_for_a_request(daemon: Budgeted) -> None:
    for name in "abcd":
        daemon.register(name, memory_request=300 * MIB)
    assert daemon.loaded() == set()
    for name in "abca":
        daemon.served(name)
    assert daemon.loaded() == {"a", "b", "c"}
    daemon.served("d")
    assert daemon.loaded() == {"a", "c", "d"}
    assert daemon.state("b") == "suspended"
    reported = daemon.event("suspended", "b")
    assert reported.reason.startswith(
        "model d needs its memory: this frees 300 MiB of memory, and it had no"
    )
    assert reported.numbers["idle_s"] >= 1.0

    daemon.served("b")
    assert daemon.loaded() == {"a", "d", "b"}
    assert daemon.status().memory == [messages.MemoryInfo("memory", 1000 * MIB, 900 * MIB)]


def test_a_registration_suspends_others_too(daemon: Budgeted) -> None:
    daemon.register("a", lazy=False, autoscale=SLEEPY, memory_request=600 * MIB)
    daemon.sim.advance(5.0)
    daemon.register("b", lazy=False, autoscale=SLEEPY, memory_request=600 * MIB)
    assert daemon.state("a") == "suspended"
    assert daemon.state("b") == "ready"


def test_a_busy_model_is_awaited(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=600 * MIB)
    worker = daemon.served("a")
    worker.begin()
    batch = daemon.batch("b")
    daemon.sim.advance(30.0)
    assert not batch.done()
    assert worker.alive
    assert daemon.state("b") == "resuming"
    assert daemon.status().memory[0].waiting == 1
    assert "it needs 600 MiB of memory, and 400 MiB of memory is free" in (
        daemon.event("waiting_for_memory", "b").reason
    )
    worker.answer()
    daemon.wait(batch, 2.0)
    assert daemon.loaded() == {"b"}


def test_a_memory_timeout_names_the_figures_and_can_be_retried(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=600 * MIB)
    worker = daemon.served("a")
    worker.begin()
    batch = daemon.batch("b")
    daemon.sim.advance(61.0)
    assert "waiting for memory for 60 s" in failure_of(batch) or "were free for 60 s" in failure_of(
        batch
    )
    daemon.sim.advance(5.0)
    assert daemon.state("b") == "suspended"
    reported = daemon.event("insufficient_memory", "b")
    assert (
        "needs 600 MiB of memory_budget, but only 400 MiB of 1,000 MiB were free for 60 s"
        in reported.reason
    )
    assert reported.numbers == {"needs": 600 * MIB, "budget": 1000 * MIB}
    batch = daemon.batch("b")
    worker.answer()
    daemon.wait(batch, 2.0)


def test_an_unsuspendable_model_stays(daemon: Budgeted) -> None:
    daemon.register("a", lazy=False, memory_request=600 * MIB)
    daemon.register("b", memory_request=600 * MIB)
    batch = daemon.batch("b")
    daemon.sim.advance(70.0)
    failure_of(batch)
    assert daemon.loaded() == {"a"}


def test_suspend_any_idle_model_allows_it(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, suspend_any_idle_model=True)
    daemon.register("a", lazy=False, memory_request=300 * MIB, instances=2)
    daemon.register(
        "sequences", lazy=False, memory_request=300 * MIB, config={"sequence_batching": {}}
    )
    daemon.register("b", memory_request=600 * MIB)
    daemon.sim.advance(5.0)
    daemon.served("b")
    assert daemon.loaded() == {"b", "sequences"}
    batch = daemon.batch("a")  # which needs room for both of its instances
    daemon.wait(batch, 5.0)
    assert len(daemon.sim.alive("a")) == 2
    assert daemon.loaded() == {"a", "sequences"}
    daemon.sim.close()


def test_a_model_larger_than_the_budget_is_refused_with_its_size(daemon: Budgeted) -> None:
    for lazy in (True, False):
        answer = daemon.register("a", lazy=lazy, memory_request=400 * MIB, instances=3)
        assert isinstance(answer, messages.Failure)
        assert answer.kind == "invalid"
        assert (
            "model a needs 3 x 400 MiB, but memory_budget is 1,000 MiB for all models"
            in answer.text
        )
        assert daemon.sim.is_clean("a")


def test_a_model_found_to_be_too_large_is_refused_from_then_on(daemon: Budgeted) -> None:
    daemon.sizes["a"] = 1100
    daemon.register("a")
    daemon.register("b", memory_request=500 * MIB)
    batch = daemon.batch("a")
    daemon.sim.advance(0.5)
    daemon.worker(batch).begin()
    daemon.worker(batch).answer()
    daemon.sim.advance(1.0)
    assert daemon.state("a") == "suspended"  # it is idle, and the budget is exceeded
    assert daemon.event("suspended", "a").reason.startswith("the budget is exceeded")
    batch = daemon.batch("a")
    daemon.sim.advance(0.1)
    assert "model a needs 1,100 MiB, but memory_budget is 1,000 MiB for all models" in failure_of(
        batch
    )
    assert daemon.state("a") == "suspended"
    daemon.served("b")


def test_many_concurrent_requests_never_exceed_the_budget_and_are_answered(
    daemon: Budgeted,
) -> None:
    names = [f"m{number}" for number in range(12)]
    for name in names:
        daemon.register(name, memory_request=300 * MIB)
    batches = [daemon.batch(name) for name in names]
    end = daemon.sim.loop.time() + 60.0
    answered: set[asyncio.Task[Any]] = set()
    while len(answered) < len(batches) and daemon.sim.loop.time() < end:
        daemon.sim.advance(0.05)
        assert daemon.taken() <= 1000
        for batch in batches:
            if batch.done() and batch not in answered:
                answered.add(batch)
                daemon.worker(batch).begin()
                daemon.worker(batch).answer()
    assert len(answered) == 12
    assert daemon.sim.loop.ask(lambda: daemon.sim.services.registry.accounts.suspended) == 9


def test_a_slow_load_blocks_no_other_model(daemon: Budgeted) -> None:
    for name in "abc":
        daemon.register(name, memory_request=300 * MIB)
    daemon.sim.plans = ["hangs"]
    slow = daemon.batch("a")
    daemon.served("b", 1.0)
    daemon.served("c", 1.0)
    assert not slow.done()


def test_large_claims_do_not_block_small_ones(daemon: Budgeted) -> None:
    daemon.register("a", memory_request=600 * MIB)
    daemon.register("big", memory_request=1000 * MIB)
    daemon.register("small", memory_request=100 * MIB)
    daemon.sizes.update(a=600, big=1000, small=100)
    worker = daemon.served("a")
    worker.begin()
    big = daemon.batch("big")
    daemon.served("small", 1.0)
    daemon.sim.advance(10.0)  # it has waited long enough: now memory is reserved for it
    assert "small" not in daemon.loaded()
    worker.answer()
    daemon.wait(big, 3.0)


def test_a_first_load_is_estimated_and_then_corrected(daemon: Budgeted) -> None:
    daemon.sizes.update(a=100, b=700)
    for name in "abc":
        daemon.register(name)
    daemon.sim.plans = ["hangs"]
    daemon.batch("a")
    assert daemon.used() == 250  # a quarter of the budget
    daemon.sim.alive("a")[0].loaded()
    daemon.sim.advance(1.0)
    assert daemon.used() == 109  # it may grow a little with its first requests
    daemon.served("b")
    assert daemon.used() == 109 + 739
    batch = daemon.batch("b")
    daemon.worker(batch).begin()
    daemon.sim.plans = ["hangs"]
    daemon.batch("c")  # a quarter again, for b takes more than that
    daemon.sim.advance(1.0)
    assert daemon.used() == 739 + 250
    assert daemon.loaded() == {"b", "c"}


def test_a_growing_model_suspends_others(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=300 * MIB)
        daemon.served(name)
    daemon.sizes["b"] = 800
    daemon.sim.advance(1.0)
    assert daemon.loaded() == {"b"}
    assert daemon.used() == 800


def test_a_crashed_worker_keeps_its_memory(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=600 * MIB)
    worker = daemon.served("a")
    daemon.batch("b")
    daemon.sim.plans = ["hangs"]
    worker.end()
    daemon.sim.settle()
    assert daemon.used() >= 600


def test_a_worker_is_recycled_once_there_is_memory_for_its_replacement(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=400 * MIB)
        daemon.usual = 400
    daemon.served("a")
    due = daemon.served("b")
    due.become_due()
    daemon.sim.advance(3.0)
    assert not due.alive
    assert len(daemon.sim.alive("b")) == 1
    assert daemon.state("a") == "suspended"
    assert daemon.used() == 400


def test_more_instances_suspend_others(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=300 * MIB)
        daemon.served(name)
    daemon.sim.served(daemon.sim.client.ask(messages.Scale("b", 3)))
    assert daemon.state("a") == "suspended"
    assert len(daemon.sim.alive("b")) == 3
    refused = daemon.sim.answered(daemon.sim.client.ask(messages.Scale("b", 4)))
    assert isinstance(refused, messages.Failure)
    assert "needs 4 x 300 MiB" in refused.text
    assert len(daemon.sim.alive("b")) == 3
    assert daemon.used() == 900


def test_instances_that_could_not_be_loaded_release_their_memory(daemon: Budgeted) -> None:
    daemon.register("a", memory_request=300 * MIB)
    daemon.served("a")
    daemon.sim.usual_plan = "fails"
    answer = daemon.sim.answered(daemon.sim.client.ask(messages.Scale("a", 3)))
    assert isinstance(answer, messages.Failure)
    assert daemon.used() == 300


def test_a_prestarted_worker_is_not_stopped_for_its_own_model(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, prestarted_workers=4)
    rules = messages.Autoscale(0, 1, idle_after_s=5.0)
    daemon.register("a", lazy=False, autoscale=rules, memory_request=600 * MIB)
    daemon.sim.advance(10.0)
    (parked,) = daemon.sim.alive("a")
    daemon.usual = 100
    daemon.register("b", memory_request=600 * MIB)
    worker = daemon.served("b")
    worker.begin()
    batch = daemon.batch("a")
    daemon.sim.advance(20.0)
    assert parked.alive
    worker.answer()
    daemon.wait(batch, 3.0)
    assert daemon.worker(batch) is parked
    daemon.sim.close()


def test_prestarted_workers_are_stopped_first(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, prestarted_workers=4)
    daemon.register(
        "a",
        lazy=False,
        autoscale=messages.Autoscale(0, 1, idle_after_s=5.0),
        memory_request=300 * MIB,
    )
    daemon.sim.advance(10.0)
    assert daemon.state("a") == "suspended"
    (parked,) = daemon.sim.alive("a")
    daemon.usual = 200
    for name in "bc":
        daemon.register(name, memory_request=400 * MIB)
        daemon.served(name)
    assert parked.alive
    daemon.register("d", memory_request=150 * MIB)
    daemon.sizes["d"] = 150
    daemon.served("d")
    assert not parked.alive
    assert daemon.loaded() == {"b", "c", "d"}
    daemon.sim.close()


def test_waiting_models_can_be_unregistered_and_the_daemon_stopped(daemon: Budgeted) -> None:
    for name in "abc":
        daemon.register(name, memory_request=600 * MIB)
    daemon.served("a").begin()
    batches = [daemon.batch("b"), daemon.batch("c")]
    daemon.sim.answered(daemon.sim.client.ask(messages.Unregister("b")))
    assert "is being stopped" in failure_of(batches[0])
    assert daemon.sim.is_clean("b")
    accounts = daemon.sim.services.registry.accounts
    assert [one.account.spec.name for one in accounts.waiting] == ["c"]
    daemon.sim.stop()
    assert batches[1].done()
    assert daemon.sim.services.registry.accounts.open_accounts == []


def test_a_broken_model_releases_its_memory(daemon: Budgeted) -> None:
    for name in "ab":
        daemon.register(name, memory_request=600 * MIB)
    daemon.sim.usual_plan = "fails"
    failed = daemon.batch("a")
    daemon.sim.advance(20.0)
    failure_of(failed)
    daemon.sim.usual_plan = "serves"
    daemon.served("b", 20.0)


def test_shared_weights_count_once_for_the_first_worker_that_maps_them(daemon: Budgeted) -> None:
    daemon.usual = 100
    daemon.register("a", instances=2, memory_request=100 * MIB)
    daemon.register("b", memory_request=500 * MIB)
    daemon.sizes["b"] = 500
    daemon.served("a")
    holders = [Holder(one.pid, 1, 3) for one in daemon.sim.alive("a")]
    daemon.shared = {"weights": SharedEntry("w", "memory", 400 * MIB, holders)}
    daemon.sim.advance(1.0)
    assert daemon.used() == 600
    batch = daemon.batch("b")
    daemon.sim.advance(0.2)
    daemon.shared = {}  # gone with the last that had it
    daemon.wait(batch, 2.0)
    assert daemon.loaded() == {"b"}
    daemon.worker(batch).begin()
    daemon.worker(batch).answer()
    daemon.sim.advance(1.0)
    daemon.wait(daemon.batch("a"), 2.0)  # two workers of 100 MiB, and 400 MiB that they share
    assert daemon.event("suspended", "b").reason.startswith("model a needs its memory")


def test_without_a_budget_nothing_is_measured(tmp_path: Path) -> None:
    daemon = Budgeted(tmp_path, memory_budget=None)
    daemon.memory.memory = lambda pid: pytest.fail("it was measured")
    for name in "abcde":
        daemon.register(name, memory_request=600 * MIB, lazy=False)
    daemon.sim.advance(5.0)
    assert len(daemon.loaded()) == 5
    assert daemon.status().memory == []
    daemon.sim.close()
