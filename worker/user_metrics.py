"""The callable's own metrics (`prometheus_client`), written into the gauge each second for the daemon's /metrics.

A thread looks at the default registry while the callable runs: nothing is added to a call. Where `prometheus_client`
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

from pytriton._protocol.errors import sendable
from pytriton._protocol.lanes.user_metrics import (
    MOST_BYTES,
    MOST_VALUES,
    UserFamily,
    UserMetrics,
    UserMetricsPages,
    UserSample,
    encoded,
    encoded_sample,
)
from pytriton.worker.fault_reports import report, report_error

_LIBRARY = "prometheus_client"
_PERIOD_S = 1.0
#: A look takes one part of the time in so many at most.
_SHARE = 100
#: How long the end of the worker waits for the last look.
_LAST_S = 1.0
#: What the library itself says of every process. The daemon tells that of all workers.
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
#: What Prometheus' text format makes of other kinds.
_KINDS = {"info": "gauge", "stateset": "gauge", "untyped": "unknown"}
#: Bytes of a family besides its texts and samples.
_FAMILY_BYTES = 40
_LONGEST_HELP = 1_000


class UserMetricsThread:
    """Keeps what the registry holds in the gauge's pages, from construction until `close`."""

    def __init__(self, pages: UserMetricsPages) -> None:
        self._pages = pages
        self._last = b""
        self._told_fault = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pytriton metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write a last time, and end."""
        self._end.set()
        self._thread.join(_LAST_S)

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
            return  # it has not been imported, or is being imported
        try:
            message = encoded(collected(registry.collect()))
        except Exception as error:  # of a collector of the user's own
            if not self._told_fault:
                self._told_fault = True
                report_error(
                    error, "its metrics cannot be collected: /metrics shows what they were"
                )
            return
        if message != self._last:
            self._last = message
            if not self._pages.write(message):
                report("its metrics have no room")  # `collected` sees to it that they have


def watch(pages: UserMetricsPages | None) -> UserMetricsThread | None:
    """Return the thread that keeps pages up to date; None where there can be nothing in them."""
    if pages is None or not _can_be_imported():
        return None
    try:
        return UserMetricsThread(pages)
    except RuntimeError as error:  # of a model whose limits let it have no more threads
        report(f"metrics of its own are not told: {error}")
        return None


def _can_be_imported() -> bool:
    if _LIBRARY in sys.modules:
        return True
    try:
        return importlib.util.find_spec(_LIBRARY) is not None
    except (ImportError, ValueError):  # of an importer of the user's own
        return False


def collected(metrics: Iterable[Any]) -> UserMetrics:
    """Return as much of the registry's metrics as has room, and how many values have not."""
    room = _Room()
    families = []
    for metric in metrics:
        if metric.name in _BY_ITSELF:
            continue
        kind = _KINDS.get(metric.type, metric.type)
        name = sendable(f"{metric.name}_info" if metric.type == "info" else metric.name)
        text = sendable(metric.documentation[:_LONGEST_HELP])
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
    """The room that a page still has."""

    def __init__(self) -> None:
        self.left_out = 0
        self._values = MOST_VALUES
        self._bytes = MOST_BYTES - 64

    def take(self, nbytes: int, values: int = 0) -> bool:
        """Return whether so much had room; it has been taken then."""
        if nbytes > self._bytes or values > self._values:
            return False
        self._bytes -= nbytes
        self._values -= values
        return True


def _series(values: Iterable[Any], name: str) -> Iterator[list[msgspec.Raw]]:
    """Yield the samples of each series: a histogram or summary has several, which follow each other."""
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
