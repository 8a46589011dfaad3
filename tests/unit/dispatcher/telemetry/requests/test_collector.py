"""From the workers' rings to the access log and the samples: losses are counted, and nobody waits."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.virtual_time import VirtualLoop
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.lanes.request_records import RequestRecord
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.messages.client import RequestEntry
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.runtime.logs import LogFile
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.telemetry.events.explain import Outcomes
from pytriton.dispatcher.telemetry.requests import collector as collector_module
from pytriton.dispatcher.telemetry.requests.collector import (
    MAX_SAMPLES,
    RecentOutcomes,
    RequestCollector,
    Samples,
)
from pytriton.dispatcher.workers.model_counters import CounterRegistry, ModelCounters


class Stage:
    """A model "m" with one worker, whose end of the statistics page belongs to the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stats, descriptor = WorkerStatsPage.create()
        os.close(descriptor)
        self.spec = messages.ModelSpec("m", 3, {}, messages.WorkerEnvironment(""))
        self.counter_registry = CounterRegistry()
        self.counters = self.counter_registry.of("m")
        self.worker = SimpleNamespace(
            alive=True, stats=self.stats, outcomes=self.stats.outcomes, counts=self.stats.counts
        )
        self.registered = SimpleNamespace()
        self.counters.of(3, 1).workers.append(cast(Any, self.worker))
        self.opened: list[LogFile] = []
        self.registry = SimpleNamespace(
            served=SimpleNamespace(
                counter_registry=self.counter_registry,
                get=self.registration,
                by_name=self.registration,
            ),
            stopping=False,
            changes=ChangeSignal(),
        )
        self.collector = RequestCollector(cast(Registry, self.registry), self.path, self.open)
        self.collector.poll()

    def registration(self, name: str) -> Any:
        self.registered.spec = self.spec
        return self.registered

    def path(self, model: str) -> Path:
        return self.folder / f"access-{model}.log"

    def open(self, path: Path) -> LogFile:
        self.opened.append(LogFile(path, 4000, 2))
        return self.opened[-1]

    def log(self, *, on: bool) -> None:
        self.spec = messages.ModelSpec("m", 3, {}, messages.WorkerEnvironment(""), access_log=on)
        self.collector.poll()

    def serve(self, *names: str, took: int = 5, status: str = "ok", **more: Any) -> None:
        """Act as the worker that answered requests with these ids in one call."""
        now = time.monotonic_ns()
        self.stats.records.write(
            [RequestRecord(name, status, now, -1, took, 1, 1, 8, -1, **more) for name in names]
        )

    def reported(self) -> messages.Requests:
        return self.collector.requests("m")

    def outcomes(self, model: str = "m") -> Outcomes:
        found = self.collector.outcomes(model)
        assert found is not None
        return found

    def logged(self) -> list[str]:
        files = sorted(self.folder.iterdir(), reverse=True)
        return [json.loads(line)["id"] for one in files for line in one.read_text().splitlines()]


