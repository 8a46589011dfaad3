"""Writes the callable's own metrics (`prometheus_client`) to the stats page every second, for the daemon's /metrics.

A thread reads the default registry while the callable runs: calls have no overhead. If `prometheus_client`
cannot be imported, there is no such thread.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

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
#: Reading the registry takes at most this fraction of the time (one part in so many).
_SHARE = 100
#: How long the worker's exit waits for the last update.
_LAST_UPDATE_S = 1.0
#: The library's own process metrics. The daemon exports those of all workers.
_BY_ITSELF = frozenset(
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
#: How Prometheus' text format represents other kinds.
_KINDS = {"info": "gauge", "stateset": "gauge", "untyped": "unknown"}
#: Bytes of a family besides its texts and samples.
_FAMILY_BYTES = 40
_MAX_LEN_HELP = 1_000


class UserMetricsThread:
    """Copies the registry to the stats page, from construction until `close`."""

    def __init__(self, pages: UserMetricsPages) -> None:
        self._pages = pages
        self._last = b""
        self._fault_reported = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pytriton metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write a last time, and end the thread."""
        self._end.set()
        self._thread.join(_LAST_UPDATE_S)

    def _run(self) -> None:
        wait_s = _PERIOD_S
        while not self._end.wait(wait_s):
            began = time.monotonic()
            self._look()
            wait_s = max(_PERIOD_S, _SHARE * (time.monotonic() - began))
        self._look()

    def _look(self) -> None:
        library = sys.modules.get(_LIBRARY)
        registry = getattr(library, "REGISTRY", None)
        if registry is None:
            return  # not imported yet, or still being imported
        try:
            message = encoded(collected(registry.collect()))
        except Exception as error:  # from a custom collector
            if not self._fault_reported:
                self._fault_reported = True
                report_error(
                    error, "its metrics cannot be collected: /metrics shows the previous values"
                )
            return
        if message != self._last:
            self._last = message
            if not self._pages.write(message):
                report("its metrics do not fit")  # `collected` sees to it that they have


def export_user_metrics(pages: UserMetricsPages | None) -> UserMetricsThread | None:
    """Start and return the thread that updates the pages; None if the callable can have no metrics."""
    if pages is None or not _can_be_imported():
        return None
    try:
        return UserMetricsThread(pages)
    except RuntimeError as error:  # the model's limits allow no more threads
        report(f"its own metrics are not exported: {error}")
        return None


def _can_be_imported() -> bool:
    if _LIBRARY in sys.modules:
        return True
    try:
        return importlib.util.find_spec(_LIBRARY) is not None
    except (ImportError, ValueError):  # from a custom importer
        return False


def collected(metrics: Iterable[Any]) -> UserMetrics:
    """Return the registry's metrics as far as they fit, and the number of values that do not."""
    room = _Room()
    families = []
    for metric in metrics:
        if metric.name in _BY_ITSELF:
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


class _Room:
    """The remaining space of a page."""

    def __init__(self) -> None:
        self.left_out = 0
        self._values = MAX_VALUES
        self._bytes = MAX_BYTES - 64

    def take(self, nbytes: int, values: int = 0) -> bool:
        """Reserve space; return whether it fit."""
        if nbytes > self._bytes or values > self._values:
            return False
        self._bytes -= nbytes
        self._values -= values
        return True


def _series(values: Iterable[Any], name: str) -> Iterator[list[msgspec.Raw]]:
    """Yield the samples of each series; those of a histogram or summary are consecutive."""
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
