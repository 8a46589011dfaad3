"""The snapshot of counters and measurements: across workers' lives, and whatever a worker does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_worker import FakeWorker
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind
from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton._protocol.lanes.stats_page import NOTHING
from pytriton._protocol.lanes.user_metrics import (
    UserFamily,
    UserMetrics,
    UserSample,
    encoded,
    encoded_sample,
)
from pytriton._protocol.messages.metrics import (
    MODEL_COUNTERS,
    WORK_COUNTERS,
    CounterMetric,
    InstanceMetrics,
    MetricsSnapshot,
    ModelCounts,
    ModelMetrics,
    Work,
)
from pytriton.dispatcher.telemetry.metrics import daemon_metrics
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES, LoopLag
from pytriton.dispatcher.telemetry.metrics.process_memory import ProcessMemory


def snapshot(sim: SimulatedDaemon) -> MetricsSnapshot:
    """Request it as a client does; the answer is encoded and decoded."""
    answer = sim.answered(sim.client.ask(messages.GetMetrics()))
    assert isinstance(answer, messages.MetricsSnapshot)
    return answer


def model(sim: SimulatedDaemon, name: str = "m") -> ModelMetrics:
    return next(one for one in snapshot(sim).models if one.name == name)


def instance(sim: SimulatedDaemon, number: int = 0) -> InstanceMetrics:
    return next(one for one in model(sim).instances if one.instance == number)


def serve(sim: SimulatedDaemon, **more: Any) -> FakeWorker:
    sim.served(sim.client.register("m", **more))
    return sim.workers[-1]


def work(worker: FakeWorker, rows: int = 4) -> None:
    worker.stats_of_worker.end(worker.stats_of_worker.begin(2, rows))


def test_worker_activity_is_reported(sim: SimulatedDaemon) -> None:
    worker = serve(sim)
    work(worker)
    worker.stats_of_worker.failed("result", 2)
    worker.stats_of_worker.loaded(2_000_000_000, 500_000_000)
    worker.stats_of_worker.holds(4096)
    reported = instance(sim)
    assert (reported.worker, reported.pid, reported.state) == (worker.name, worker.pid, "ready")
    assert (reported.work.calls, reported.work.requests, reported.work.rows) == (1, 2, 4)
    assert reported.work.failed == {"result": 2}
    assert reported.work.call_s.count == 1
    assert (reported.work.rows_per_call.sum, reported.work.rows_per_call.buckets) == (
        4.0,
        [0, 0, 1],
    )
    assert (reported.load_s, reported.warmup_s, reported.arenas) == (2.0, 0.5, 4096)
    assert (reported.starts, reported.exits) == (1, {})
    assert model(sim).work == reported.work


def test_counters_continue_after_a_worker_exit(sim: SimulatedDaemon) -> None:
    worker = serve(sim)
    work(worker)
    worker.end()
    sim.advance(5.0)
    work(sim.alive("m")[0])
    reported = instance(sim)
    assert reported.worker != worker.name
    assert reported.work.calls == 2
    assert (reported.starts, reported.exits) == (2, {"crash": 1})


def test_counters_continue_after_a_replacement(sim: SimulatedDaemon) -> None:
    work(serve(sim))
    sim.served(sim.client.register("m", replace=True))
    reported = instance(sim)
    assert (reported.work.calls, reported.starts, reported.exits) == (1, 2, {"replace": 1})


def test_counters_end_with_the_model(sim: SimulatedDaemon) -> None:
    work(serve(sim))
    sim.answered(sim.client.ask(messages.Unregister("m")))
    assert snapshot(sim).models == []
    serve(sim)
    assert model(sim).work.calls == 0


def test_removed_instances_keep_their_counters(sim: SimulatedDaemon) -> None:
    serve(sim, instances=2)
    work(sim.workers[1])
    sim.answered(sim.client.ask(messages.Scale("m", 1)))
    reported = model(sim)
    assert reported.desired == 1
    assert [(one.instance, one.state) for one in reported.instances] == [(0, "ready"), (1, "")]
    assert reported.instances[1].exits == {"scale": 1}
    assert (reported.instances[1].work.calls, reported.work.calls) == (1, 1)


def test_a_failed_load_is_an_exit_reason(sim: SimulatedDaemon) -> None:
    serve(sim)
    sim.plans = ["fails"]
    sim.workers[0].end()
    sim.advance(5.0)
    assert instance(sim).exits == {"crash": 1, "load": 1}


def test_a_recycled_worker_is_counted(sim: SimulatedDaemon) -> None:
    serve(sim).become_due()
    sim.advance(1.0)
    assert instance(sim).exits == {"recycle": 1}


def test_a_hanging_worker_is_counted(sim: SimulatedDaemon) -> None:
    worker = serve(sim, execution_timeout_s=1.0)
    worker.begin()
    worker.expect_exit("hang")  # as both kinds of worker do in `end_hung`
    worker.end()
    sim.advance(5.0)
    assert instance(sim).exits == {"hang": 1}


def test_a_busy_worker_is_reported_without_polling_it(sim: SimulatedDaemon) -> None:
    """The worker only writes its page, and nobody waits for it."""
    worker = serve(sim)
    worker.begin()
    reported = instance(sim)
    assert reported.work.calls == 1
    assert reported.work.call_s.count == 0
    assert reported.batch_s is not None
    assert reported.work.busy_s > 0


def test_retries_and_poison_are_counted(sim: SimulatedDaemon) -> None:
    serve(sim)
    registration = sim.services.registry.served.by_name("m")

    def lost(**facts: Any) -> None:
        worker = sim.alive("m")[0]
        worker.end(in_batch=True)
        message = messages.LaneLost(registration.key, worker.name, **facts)
        sim.loop.run(sim.handle(message))
        sim.advance(5.0)

    lost(lost_workers=1, requests=3)
    lost(lost_workers=2, requests=3, consecutive_losses=1)
    reported = model(sim)
    assert (reported.counts.retries, reported.counts.poison) == (3, 1)
    assert reported.work.failed == {"lost": 1}
    lost(lost_workers=1, requests=2, final=True)
    assert model(sim).work.failed == {"lost": 3}


def test_control_messages_are_counted(sim: SimulatedDaemon) -> None:
    serve(sim)
    sim.answered(sim.client.ask(messages.Unregister("nobody")))
    sim.advance(10.0)
    reported = snapshot(sim).daemon
    assert reported.requests["Register"] == {"done": 1}
    assert reported.requests["Unregister"] == {ErrorKind.NOT_FOUND.value: 1}
    assert reported.registrations == {"ready": 1}
    assert reported.loop_lag.count > 0
    assert reported.disk_free is not None
    assert reported.disk_size is not None
    assert 0 <= reported.disk_free <= reported.disk_size


def test_a_restored_model_is_counted(tmp_path: Path) -> None:
    with successive_daemons(tmp_path) as start:
        serve(start())
        reported = snapshot(start()).daemon
        assert (reported.restored, reported.restore_failures) == (1, 0)


def test_memory_is_reported_with_its_limit(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_metrics, "memory_of", lambda pid: ProcessMemory(1000 + pid, 10))
    worker = serve(sim, limits=messages.Limits(recycle_above=5000, memory_limit=4000))
    reported = instance(sim)
    assert (reported.resident, reported.shared, reported.memory_limit) == (
        1000 + worker.pid,
        10,
        4000,
    )


def test_a_hostile_stats_page_is_reported_within_bounds(sim: SimulatedDaemon) -> None:
    worker = serve(sim)
    worker.stats_of_worker._words[:] = memoryview(b"\xff" * len(worker.stats._map)).cast("Q")
    reported = instance(sim)  # the answer could be encoded
    assert reported.work.calls == (1 << 63) - 1
    worker.end()
    sim.advance(5.0)
    assert instance(sim).work.calls == (1 << 63) - 1


# ── metrics of callables' own ────────────────────────────────────────────────────────────────────


def count(worker: FakeWorker, seen: float, depth: float = 0.0) -> None:
    """Let a worker's callable count this much."""
    families = [
        UserFamily("seen", "counter", "", [encoded_sample(UserSample("_total", {}, seen))]),
        UserFamily("depth", "gauge", "", [encoded_sample(UserSample("", {}, depth))]),
    ]
    pages = worker.stats_of_worker.user_metrics
    assert pages is not None
    assert pages.write(encoded(UserMetrics(families)))