# In Python 3.9, its signals belong to the event loop that is current now.
@pytest.fixture
def stage(loop: VirtualLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(collector_module, "_CLOSE_TIMEOUT_S", 60.0)
    made = Stage(tmp_path)
    yield made
    made.collector.close()
    made.stats.close()


def test_without_an_access_log_requests_are_sampled(stage: Stage) -> None:
    stage.serve("quick", took=5)
    stage.serve("slow", took=9)
    stage.serve("wrong", took=1, status="result", version=2, error="TypeError")
    eventually(lambda: len(stage.reported().slowest) == 3, "records")
    reported = stage.reported()
    assert [one.id for one in reported.slowest] == ["slow", "quick", "wrong"]
    (failed,) = reported.failed
    assert (failed.id, failed.version, failed.instance) == ("wrong", 2, 1)
    assert (failed.status, failed.error) == ("result", "TypeError")
    assert reported.slowest[0].error == ""
    assert (reported.slowest[0].version, reported.slowest[0].queue_ns, reported.slowest[0].bytes_out) == (
        3, None, None,
    )  # fmt: skip
    assert abs(reported.slowest[0].time - time.time()) < 60
    assert (reported.access_log, reported.logged, reported.left_out) == (False, 0, 0)
    assert list(stage.folder.iterdir()) == []


def test_activity_before_the_first_poll_is_sampled(stage: Stage) -> None:
    stats, descriptor = WorkerStatsPage.create()
    os.close(descriptor)
    late: Any = SimpleNamespace(
        version=3, instance=2, alive=True, stats=stats, outcomes=stats.outcomes, counts=stats.counts,
        exited=SimpleNamespace(add_done_callback=lambda _: None),
    )  # fmt: skip
    stage.counters.add(late)
    now = time.monotonic_ns()
    assert stats.records.budget > 0
    stats.records.call_failed()
    stats.records.write([RequestRecord("first", "result", now, -1, 1, 1, 1, 8, -1)])
    eventually(lambda: [one.id for one in stage.reported().failed] == ["first"], "its record")
    stage.counters.of(3, 2).workers.clear()
    stats.close()


def test_outcomes_of_the_first_requests_are_known(stage: Stage) -> None:
    """Those before the first poll, too; counts of a previous version of the daemon are from an unknown time."""
    stage.counter_registry.of("new").failed["lost"] += 2
    stage.counter_registry.of("old").failed["lost"] += 2
    stage.counter_registry.of("new").started_at = time.monotonic() - 5
    stage.counter_registry.of("old").started_at = None
    found = {name: stage.outcomes(name) for name in ("new", "old")}
    assert {name: one.failed["lost"] for name, one in found.items()} == {"new": 2, "old": 0}
    # Otherwise the last failure would be older than the reported interval, and `explain` would not name it.
    assert {name: one.seconds >= 5 for name, one in found.items()} == {"new": True, "old": False}


def test_recent_outcomes_are_known_with_the_last_error(stage: Stage) -> None:
    stage.stats.begin(3)
    stage.stats.failed("callable", 2)
    stage.counters.failed["lost"] += 1
    stage.serve("wrong", status="callable", error="ValueError")
    eventually(lambda: stage.outcomes().last_error == "ValueError", lambda: str(stage.outcomes()))
    found = stage.outcomes()
    assert found.requests == 3
    assert {kind: count for kind, count in found.failed.items() if count} == {
        "callable": 2, "lost": 1,
    }  # fmt: skip
    assert found.last_at == pytest.approx(time.time(), abs=60)
    assert stage.collector.outcomes("other") is None


def test_activity_right_after_registration_is_known(stage: Stage) -> None:
    """At the previous poll, the model was loading and not registered yet."""
    loading = stage.counter_registry.of("n")
    there = {"m": stage.registration("m")}
    stage.registry.served.get = there.get
    stage.collector.poll()
    loading.failed["lost"] += 1
    there["n"] = SimpleNamespace(spec=stage.spec)
    assert stage.outcomes("n").failed["lost"] == 1


def test_outcomes_of_another_registration_are_ignored(stage: Stage) -> None:
    stage.stats.begin(3)
    stage.stats.failed("callable", 3)
    stage.serve("wrong", status="callable", error="ValueError")
    eventually(lambda: stage.reported().failed, "records")
    stage.registered = SimpleNamespace()
    found = stage.outcomes()
    assert (found.requests, sum(found.failed.values()), found.last_at) == (0, 0, None)
    stage.stats.begin(1)
    assert stage.outcomes().requests == 1


def test_another_model_of_the_same_name_starts_without_requests(stage: Stage) -> None:
    """It was unregistered and registered between two polls."""
    stage.serve("former", status="callable")
    eventually(lambda: stage.reported().failed, "records")
    stage.counter_registry.forget("m")
    stage.counter_registry.of("m")
    assert (stage.reported().failed, stage.reported().slowest) == ([], [])


def test_the_access_log_has_a_line_per_request_until_it_is_disabled(stage: Stage) -> None:
    stage.log(on=True)
    for number in range(5):
        stage.serve(f"{number}a", f"{number}b", "two\nlines \ud7ff")
    eventually(lambda: stage.reported().logged == 15, "records")
    stage.log(on=False)
    stage.serve("later")
    eventually(lambda: any(one.id == "later" for one in stage.reported().slowest), "records")
    assert stage.logged()[:4] == ["0a", "0b", "two\nlines \ud7ff", "1a"]
    assert len(stage.logged()) == 15
    assert (stage.path("m").stat().st_mode & 0o777) == 0o600


def test_the_access_log_has_the_requests_that_ended_while_it_was_enabled(stage: Stage) -> None:
    """A worker writes a record after its answer, and it is read at the next poll."""
    stage.serve("before")
    stage.log(on=True)
    stage.serve("between")
    stage.log(on=False)
    stage.serve("after", status="callable")
    stage.log(on=True)
    stage.serve("again")
    eventually(lambda: len(stage.reported().slowest) == 4, "records")
    assert stage.logged() == ["between", "again"]
    assert (stage.reported().logged, stage.reported().left_out) == (2, 0)


def test_the_access_log_has_the_first_requests_of_a_registration(stage: Stage) -> None:
    stage.registered = SimpleNamespace()
    stage.serve("first")
    stage.log(on=True)
    eventually(lambda: stage.reported().logged == 1, "records")
    assert stage.logged() == ["first"]


def test_the_access_log_is_rotated(stage: Stage) -> None:
    stage.log(on=True)
    for number in range(100):
        stage.serve(f"{number}")
        if number % 10 == 9:
            eventually(lambda count=number: stage.reported().logged == count + 1, "records")  # type: ignore[misc]
    assert len(list(stage.folder.iterdir())) == 3
    assert sum(one.stat().st_size for one in stage.folder.iterdir()) < 15_000
    assert stage.logged()[-1] == "99"


def test_records_left_by_an_ended_worker_are_collected(stage: Stage) -> None:
    stage.serve("last words")
    stage.worker.alive = False
    stage.counters._uncollected.append((3, 1, stage.stats.records.take()))
    eventually(lambda: [one.id for one in stage.reported().slowest] == ["last words"], "records")


def test_lost_records_are_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.log(on=True)
    for _ in range(600):
        stage.serve(*["x" * 190] * 4)
    eventually(lambda: stage.reported().logged + stage.reported().left_out == 2400, "records")
    lost = stage.reported().left_out
    assert 0 < lost < 2400
    monkeypatch.setattr(collector_module, "_MAX_PENDING_BYTES", 0)
    stage.serve("no room")
    assert stage.reported().left_out == lost + 1
    monkeypatch.undo()
    monkeypatch.setattr(stage.opened[0], "write", lambda lines: False)  # a full disk
    stage.serve("no disk", "none")
    eventually(lambda: stage.reported().left_out == lost + 3, "records")


def test_the_access_log_is_deleted_with_the_model(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.log(on=True)
    stage.serve("a")
    eventually(lambda: stage.reported().logged == 1, "records")
    written = threading.Event()
    write = stage.opened[0].write
    monkeypatch.setattr(stage.opened[0], "write", lambda line: written.wait(30) and write(line))
    stage.serve("b")
    stage.collector.poll()
    stage.counter_registry.forget("m")
    stage.collector.poll()
    written.set()
    stage.collector.close()  # it waits for all that was to be written
    assert list(stage.folder.iterdir()) == []


def test_a_disk_error_does_not_end_the_collection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.log(on=True)

    def faulty(line: str) -> bool:
        raise OSError("a fault")

    monkeypatch.setattr(stage.opened[0], "write", faulty)
    stage.serve("a")
    eventually(lambda: stage.reported().left_out == 1, "records")
    monkeypatch.undo()
    stage.serve("b")
    eventually(lambda: stage.reported().logged == 1, "records")
    assert stage.collector._pending_bytes == 0


def test_an_error_in_one_poll_does_not_end_the_collection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "_POLL_INTERVAL_S", 0.001)

    async def looked() -> None:
        again = asyncio.Event()
        looks = iter([OSError("a fault")])

        def look() -> None:
            for error in looks:
                raise error
            again.set()

        monkeypatch.setattr(stage.collector, "poll", look)
        running = asyncio.create_task(stage.collector.run())
        await asyncio.wait_for(again.wait(), 30)
        running.cancel()

    asyncio.run(looked())
    monkeypatch.undo()


class Polls:
    """Counts the polls of a collector that runs on a virtual clock."""

    def __init__(self, loop: VirtualLoop, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = loop
        self._count = 0
        self._poll = stage.collector.poll
        monkeypatch.setattr(stage.collector, "poll", self._counted)
        self._running = loop.create_task(stage.collector.run())

    def _counted(self) -> bool:
        self._count += 1
        return self._poll()

    def in_seconds(self, seconds: float) -> int:
        self._loop.settle()
        self._count = 0
        self._loop.advance(seconds)
        return self._count

    def close(self) -> None:
        self._running.cancel()
        self._loop.settle()


@pytest.fixture
def polls(loop: VirtualLoop, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Polls]:
    polls = Polls(loop, stage, monkeypatch)
    yield polls
    polls.close()


def test_polling_stops_while_there_are_no_models(stage: Stage, polls: Polls) -> None:
    assert polls.in_seconds(20) > 0
    stage.counter_registry.forget("m")
    polls.in_seconds(5)  # until the next poll of idle workers
    assert polls.in_seconds(20) == 0
    stage.counter_registry.of("m")
    assert polls.in_seconds(20) > 0


def test_polling_is_less_frequent_while_no_records_arrive(stage: Stage, polls: Polls) -> None:
    polls.in_seconds(20)
    assert polls.in_seconds(20) == pytest.approx(4, abs=1)
    stage.serve("first")
    polls.in_seconds(5)
    seen = 0
    for number in range(80):  # a record between any two polls
        stage.serve(f"{number}")
        seen += polls.in_seconds(0.25)
    assert seen == pytest.approx(80, abs=5)


def test_polling_is_less_frequent_with_many_models(stage: Stage, polls: Polls) -> None:
    for number in range(1000):
        stage.counter_registry.of(f"m{number}")
    polls.in_seconds(60)
    assert polls.in_seconds(120) == 4


def test_registrations_without_an_access_log_cause_no_polls(stage: Stage, polls: Polls) -> None:
    polls.in_seconds(20)
    seen = 0
    for _ in range(100):
        stage.registry.changes.notify()
        seen += polls.in_seconds(0.1)
    assert seen == pytest.approx(2, abs=1)


def test_polling_is_frequent_while_an_access_log_is_enabled(stage: Stage, polls: Polls) -> None:
    polls.in_seconds(20)
    stage.log(on=True)
    polls.in_seconds(5)
    assert polls.in_seconds(20) == pytest.approx(80, abs=1)


def test_the_access_log_of_a_new_registration_is_enabled_at_once(
    stage: Stage, polls: Polls
) -> None:
    polls.in_seconds(20)
    stage.spec = messages.ModelSpec("m", 4, {}, messages.WorkerEnvironment(""), access_log=True)
    stage.registered = SimpleNamespace()
    stage.registry.changes.notify()
    polls.in_seconds(0.2)
    assert stage.stats.records.all_wanted


def test_idle_models_are_not_collected(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[str] = []
    collect = stage.counters.records

    def recorded(limit_ns: int, budget: int) -> Any:
        collected.append("m")
        return collect(limit_ns, budget)

    monkeypatch.setattr(stage.counters, "records", recorded)
    assert not stage.collector.poll()
    assert collected == []
    stage.serve("one")
    assert stage.collector.poll()
    assert collected == ["m"]
    stage.counters._uncollected.append((3, 1, stage.stats.records.take()))
    assert stage.collector.poll()
    stage.log(on=True)
    assert collected == ["m", "m", "m"]
    assert not stage.collector.poll()
    assert collected == ["m", "m", "m"]


def test_access_logs_survive_a_stop_of_the_daemon(stage: Stage) -> None:
    stage.log(on=True)
    stage.serve("a")
    eventually(lambda: stage.reported().logged == 1, "records")
    stage.registry.stopping = True
    stage.counter_registry.forget("m")
    stage.collector.poll()
    stage.collector.close()
    assert stage.logged() == ["a"]


def test_forged_records_are_bounded(stage: Stage) -> None:
    huge = (1 << 64) - 1
    stage.stats.records.write(
        [RequestRecord("x" * 5000, "\x1b[2J", huge, huge, huge, huge, huge, huge, huge, huge)]
    )
    eventually(lambda: len(stage.reported().slowest) == 1, "records")
    (one,) = stage.reported().slowest
    assert (len(one.id), one.status) == (200, "callable")
    messages.decode(messages.encode(stage.reported()))
    assert isinstance(stage.counters, ModelCounters)


def test_a_failed_thread_start_is_retried_with_the_next_job(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stage.log(on=True)
    stage.serve("a")
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            stage.collector.poll()
    stage.serve("b")
    eventually(lambda: stage.reported().logged == 2, "records")
    assert stage.logged() == ["a", "b"]
    assert not stage.collector.has_pending


# ── samples ──────────────────────────────────────────────────────────────────────────────────────


def sample(took: int, at: float = 0.0, status: str = "ok") -> RequestEntry:
    return RequestEntry(at, f"r{took}", "m", 1, 0, status, None, took, 1, 1, 0, None)


def times(found: list[RequestEntry]) -> list[int]:
    return [one.compute_ns for one in found]


def test_only_the_slowest_requests_are_kept() -> None:
    samples = Samples()
    for took in range(100, 0, -1):
        samples.add(sample(took), 0.0)
        samples.add(sample(took), 0.0)  # equal ones are no trouble
    assert times(samples.slowest(0.0)) == [took for took in range(100, 90, -1) for _ in range(2)]
    assert samples.threshold_ns(0.0) == 92


def test_every_request_is_sampled_until_there_are_enough() -> None:
    samples = Samples()
    for took in range(1, MAX_SAMPLES):
        samples.add(sample(took), 0.0)
    assert samples.threshold_ns(0.0) == 0
    samples.add(sample(MAX_SAMPLES), 0.0)
    assert samples.threshold_ns(0.0) == 2


def test_samples_older_than_an_hour_are_dropped() -> None:
    samples = Samples()
    for took in range(1000, 1000 + MAX_SAMPLES):
        samples.add(sample(took, at=0.0), 0.0)
    assert samples.threshold_ns(500.0) == 1001
    assert samples.threshold_ns(700.0) == 0  # nothing is known of the next part of the hour yet
    samples.add(sample(5, at=-1e9), 700.0)  # somebody has set the clock
    assert times(samples.slowest(3000.0))[-1] == 1000  # twenty are slower
    assert times(samples.slowest(3601.0)) == [5]
    assert times(samples.slowest(4301.0)) == []


def test_the_last_failed_requests_are_kept() -> None:
    samples = Samples()
    for took in range(30):
        samples.add(sample(took, status="callable"), 0.0)
        samples.add(sample(took), 0.0)
    assert times(samples.failed()) == list(range(29, 29 - MAX_SAMPLES, -1))


# ── recent outcomes ──────────────────────────────────────────────────────────────────────────────


class FakeCounters(ModelCounters):
    """Counters that the test sets."""

    requests = lost = 0

    def outcomes(self) -> tuple[int, dict[str, int]]:
        return self.requests, {"callable": 0, "lost": self.lost}


def test_outcomes_are_those_of_the_last_minutes() -> None:
    counters = FakeCounters()
    counters.requests, counters.lost = 1000, 900  # of a previous run
    recent = RecentOutcomes(counters, 50.0)
    for second in range(1, 1001):
        counters.requests += 1
        counters.lost += second <= 600
        recent.sample(50.0 + second)
    seconds, requests, failed = recent.since(1050.0)
    assert 270 <= seconds <= 330
    assert requests == seconds
    assert failed == {"callable": 0, "lost": 0}
    assert len(recent._points) <= 32


def test_outcomes_include_the_start_while_it_is_recent() -> None:
    counters = FakeCounters()
    recent = RecentOutcomes(counters, 50.0)
    counters.requests, counters.lost = 7, 3
    recent.sample(51.0)
    assert recent.since(52.0) == (2.0, 7, {"callable": 0, "lost": 3})


def test_old_outcomes_are_dropped_after_a_quiet_period() -> None:
    counters = FakeCounters()
    recent = RecentOutcomes(counters, 50.0)
    counters.requests = 7
    for second in range(60, 1000, 10):
        recent.sample(float(second))
    assert recent.since(1000.0)[1] == 0
