"""The snapshot of what is counted and measured: over the lives of workers, and whatever a worker does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.fakes.brain import Brain
from support.fakes.fake_worker import FakeWorker

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind
from pytriton._protocol.lanes.stats_page import NOTHING
from pytriton._protocol.lanes.user_metrics import (
    UserFamily,
    UserMetrics,
    UserSample,
    encoded,
    encoded_sample,
)
from pytriton._protocol.messages.figures import Figures, InstanceFigures, ModelFigures
from pytriton.dispatcher.telemetry.metrics.process_memory import Memory, memory_of
from pytriton.dispatcher.telemetry.metrics.work import work_of


def figures(brain: Brain) -> Figures:
    """Ask as a client does; the answer travels as bytes."""
    answer = brain.answered(brain.client.ask(messages.GetFigures()))
    assert isinstance(answer, messages.Figures)
    return answer


def model(brain: Brain, name: str = "m") -> ModelFigures:
    return next(one for one in figures(brain).models if one.name == name)


def instance(brain: Brain, number: int = 0) -> InstanceFigures:
    return next(one for one in model(brain).instances if one.instance == number)


def serve(brain: Brain, **more: Any) -> FakeWorker:
    brain.served(brain.client.register("m", **more))
    return brain.workers[-1]


def work(worker: FakeWorker, rows: int = 4) -> None:
    worker.gauge_of_worker.end(worker.gauge_of_worker.begin(2, rows))


def test_what_a_worker_does_is_told(brain: Brain) -> None:
    worker = serve(brain)
    work(worker)
    worker.gauge_of_worker.failed("result", 2)
    worker.gauge_of_worker.loaded(2_000_000_000, 500_000_000)
    worker.gauge_of_worker.holds(4096)
    told = instance(brain)
    assert (told.worker, told.pid, told.state) == (worker.name, worker.pid, "ready")
    assert (told.work.calls, told.work.requests, told.work.rows) == (1, 2, 4)
    assert told.work.failed == {"result": 2}
    assert told.work.call_s.count == 1
    assert (told.work.rows_per_call.sum, told.work.rows_per_call.buckets) == (4.0, [0, 0, 1])
    assert (told.load_s, told.warmup_s, told.arenas) == (2.0, 0.5, 4096)
    assert (told.starts, told.ends) == (1, {})
    assert model(brain).work == told.work


def test_counters_outlive_a_worker(brain: Brain) -> None:
    worker = serve(brain)
    work(worker)
    worker.end()
    brain.advance(5.0)
    work(brain.alive("m")[0])
    told = instance(brain)
    assert told.worker != worker.name
    assert told.work.calls == 2
    assert (told.starts, told.ends) == (2, {"crash": 1})


def test_counters_outlive_a_replacement(brain: Brain) -> None:
    work(serve(brain))
    brain.served(brain.client.register("m", replace=True))
    told = instance(brain)
    assert (told.work.calls, told.starts, told.ends) == (1, 2, {"replace": 1})


def test_counters_go_with_the_model(brain: Brain) -> None:
    work(serve(brain))
    brain.answered(brain.client.ask(messages.Unregister("m")))
    assert figures(brain).models == []
    serve(brain)
    assert model(brain).work.calls == 0


def test_an_instance_that_is_scaled_away_keeps_its_counters(brain: Brain) -> None:
    serve(brain, instances=2)
    work(brain.workers[1])
    brain.answered(brain.client.ask(messages.Scale("m", 1)))
    told = model(brain)
    assert told.desired == 1
    assert [(one.instance, one.state) for one in told.instances] == [(0, "ready"), (1, "")]
    assert told.instances[1].ends == {"scale": 1}
    assert (told.instances[1].work.calls, told.work.calls) == (1, 1)


def test_a_worker_that_cannot_be_loaded_ends_for_that(brain: Brain) -> None:
    serve(brain)
    brain.plans = ["fails"]
    brain.workers[0].end()
    brain.advance(5.0)
    assert instance(brain).ends == {"crash": 1, "load": 1}


def test_a_spent_worker_is_counted_as_such(brain: Brain) -> None:
    serve(brain).is_spent("max_batches")
    brain.advance(1.0)
    assert instance(brain).ends == {"spent": 1}


def test_a_hung_worker_is_counted_as_such(brain: Brain) -> None:
    worker = serve(brain, execution_timeout_s=1.0)
    worker.begin()
    worker.leave("hang")  # as both kinds of worker do in `end_hung`
    worker.end()
    brain.advance(5.0)
    assert instance(brain).ends == {"hang": 1}


def test_a_worker_under_way_is_told_of_without_being_asked(brain: Brain) -> None:
    """It does nothing here but write its page: nobody waits for it."""
    worker = serve(brain)
    worker.begin()
    told = instance(brain)
    assert told.work.calls == 1
    assert told.work.call_s.count == 0
    assert told.batch_s is not None
    assert told.work.busy_s > 0


def test_retries_and_poison_are_counted(brain: Brain) -> None:
    serve(brain)
    registration = brain.daemon.registry.by_name("m")

    def lost(**facts: Any) -> None:
        worker = brain.alive("m")[0]
        worker.end(in_batch=True)
        message = messages.LaneLost(registration.key, worker.name, **facts)
        brain.loop.run(brain.handle(message))
        brain.advance(5.0)

    lost(losses=1, requests=3)
    lost(losses=2, requests=3, in_row=1)
    told = model(brain)
    assert (told.retries, told.poison) == (3, 1)
    assert told.work.failed == {"lost": 1}
    lost(losses=1, requests=2, final=True)
    assert model(brain).work.failed == {"lost": 3}


def test_the_daemon_counts_what_it_is_asked(brain: Brain) -> None:
    serve(brain)
    brain.answered(brain.client.ask(messages.Unregister("nobody")))
    brain.advance(10.0)
    told = figures(brain).daemon
    assert told.requests["Register"] == {"done": 1}
    assert told.requests["Unregister"] == {ErrorKind.NOT_FOUND.value: 1}
    assert told.registrations == {"ready": 1}
    assert told.loop_lag.count > 0
    assert told.disk_free is not None
    assert told.disk_size is not None
    assert 0 <= told.disk_free <= told.disk_size


def test_a_restored_model_is_counted(tmp_path: Path) -> None:
    former = Brain(tmp_path)
    former.advance(2.0)
    serve(former)
    former.close()
    again = Brain(tmp_path)
    try:
        again.advance(5.0)
        assert (figures(again).daemon.restored, figures(again).daemon.restore_failures) == (1, 0)
    finally:
        again.close()


def test_memory_is_that_of_the_process() -> None:
    memory = memory_of(os.getpid())
    assert memory is not None
    assert 1 << 20 < memory.shared < memory.resident
    assert memory_of(1 << 22) is None


def test_memory_is_told_with_its_limit(brain: Brain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brain.daemon.figures, "_memory", lambda pid: Memory(1000 + pid, 10))
    worker = serve(brain, limits=messages.Limits(memory=5000, memory_hard=4000))
    told = instance(brain)
    assert (told.resident, told.shared, told.memory_limit) == (1000 + worker.pid, 10, 4000)


def test_a_hostile_page_is_told_of_in_bounds(brain: Brain) -> None:
    worker = serve(brain)
    worker.gauge_of_worker._words[:] = memoryview(b"\xff" * len(worker.gauge._map)).cast("Q")
    told = instance(brain)  # the answer could be encoded
    assert told.work.calls == (1 << 63) - 1
    worker.end()
    brain.advance(5.0)
    assert instance(brain).work.calls == (1 << 63) - 1


# ── metrics of callables' own ────────────────────────────────────────────────────────────────────


def count(worker: FakeWorker, seen: float, depth: float = 0.0) -> None:
    """Have a worker's callable have counted so much."""
    families = [
        UserFamily("seen", "counter", "", [encoded_sample(UserSample("_total", {}, seen))]),
        UserFamily("depth", "gauge", "", [encoded_sample(UserSample("", {}, depth))]),
    ]
    pages = worker.gauge_of_worker.user_metrics
    assert pages is not None
    assert pages.write(encoded(UserMetrics(families)))


