"""Histories of models that share a budget of memory, on a virtual clock: the daemon's own code but for processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fakes.brain import Brain
from support.fakes.fake_clients import model_spec
from support.fakes.fake_server import SERVER_PID
from support.fakes.fake_worker import FakeWorker

from pytriton.dispatcher.elastic.memory import MEMORY, Size
from pytriton.dispatcher.elastic.sharing import Room
from pytriton.ipc import messages
from pytriton.ipc.errors import RemoteFailure
from pytriton.ipc.shared_entries import Entry, Holder

MIB = 1 << 20
SLEEPY = messages.Autoscale(0, 4, idle_after_s=1e6)
_SERIAL = itertools.count()


class Budgeted:
    """A daemon with a budget of 1,000 MiB; a worker takes what `sizes` says of its model, in MiB."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        given = {"parked_workers": 0, "memory_budget": "1000MiB", **settings}
        self.brain = Brain(folder, **given)
        self.sizes: dict[str, int] = {}
        self.usual = 300
        self.shared: dict[str, Entry] = {}
        self.brain.daemon.autoscaler.room = lambda: Room(1000.0)
        self.brain.daemon.autoscaler.queued = None
        self.memory = self.brain.daemon.memory
        self.memory.memory = self._memory
        self.memory._shared = lambda: self.shared

    def _memory(self, pid: int) -> Size:
        worker = self.brain.workers[pid - 1]
        assert worker.pid == pid
        if not worker.alive or not worker.ready.done():
            return Size()
        return Size(self.sizes.get(worker._spec.name, self.usual) * MIB)

    def register(
        self, name: str, config: dict[str, Any] | None = None, **more: Any
    ) -> messages.AnyMessage:
        spec = model_spec(name, **{"lazy": True, **more})
        spec = msgspec.structs.replace(spec, config=config or {})
        return self.brain.answered(self.brain.client.ask(messages.Register(spec), [b"callable"]))

    def batch(self, name: str) -> asyncio.Task[Any]:
        """A proxy has a batch, and asks for a worker; return what it is told when it is."""
        key = self.brain.server.models[name].registration
        message = messages.Attach(key, f"{name} asks {next(_SERIAL)}", SERVER_PID, batch=True)
        task: asyncio.Task[Any] = self.brain.loop.create_task(self.brain.handle(message))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.brain.settle()
        return task

    def served(self, name: str, within_s: float = 10.0) -> FakeWorker:
        """A batch gets a worker, which answers it; return that."""
        task = self.batch(name)
        self.wait(task, within_s)
        worker = self.worker(task)
        worker.begin()
        worker.answer()
        self.brain.advance(0.5)
        return worker

    def wait(self, task: asyncio.Task[Any], within_s: float) -> None:
        end = self.brain.loop.time() + within_s
        while not task.done() and self.brain.loop.time() < end:
            self.brain.advance(0.1)
            assert self.taken() <= 1000
        assert task.done(), "it waits"

    def worker(self, task: asyncio.Task[Any]) -> FakeWorker:
        name = task.result().worker
        return next(one for one in self.brain.workers if one.name == name)

    def taken(self) -> int:
        """Return what living workers have, those that load included, in MiB."""
        return sum(self.sizes.get(one._spec.name, self.usual) for one in self.brain.alive())

    def state(self, name: str) -> str:
        return self.brain.state_of(name)

    def loaded(self) -> set[str]:
        return {one._spec.name for one in self.brain.alive()}

    def event(self, kind: str, model: str) -> messages.Event:
        answer = self.brain.answered(self.brain.client.ask(messages.GetEvents(model=model)))
        assert isinstance(answer, messages.EventList)
        return next(one for one in reversed(answer.events) if one.kind == kind)

    def status(self) -> messages.Status:
        return self.brain.loop.ask(self.brain.daemon.status)

    def used(self) -> int:
        return self.brain.loop.ask(self.memory.used)[MEMORY] // MIB


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
        "model d needs its memory: it gives 300 MiB of memory, and nothing"
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
        "needs 600 MiB of memory_budget, and of 1,000 MiB 400 MiB were free for 60 s" in told.reason
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
            "model a takes 3 x 400 MiB of memory_budget, and all models have 1,000 MiB"
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
    assert "model a takes 1,100 MiB of memory_budget, and all models have 1,000 MiB" in failure_of(
        batch
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
    assert daemon.used() == 100
    daemon.served("b")
    assert daemon.used() == 800
    batch = daemon.batch("b")
    daemon.worker(batch).begin()
    daemon.brain.plans = ["hangs"]
    daemon.batch("c")  # a quarter again, for b takes more than that
    daemon.brain.advance(1.0)
    assert daemon.used() == 950
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
    assert "takes 4 x 300 MiB" in refused.text
    assert len(daemon.brain.alive("b")) == 3
    assert daemon.used() == 900


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
