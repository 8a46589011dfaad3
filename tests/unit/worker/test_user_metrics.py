"""What a worker sends of `prometheus_client`: all kinds, as much as fits, and no more often than allowed."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from support.real_daemon import eventually

from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.lanes.user_metrics import (
    MAX_BYTES,
    MAX_VALUES,
    SIZE,
    UserMetricsPages,
    encoded,
)
from pytriton._protocol.lanes.user_series import Checked, checked
from pytriton.worker import user_metrics
from pytriton.worker.user_metrics import UserMetricsExport, collected, export_user_metrics


@pytest.fixture(autouse=True)
def own_finders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def said(registry: CollectorRegistry) -> Checked:
    """Return the daemon's view of a registry."""
    return checked(encoded(collected(registry.collect())))


def test_every_kind_arrives(registry: CollectorRegistry) -> None:
    Counter("seen", "Things.", ["colour"], registry=registry).labels("red").inc(3)
    Gauge("jobs_created", "A gauge of that name.", registry=registry).set(2)
    Histogram("size", "Sizes.", buckets=(1, 10), registry=registry).observe(5)
    Summary("took", "Times.", registry=registry).observe(4)
    Info("build", "About.", registry=registry).info({"commit": "abc"})
    Enum("mood", "State.", states=["up", "down"], registry=registry).state("down")
    found = said(registry)
    assert (found.left_out, found.faults) == (0, {})
    reported = {
        (name, labels, *key): value
        for name, family in found.families.items()
        for labels, values in family.series.items()
        for key, value in values.items()
    }
    assert reported == {
        ("seen", (("colour", "red"),), "_total", ""): 3,
        ("jobs_created", (), "", ""): 2,
        ("size", (), "_bucket", "1.0"): 0,
        ("size", (), "_bucket", "10.0"): 1,
        ("size", (), "_bucket", "+Inf"): 1,
        ("size", (), "_count", ""): 1,
        ("size", (), "_sum", ""): 5,
        ("took", (), "_count", ""): 1,
        ("took", (), "_sum", ""): 4,
        ("build_info", (("commit", "abc"),), "", ""): 1,
        ("mood", (("mood", "up"),), "", ""): 0,
        ("mood", (("mood", "down"),), "", ""): 1,
    }


def test_the_library_s_own_metrics_are_omitted(registry: CollectorRegistry) -> None:
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    assert said(registry) == Checked({}, 0, {})


def test_unlimited_labels_keep_the_first_ones(registry: CollectorRegistry) -> None:
    counter = Counter("seen", "Things.", ["user"], registry=registry)
    for number in range(MAX_VALUES + 50):
        counter.labels(str(number)).inc()
    found = said(registry)
    assert len(found.families["seen"].series) == MAX_VALUES
    assert (("user", "0"),) in found.families["seen"].series
    assert found.left_out == 50


def test_a_histogram_is_reported_completely_or_not_at_all(registry: CollectorRegistry) -> None:
    histogram = Histogram("size", "Sizes.", ["user"], registry=registry)
    for number in range(MAX_VALUES):
        histogram.labels(str(number)).observe(1)
    found = said(registry)
    of_one = len(next(iter(found.families["size"].series.values())))
    assert len(found.families["size"].series) == MAX_VALUES // of_one
    assert found.left_out == (MAX_VALUES - MAX_VALUES // of_one) * of_one
    assert "size" not in found.faults


def test_long_texts_are_truncated_by_bytes(registry: CollectorRegistry) -> None:
    for number in range(100):
        gauge = Gauge(f"g{number}", "h" * 100_000, ["text"], registry=registry)
        for label in range(20):
            gauge.labels(f"{label}" + "é" * 200).set(1)
    message = encoded(collected(registry.collect()))
    assert len(message) <= MAX_BYTES
    found = checked(message)
    reported = sum(len(family.series) for family in found.families.values())
    assert reported + found.left_out == 100 * 20
    assert reported > 300


def test_unusual_labels_and_values_arrive_as_far_as_possible(registry: CollectorRegistry) -> None:
    class Odd:
        def collect(self) -> Iterator[Any]:
            metric = GaugeMetricFamily("odd", "\ud800", labels=["a"])
            metric.add_metric(['\udcff\n"'], float("nan"))
            metric.add_sample("another", {}, 1)
            yield metric

    registry.register(Odd())
    found = said(registry)
    assert list(found.families["odd"].series) == [(("a", '\\udcff\n"'),)]
    assert found.left_out == 1


# ── the thread ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stats() -> Iterator[WorkerStatsPage]:
    page, fd = WorkerStatsPage.create()
    os.close(fd)
    yield page
    page.close()


@pytest.fixture
def pages(stats: WorkerStatsPage) -> UserMetricsPages:
    assert stats.user_metrics is not None
    return stats.user_metrics


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, registry: CollectorRegistry) -> CollectorRegistry:
    """A `prometheus_client` for this test, polled frequently."""
    monkeypatch.setitem(sys.modules, "prometheus_client", SimpleNamespace(REGISTRY=registry))
    monkeypatch.setattr(user_metrics, "_PERIOD_S", 0.001)
    monkeypatch.setattr(user_metrics, "_LAST_UPDATE_S", 60.0)
    return registry


