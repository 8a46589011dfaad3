"""A pool that adopts the workers of the daemon's previous version, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fakes.fake_worker import SPEC, FakeWorker

from pytriton._protocol import messages
from pytriton._protocol.lanes.stats_page import NOTHING, Counts
from pytriton._protocol.messages.metrics import ModelCounts
from pytriton.dispatcher.scaling.memory_policy import MEMORY
from pytriton.dispatcher.upgrade.snapshot import (
    ChildState,
    ModelCountersState,
    PoolState,
    SupervisedState,
    WorkerState,
)
from pytriton.dispatcher.workers.memory_account import Account, MemoryAccounts
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.pool import Pool
from pytriton.dispatcher.workers.supervisor import RestartPolicy
from pytriton.dispatcher.workers.worker import Worker

TWO = msgspec.structs.replace(SPEC, instances=2)


def state_of(name: str) -> WorkerState:
    return WorkerState(name, ChildState(1, 2), 3, f"/l/{name}", 1.5, messages.PROTOCOL)


class Scene:
    """A pool that has adopted workers; `lost` ones are gone."""

    def __init__(
        self,
        supervised: Sequence[SupervisedState],
        routes: dict[str, str],
        *,
        suspended: bool = False,
        lost: Sequence[str] = (),
        account: Account | None = None,
    ) -> None:
        self.counters = ModelCounters()
        self.adopted: list[FakeWorker] = []
        self.started: list[FakeWorker] = []
        self._lost = lost
        policy = RestartPolicy(10.0, None, 0.0, 1.0)
        self.pool = Pool(
            TWO, self._start, policy, None, self.counters, suspended=suspended, account=account
        )
        self.pool.adopt(PoolState(list(supervised), routes, suspended), self._adopt)

    def _adopt(self, state: WorkerState, spec: messages.ModelSpec, slot: int) -> Worker | None:
        if state.name in self._lost:
            return None
        worker = FakeWorker(int(state.name[1:]), spec, slot)
        worker.loaded()
        self.adopted.append(worker)
        return worker

    async def _start(self, spec: messages.ModelSpec, slot: int, registrant: object) -> Worker:
        worker = FakeWorker(100 + len(self.started), spec, slot)
        self.started.append(worker)
        worker.loaded()
        return worker


BOTH = [SupervisedState(0, state_of("w3"), 4, "it crashed"), SupervisedState(1, state_of("w4"))]


async def test_adopted_workers_serve_at_once_without_a_new_start() -> None:
    scene = Scene(BOTH, {"m_0": "w3", "m_1": "w4"})
    assert scene.pool.ready_workers() == ["w3", "w4"]
    assert scene.pool.is_quiescent
    await asyncio.sleep(0)
    assert scene.started == []
    info = scene.pool.infos()[0]
    assert (info.state, info.restarts, info.last_exit, info.lanes) == (
        "ready", 4, "it crashed", 1,
    )  # fmt: skip
    attached = await scene.pool.proxies.route("m_0", None)
    assert attached.worker in ("w3", "w4")
    await scene.pool.stop(0)


@pytest.mark.parametrize("lost", [[], ["w4"]], ids=["had none", "is gone"])
async def test_an_instance_without_a_worker_gets_a_new_one(lost: list[str]) -> None:
    second = BOTH[1] if lost else SupervisedState(1)
    scene = Scene([BOTH[0], second], {"m_0": "w3"}, lost=lost)
    await scene.pool.until(lambda: len(scene.pool.ready_workers()) == 2, 10)
    assert scene.pool.ready_workers() == ["w3", "w100"]
    await scene.pool.stop(0)


async def test_an_adopted_worker_that_exits_is_replaced_and_counted() -> None:
    scene = Scene(BOTH, {})
    scene.adopted[0].end()
    await scene.pool.until(lambda: "w100" in scene.pool.ready_workers(), 10)
    assert scene.counters.of(1, 0).exits["crash"] == 1
    assert scene.counters.of(1, 0).starts == 1  # that of the replacement
    await scene.pool.stop(0)


async def test_an_adopted_worker_that_is_due_is_recycled() -> None:
    scene = Scene(BOTH, {})
    assert scene.pool.is_quiescent
    scene.adopted[1].become_due()
    await scene.pool.until(lambda: "w100" in scene.pool.ready_workers(), 10)
    assert not scene.pool.is_quiescent  # the due one has not ended yet
    scene.adopted[1].end()
    await scene.pool.stop(0)


async def test_a_suspended_model_stays_suspended_and_resumes() -> None:
    scene = Scene([], {"m_0": ""}, suspended=True)
    assert (scene.pool.is_quiescent, scene.pool.suspension.suspended) == (True, True)
    assert (await scene.pool.proxies.route("m_0", None)).worker == ""
    attached = await scene.pool.proxies.route("m_0", None, batch=True)
    assert attached.worker == "w100"
    await scene.pool.stop(0)


async def test_work_in_progress_is_not_quiescent() -> None:
    scene = Scene(BOTH, {})
    scene.adopted[0].exited.set_result(1)
    assert not scene.pool.is_quiescent
    await scene.pool.stop(0)
    assert not scene.pool.is_quiescent


async def test_the_memory_of_adopted_workers_counts() -> None:
    accounts = MemoryAccounts({MEMORY: 1000})
    spec = msgspec.structs.replace(TWO, memory_request=100)
    scene = Scene(BOTH, {"m_0": "w3", "m_1": "w4"}, account=accounts.open(spec))
    assert accounts.used() == {MEMORY: 200}
    await scene.pool.stop(0)
    assert accounts.used() == {MEMORY: 0}


def handed_over(counters: ModelCounters) -> ModelCounters:
    """Return counters as the next version of the daemon reads them."""
    document = msgspec.msgpack.encode(counters.hand_over("m"))
    other = ModelCounters()
    other.adopt(msgspec.msgpack.decode(document, type=ModelCountersState))
    return other


def test_counters_survive_an_upgrade() -> None:
    counters = ModelCounters()
    instance = counters.of(2, 1)
    instance.ended = NOTHING._replace(calls=5, failed=(1, 0, 0, 0, 0))
    instance.starts = 3
    instance.exits["hang"] += 1
    counters.counts, counters.failed["lost"] = ModelCounts(1, 2, 3, 4, 5), 2
    other = handed_over(counters)
    assert other.of(2, 1).ended.plus(NOTHING) == instance.ended
    assert other.of(2, 1).counts().plus(instance.ended).calls == 10
    assert (other.of(2, 1).exits, other.of(2, 1).starts) == ({"hang": 1}, 3)
    assert (other.counts, other.failed) == (ModelCounts(1, 2, 3, 4, 5), {"lost": 2})


def test_counters_too_large_for_a_snapshot_are_clipped() -> None:
    """A worker may repeatedly write any value to its page."""
    counters = ModelCounters()
    counters.of(1, 0).ended = NOTHING._replace(calls=1 << 70, call_buckets=(1 << 64, 3))
    total = handed_over(counters).done().total
    assert total.calls == (1 << 63) - 1
    assert total.call_buckets == ((1 << 63) - 1, 3)


def test_many_previous_versions_are_reported_together() -> None:
    """A model that is replaced every night must not grow the metrics without limit."""
    counters = ModelCounters()
    oldest = counters.of(1, 0)
    oldest.workers.append(cast(Any, SimpleNamespace(outcomes=lambda: (0, (0,) * 5), counts=Counts)))
    for version in range(1, 500):
        for number in range(2):
            counters.of(version, number).ended = NOTHING._replace(
                requests=1, failed=(1, 0, 0, 0, 0)
            )
    assert len(counters.instances) <= 2 * 50
    assert (1, 0) in counters.instances  # it lives
    assert (499, 1) in counters.instances
    assert counters.done().total.requests == 2 * 499
    assert counters.outcomes() == (
        998, {"callable": 998, "input": 0, "result": 0, "timeout": 0, "unrecoverable": 0},
    )  # fmt: skip
    assert handed_over(counters).done().total.requests == 2 * 499