def of_users(sim: SimulatedDaemon) -> dict[str, dict[str, float]]:
    """Return the scraped values by metric and instance."""
    scraped = sim.loop.run(sim.services.metrics.scrape())
    return {
        name: {
            dict(labels)["model_instance"]: value
            for labels, values in family.series.items()
            for value in values.values()
        }
        for name, family in scraped.users.families.items()
    }


def test_metrics_of_a_callable_continue_after_worker_exits(sim: SimulatedDaemon) -> None:
    worker = serve(sim, instances=2)
    assert of_users(sim) == {}
    count(sim.workers[0], 3, depth=8)
    count(sim.workers[1], 40)
    assert of_users(sim) == {"seen": {"0": 3, "1": 40}, "depth": {"0": 8, "1": 0}}
    sim.workers[0].end()
    sim.settle()
    assert of_users(sim) == {"seen": {"0": 3, "1": 40}, "depth": {"1": 0}}
    sim.advance(5.0)
    successor = next(one for one in sim.alive("m") if one.instance == 0)
    assert successor is not worker
    count(successor, 2, depth=1)
    assert of_users(sim) == {"seen": {"0": 5, "1": 40}, "depth": {"0": 1, "1": 0}}


def test_metrics_of_a_callable_continue_after_a_replacement_and_end_with_the_model(
    sim: SimulatedDaemon,
) -> None:
    count(serve(sim), 3)
    sim.served(sim.client.register("m", replace=True))
    count(sim.alive("m")[0], 4)
    assert of_users(sim)["seen"] == {"0": 7}
    sim.answered(sim.client.ask(messages.Unregister("m")))
    assert of_users(sim) == {}