def seen_in(pages: UserMetricsPages) -> float:
    """Return the counter `seen` as the daemon reads it, -1 before it is there."""
    families = checked(pages.read()).families
    return next(iter(families["seen"].series.values()))["_total", ""] if families else -1


def test_pages_follow_the_registry_and_the_exit_writes_a_last_time(
    library: CollectorRegistry,
    stats: WorkerStatsPage,
    pages: UserMetricsPages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = Counter("seen", "Things.", registry=library)
    thread = export_user_metrics(stats)
    assert thread is not None

    try:
        eventually(lambda: seen_in(pages) == 0, "nothing was written")
        counter.inc()
        eventually(lambda: seen_in(pages) == 1, "a change was not written")
        monkeypatch.setattr(user_metrics, "_SHARE", 1e9)  # no further poll by itself
        counter.inc(5)
    finally:
        thread.close()
    assert seen_in(pages) == 6


def test_a_failing_collector_is_reported_once_and_keeps_known_values(
    library: CollectorRegistry,
    stats: WorkerStatsPage,
    pages: UserMetricsPages,
    capfd: pytest.CaptureFixture[str],
) -> None:
    failures = 0

    class Failing:
        def collect(self) -> Iterator[Any]:
            nonlocal failures
            failures += 1
            raise RuntimeError("of the user's own")

    Counter("seen", "Things.", registry=library)
    thread = export_user_metrics(stats)
    assert thread is not None
    try:
        eventually(lambda: pages.read() != b"", "nothing was written")
        library._collector_to_names[Failing()] = []  # `register` would collect at once
        eventually(lambda: failures > 2, "it was not tried again")
    finally:
        thread.close()
    assert "seen" in checked(pages.read()).families
    assert capfd.readouterr().err.count("metrics cannot be collected") == 1


def test_a_worker_that_cannot_start_threads_serves_without_metrics(
    library: CollectorRegistry,
    stats: WorkerStatsPage,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    export = export_user_metrics(stats)
    assert export is not None
    export.close()
    assert "are not exported: can't start" in capfd.readouterr().err


def test_no_thread_runs_until_the_library_is_imported(
    stats: WorkerStatsPage, pages: UserMetricsPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_metrics, "_PERIOD_S", 0.001)
    for name in [one for one in sys.modules if one.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)

    def is_running() -> bool:
        return any(one.name == "pytriton metrics" for one in threading.enumerate())

    export = export_user_metrics(stats)
    assert export is not None
    try:
        importlib.import_module("colorsys")
        assert not is_running()
        watch: Any = sys.meta_path[0]
        with (
            monkeypatch.context() as forked
        ):  # the child of a fork must not write the worker's page
            forked.setattr(os, "getpid", lambda: -1)
            watch.find_spec("prometheus_client", None)
        assert not is_running()
        library = importlib.import_module("prometheus_client.metrics")
        library.Counter("seen_late", "Things.").inc(2)
        eventually(lambda: "seen_late" in checked(pages.read()).families, "nothing was written")
        assert is_running()
        assert (
            watch in sys.meta_path
        )  # a finder that removed itself would make other threads skip one
    finally:
        export.close()


def test_without_the_library_there_is_no_thread(
    stats: WorkerStatsPage, pages: UserMetricsPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_metrics, "_LIBRARY", "not_installed_anywhere")
    assert export_user_metrics(stats) is None


def test_a_page_without_space_for_metrics_gets_no_export(tmp_path: Path) -> None:
    with contextlib.closing(WorkerStatsPage.create_file(tmp_path / "stats")) as stats:
        assert export_user_metrics(stats) is None


def test_a_batch_wakes_the_export_of_an_idle_worker(
    library: CollectorRegistry,
    stats: WorkerStatsPage,
    pages: UserMetricsPages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While there is none, the pauses grow, here to hours."""
    monkeypatch.setattr(user_metrics, "_MAX_PERIOD_S", 1e6)
    monkeypatch.setattr(user_metrics, "_SHARE", 0)
    counter = Counter("seen", "Things.", registry=library)
    export = export_user_metrics(stats)
    assert export is not None

    def is_above(known: float) -> bool:
        return seen_in(pages) > known

    try:
        for _ in range(3):
            eventually(lambda: stats.on_work is not None, "it is never idle")
            known = seen_in(pages)
            counter.inc()
            stats.end(stats.begin(1))
            eventually(partial(is_above, known), "a change was not written")
    finally:
        export.close()
    assert stats.on_work is None


def test_the_pauses_of_an_idle_worker_grow(
    library: CollectorRegistry, stats: WorkerStatsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_metrics, "_SHARE", 0)
    export = UserMetricsExport(stats, UserMetricsPages(memoryview(bytearray(SIZE))))
    gauge = Gauge("level", "A level.", registry=library)
    pauses: list[float] = []

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        if len(pauses) == 7:
            gauge.set(1)
        return False

    monkeypatch.setattr(export._wake, "wait", wait)
    export._update()
    export._sleep(0, 1.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
