"""Exports the callable's own metrics (`prometheus_client`) through the statistics page to the daemon's /metrics.

A thread copies the default registry every second, so calls have no overhead. It starts when `prometheus_client` is
imported: a callable without metrics of its own costs nothing while it is idle. While there are no batches and the
metrics do not change, the thread copies less and less often; the next batch wakes it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.lanes.user_metrics import (
    MAX_BYTES,
    MAX_VALUES,
    UserFamily,
    UserMetrics,
    UserMetricsPages,
    UserSample,
    encoded,
    encoded_sample,
)
from pytriton._protocol.messages import sendable
from pytriton.worker.fault_reports import report, report_error

_LIBRARY = "prometheus_client"
_PERIOD_S = 1.0
#: Longest period, for a worker that has been idle for a while. (Prometheus usually scrapes as often.)
_MAX_PERIOD_S = 15.0
#: Reading the registry takes at most 1/_SHARE of the time.
_SHARE = 100
#: Maximum time that an exiting worker waits for the last update.
_LAST_UPDATE_S = 1.0
#: The library's metrics of the process itself. The daemon exports such metrics for all workers.
_LIBRARY_METRICS = frozenset(
    {
        "python_gc_objects_collected",
        "python_gc_objects_uncollectable",
        "python_gc_collections",
        "python_info",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_cpu_seconds",
        "process_open_fds",
        "process_max_fds",
    }
)
#: Metric types that Prometheus' text format lacks, and the type that represents each.
_KINDS = {"info": "gauge", "stateset": "gauge", "untyped": "unknown"}
#: Encoded size of a family without its texts and samples, in bytes.
_FAMILY_BYTES = 40
_MAX_LEN_HELP = 1_000


class UserMetricsExport:
    """Copies the metrics registry to the statistics page in a thread, which runs from `start` until `close`.

    Args:
        stats: the worker's statistics page
        pages: its part for the callable's metrics
    """

    def __init__(self, stats: WorkerStatsPage, pages: UserMetricsPages) -> None:
        self._stats = stats
        self._pages = pages
        self._last = b""
        self._fault_reported = False
        self._end = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. If the model's limits do not allow another thread, report it."""
        thread = threading.Thread(target=self._run, name="pytriton metrics", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            report(f"the callable's own metrics are not exported: {error}")
        else:
            self._thread = thread

    def close(self) -> None:
        """Update the page one last time, and end the thread."""
        self._end.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LAST_UPDATE_S)

    def _run(self) -> None:
        batches, period_s = 0, _PERIOD_S
        while not self._end.wait(period_s):
            began, before, batches = time.monotonic(), batches, self._stats.begun
            has_changed = self._update()
            period_s = max(_PERIOD_S, _SHARE * (time.monotonic() - began))
            if not has_changed and batches == before:
                self._sleep(batches, period_s)
        self._update()

    def _sleep(self, batches: int, pause_s: float) -> None:
        """Sleep until the worker has begun more than `batches` batches, the metrics change, or the export ends.

        Check the metrics after `pause_s` seconds, then after longer and longer pauses.
        """
        self._stats.on_work = self._wake.set
        try:
            while self._stats.begun == batches and not self._wake.wait(pause_s):
                began = time.monotonic()
                if self._update():
                    break
                took_s = time.monotonic() - began
                pause_s = max(min(2 * pause_s, _MAX_PERIOD_S), _SHARE * took_s)
        finally:
            self._stats.on_work = None
            self._wake.clear()

    def _update(self) -> bool:
        """Copy the registry. Return whether the metrics have changed."""
        library = sys.modules.get(_LIBRARY)
        registry = getattr(library, "REGISTRY", None)
        if registry is None:
            return False  # not imported yet, or still being imported
        try:
            message = encoded(collected(registry.collect()))
        except Exception as error:  # from a custom collector
            if not self._fault_reported:
                self._fault_reported = True
                report_error(
                    error,
                    "the callable's metrics cannot be collected; /metrics shows the previous values",
                )
            return False
        if message == self._last:
            return False
        self._last = message
        if not self._pages.write(message):
            # Unexpected, since `collected` limits their size.
            report("the callable's metrics do not fit on the statistics page")
        return True