def of_users(brain: Brain) -> dict[str, dict[str, float]]:
    """Return the values that a scraper is told, by metric and instance."""
    scraped = brain.loop.run(brain.daemon.figures.scraped())
    return {
        name: {
            dict(labels)["model_instance"]: value
            for labels, values in family.series.items()
            for value in values.values()
        }
        for name, family in scraped.users.families.items()
    }


def test_metrics_of_a_callable_go_on_over_ends_of_workers(brain: Brain) -> None:
    worker = serve(brain, instances=2)
    assert of_users(brain) == {}
    count(brain.workers[0], 3, depth=8)
    count(brain.workers[1], 40)
    assert of_users(brain) == {"seen": {"0": 3, "1": 40}, "depth": {"0": 8, "1": 0}}
    brain.workers[0].end()
    brain.settle()
    assert of_users(brain) == {"seen": {"0": 3, "1": 40}, "depth": {"1": 0}}
    brain.advance(5.0)
    successor = next(one for one in brain.alive("m") if one.instance == 0)
    assert successor is not worker
    count(successor, 2, depth=1)
    assert of_users(brain) == {"seen": {"0": 5, "1": 40}, "depth": {"0": 1, "1": 0}}


def test_metrics_of_a_callable_go_on_over_a_replacement_and_go_with_the_model(brain: Brain) -> None:
    count(serve(brain), 3)
    brain.served(brain.client.register("m", replace=True))
    count(brain.alive("m")[0], 4)
    assert of_users(brain)["seen"] == {"0": 7}
    brain.answered(brain.client.ask(messages.Unregister("m")))
    assert of_users(brain) == {}


def test_a_hostile_page_has_no_metrics(brain: Brain) -> None:
    worker = serve(brain)
    worker.gauge_of_worker._words[:] = memoryview(b"\xff" * len(worker.gauge._map)).cast("Q")
    assert of_users(brain) == {}
    worker.end()
    brain.advance(5.0)
    assert of_users(brain) == {}


def test_nothing_done_is_told_as_nothing() -> None:
    assert work_of(NOTHING).call_s.buckets == []
    assert work_of(NOTHING).failed == {}