def test_a_hostile_page_has_no_metrics(sim: SimulatedDaemon) -> None:
    worker = serve(sim)
    worker.stats_of_worker._words[:] = memoryview(b"\xff" * len(worker.stats._map)).cast("Q")
    assert of_users(sim) == {}
    worker.end()
    sim.advance(5.0)
    assert of_users(sim) == {}


def test_unused_counters_are_empty() -> None:
    assert NOTHING.as_work().call_s.buckets == []
    assert NOTHING.as_work().failed == {}


@pytest.mark.parametrize(
    ("struct", "metrics", "others"),
    [
        (ModelCounts, MODEL_COUNTERS, set()),
        (
            Work,
            WORK_COUNTERS,
            {"failed", "call_s", "wait_s", "rows_per_call", "first_s", "between_s"},
        ),
    ],
)
def test_each_counter_of_a_model_is_a_metric(
    struct: type[Any], metrics: Sequence[CounterMetric[Any]], others: set[str]
) -> None:
    names = [name for name in struct.__struct_fields__ if name not in others]
    counted = struct(**{name: number for number, name in enumerate(names)})
    assert sorted(one.read(counted) for one in metrics) == list(range(len(names)))
    assert {f"pytriton_{one.name}_total" for one in metrics} <= {
        one.exposed_name for one in FAMILIES
    }


def test_each_delay_counts_in_its_bucket() -> None:
    lag = LoopLag()
    for late_s in (-1.0, BOUNDS_S[2], BOUNDS_S[-1] * 2):
        lag.observe(late_s)
    found = lag.histogram()
    assert found.sum == BOUNDS_S[2] + BOUNDS_S[-1] * 2  # a clock's step back is no time
    assert [at for at, count in enumerate(found.buckets) if count] == [0, 2, len(BOUNDS_S)]


def test_the_delay_is_measured_every_five_seconds() -> None:
    lag, loop = LoopLag(), VirtualLoop()

    async def three_measurements() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(lag.run(), 17.0)

    loop.run_until_complete(three_measurements())
    loop.close()
    assert sum(lag.histogram().buckets) == 3