class _ImportWatch:
    """Starts an export when `prometheus_client` is first imported. Leaves the import itself to the other finders.

    It stays in `sys.meta_path`: if it removed itself, imports in other threads at that moment would skip a finder. It is not
    a subclass of `importlib.abc.MetaPathFinder`, because importing that module takes 6 ms.
    """

    def __init__(self, export: UserMetricsExport) -> None:
        self._export = export
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_started = False

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Start the export if the module is `prometheus_client`. Always return None: another finder imports the module."""
        if fullname == _LIBRARY and os.getpid() == self._pid:  # not in a forked process
            self.start()

    def start(self) -> None:
        """Start the export, unless another thread has already done so."""
        with self._lock:
            was_started, self._is_started = self._is_started, True
        if not was_started:
            self._export.start()


def export_user_metrics(stats: WorkerStatsPage) -> UserMetricsExport | None:
    """Export the callable's metrics as soon as their library has been imported. Return the export, or None if the
    callable can have no metrics.
    """
    if stats.user_metrics is None or not _can_be_imported():
        return None
    export = UserMetricsExport(stats, stats.user_metrics)
    watch = _ImportWatch(export)
    sys.meta_path.insert(0, watch)
    if _LIBRARY in sys.modules:  # checked last, because another thread may be importing it
        watch.start()
    return export


def _can_be_imported() -> bool:
    if _LIBRARY in sys.modules:
        return True
    try:
        return importlib.util.find_spec(_LIBRARY) is not None
    except (ImportError, ValueError):  # from a custom importer
        return False


def collected(metrics: Iterable[Any]) -> UserMetrics:
    """Convert the registry's metrics. Those that do not fit into a page are left out and counted."""
    room = _Space()
    families = []
    for metric in metrics:
        if metric.name in _LIBRARY_METRICS:
            continue
        kind = _KINDS.get(metric.type, metric.type)
        name = sendable(f"{metric.name}_info" if metric.type == "info" else metric.name)
        text = sendable(metric.documentation[:_MAX_LEN_HELP])
        values = [one for one in metric.samples if one.name != f"{metric.name}_created"]
        if not room.take(_size(name, kind, text)):
            room.left_out += len(values)
            continue
        samples: list[msgspec.Raw] = []
        for series in _series(values, name):
            if not room.take(sum(map(_raw_size, series)), len(series)):
                room.left_out += len(values) - len(samples)
                break
            samples += series
        if samples:
            families.append(UserFamily(name, kind, text, samples))
    return UserMetrics(families, room.left_out)


class _Space:
    """The free space on a page, in bytes and values."""

    def __init__(self) -> None:
        self.left_out = 0
        self._values = MAX_VALUES
        self._bytes = MAX_BYTES - 64

    def take(self, nbytes: int, values: int = 0) -> bool:
        """Reserve space. If there is too little, reserve nothing and return False."""
        if nbytes > self._bytes or values > self._values:
            return False
        self._bytes -= nbytes
        self._values -= values
        return True


def _series(values: Iterable[Any], name: str) -> Iterator[list[msgspec.Raw]]:
    """Group consecutive samples into series. A histogram or summary has several samples per series."""
    series: list[msgspec.Raw] = []
    labels_of: Any = None
    for sample in values:
        labels = {sendable(str(key)): sendable(str(value)) for key, value in sample.labels.items()}
        others = {key: value for key, value in labels.items() if key not in ("le", "quantile")}
        if others != labels_of and series:
            yield series
            series = []
        labels_of = others
        suffix = sendable(sample.name)[len(name) :] if sample.name.startswith(name) else "?"
        series.append(encoded_sample(UserSample(suffix, labels, float(sample.value))))
    if series:
        yield series


def _raw_size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


def _size(*texts: str) -> int:
    return sum(len(text.encode()) for text in texts) + _FAMILY_BYTES
