"""Exports the metrics by OTLP if OpenTelemetry's variables name a collector.

A thread takes the same snapshot as a scrape and sends it, without blocking the daemon. Snapshots that the collector
rejects are dropped and counted; since counters are cumulative, the next one contains them again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pytriton._protocol.lanes.histograms import BOUNDS_S, FIRST_INDEX, SCHEMA, SIZE_BOUNDS, coarse
from pytriton._protocol.lanes.user_series import Values
from pytriton._protocol.messages.metrics import Histogram
from pytriton.dispatcher.runtime.upgrade_snapshot import SentSeries
from pytriton.dispatcher.telemetry.http.exposition import EXPOSED_BOUNDS_S, samples_of
from pytriton.dispatcher.telemetry.metrics.families import FAMILIES
from pytriton.dispatcher.telemetry.metrics.snapshot import Scraped
from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, MetricConverter

_log = structlog.get_logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HISTOGRAMS = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_EVERY_MS, _MIN_INTERVAL_MS, _DIGITS = 60_000, 100, 9
#: Timeout for a snapshot in the dispatcher's loop, and how long a stop waits for the thread.
_SNAPSHOT_S, _STOP_S = 5.0, 1.0
#: Total time limit of an export: the exporter's own timeout restarts with every byte of the answer.
_WHOLE_S = 60.0
_MAX_REASON_LENGTH = 300


class OtlpExport:
    """Sends the scraped metrics periodically.

    Args:
        scrape: returns them; called in the dispatcher's loop
        environ: contains OpenTelemetry's variables

    Attributes:
        outcomes: number of exports by outcome: "sent" and "dropped".
    """

    def __init__(
        self,
        scrape: Callable[[], Coroutine[Any, Any, Scraped]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._scrape = scrape
        self._environ = environ
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._exporter: Any = None
        self._beginnings: Any = None
        self._failing = False
        #: An export that exceeded its time limit; no other one starts until it ends.
        self._late: threading.Thread | None = None

    def open(self, adopted: SentSeries | None = None) -> None:
        """Start sending if a collector is configured. Call it in the dispatcher's loop.

        `adopted`: state of the version that was upgraded from.
        """
        if not wanted(self._environ):
            return
        protocol = next((self._environ[one] for one in _PROTOCOLS if self._environ.get(one)), "")
        if protocol not in ("", "http/protobuf"):
            _log.warning("metrics are not sent: only http/protobuf is supported", protocol=protocol)
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            from pytriton.dispatcher.telemetry.http import otlp
        except ImportError as error:
            install = f"{sys.executable} -m pip install opentelemetry-exporter-otlp-proto-http"
            _log.warning("metrics cannot be sent by OTLP", reason=str(error), install=install)
            return
        self._reasons = _Reasons()
        self._points = otlp
        self._beginnings = otlp.Beginnings(adopted)
        self._exporter = OTLPMetricExporter()
        self._resource = _resource()
        self._exponential = self._environ.get(_HISTOGRAMS, "").startswith("base2_exponential")
        self._loop = asyncio.get_running_loop()
        self.outcomes.update(sent=0, dropped=0)
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def hand_over(self) -> SentSeries | None:
        """Return the state for the next version of the daemon; None if nothing is sent."""
        return None if self._beginnings is None else self._beginnings.hand_over()

    async def close(self) -> None:
        """Stop sending and abort an export in progress."""
        self._ended.set()
        if self._thread is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._exporter.shutdown)
            await loop.run_in_executor(None, self._thread.join, _STOP_S)

    def _run(self) -> None:
        while not self._ended.wait(_interval_ms(self._environ) / 1e3):
            self._note(self._send())

    def _send(self) -> str:
        """Send a snapshot; return the error, or "" on success."""
        asked = asyncio.run_coroutine_threadsafe(self._scrape(), self._loop)
        try:
            scraped = asked.result(_SNAPSHOT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return "the dispatcher is busy"
        except Exception as error:  # any error of the snapshot: the next one may succeed
            return f"cannot take a snapshot: {_text(error)}"
        try:
            data = self._points.metrics_data(
                scraped, self._resource, self._beginnings, exponential=self._exponential
            )
        except Exception as error:  # an invalid value
            return f"the snapshot cannot be sent: {_text(error)}"
        return self._export(data)

    def _export(self, data: Any) -> str:
        """Export data within the time limit; return the error, or "" on success."""
        if self._late is not None and self._late.is_alive():
            return "the collector has not yet answered an earlier export"
        said = [f"the collector did not answer within {_WHOLE_S:g} s"]

        def export() -> None:
            try:
                taken = self._exporter.export(data).name == "SUCCESS"
                said[0] = (
                    "" if taken else self._reasons.last or "the collector rejected the snapshot"
                )
            except Exception as error:  # any error of the library: it must not end the thread
                said[0] = f"the snapshot cannot be sent: {_text(error)}"

        exporting = threading.Thread(target=export, name="otlp export", daemon=True)
        try:
            exporting.start()
        except RuntimeError as error:  # no more threads can be started now
            return f"the snapshot cannot be sent: {_text(error)}"
        self._late = exporting
        exporting.join(_WHOLE_S)
        return said[0]

    def _note(self, reason: str) -> None:
        self.outcomes["dropped" if reason else "sent"] += 1
        if reason and not self._failing and not self._ended.is_set():
            _log.warning("metrics could not be sent by OTLP", reason=reason)
        elif self._failing and not reason:
            _log.info("OTLP export works again")
        self._failing = bool(reason)


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables name a metrics collector and do not disable it."""
    exporters = environ.get("OTEL_METRICS_EXPORTER") or "otlp"
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return any(environ.get(one) for one in _ENDPOINTS) and "otlp" in exporters and not off


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_LENGTH]


def _interval_ms(environ: Mapping[str, str]) -> float:
    text = environ.get(_INTERVAL, "")
    # Longer numbers would exceed the longest possible wait.
    known = text.isdecimal() and len(text) <= _DIGITS
    return max(_MIN_INTERVAL_MS, int(text)) if known else _EVERY_MS


def _resource() -> Any:
    """Return the resource attributes; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override ours."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    host = socket.gethostname()
    ours = {
        "service.name": "pytriton-daemon",
        "service.instance.id": f"{host}:{os.getpid()}",
        "host.name": host,
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


class _Reasons(logging.Handler):
    """Captures the exporter's log, which contains the reason of a rejection, and keeps it out of other logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message."""
        self.last = record.getMessage()[:_MAX_REASON_LENGTH]


# ── Converts metrics to data points of OpenTelemetry's SDK: the same families as /metrics, without `_total` ──

_SCOPE = "pytriton-daemon"
_CUMULATIVE = otel.AggregationTemporality.CUMULATIVE
_converter = MetricConverter()
#: Number of series remembered after they have disappeared.
_MAX_GONE = 10_000

_Series = tuple[str, tuple[tuple[str, str], ...]]


class Beginnings:
    """Tracks the start time of each series.

    A series that restarts from zero, such as that of a model that was registered again, gets the time of the last
    export as its start. With the old start time, a receiver would see a counter that runs backwards. Only one thread
    calls `settled`.
    """

    def __init__(self, adopted: SentSeries | None = None) -> None:
        """Initialize; `adopted` is the state of the version that was upgraded from."""
        #: Last value and start time (nanoseconds) of each series; those that have disappeared come first.
        self._sent: dict[_Series, tuple[float, int]] = {}
        self._sent_at_ns = 0
        self._lock = threading.Lock()
        if adopted is not None:
            self._sent_at_ns, series = adopted
            self._sent = {
                (name, labels): (counted, begun_ns) for name, labels, counted, begun_ns in series
            }

    def hand_over(self) -> SentSeries:
        """Return the state for the next version of the daemon. Thread-safe."""
        with self._lock:
            return self._sent_at_ns, [(*key, *sent) for key, sent in self._sent.items()]

    def with_start_times(self, metrics: Sequence[otel.Metric], now_ns: int) -> list[otel.Metric]:
        """Return the metrics with the start times of their series."""
        with self._lock:
            found = [self._metric(metric) for metric in metrics]
            present = sum(len(metric.data.data_points) for metric in found)
            while len(self._sent) > present + _MAX_GONE:
                del self._sent[next(iter(self._sent))]
            self._sent_at_ns = now_ns
        return found

    def _metric(self, metric: otel.Metric) -> otel.Metric:
        data: Any = metric.data
        counts = isinstance(data, (otel.Histogram, otel.ExponentialHistogram)) or (
            isinstance(data, otel.Sum) and data.is_monotonic
        )
        if not counts:
            return metric
        points = [self._point(metric.name, point) for point in data.data_points]
        return replace(metric, data=replace(data, data_points=points))

    def _point(self, name: str, point: Any) -> Any:
        key = name, tuple(sorted(point.attributes.items()))
        count = point.value if isinstance(point, otel.NumberDataPoint) else point.count
        start_ns = point.start_time_unix_nano
        counted, begun_ns = self._sent.pop(key, (0, 0))
        begun_ns = max(start_ns, begun_ns if count >= counted else self._sent_at_ns)
        self._sent[key] = count, begun_ns
        return point if begun_ns == start_ns else replace(point, start_time_unix_nano=begun_ns)


class _Span(NamedTuple):
    """The time that points cover: from the daemon's start until now, in nanoseconds since the epoch."""

    start_ns: int
    now_ns: int

    def since(self, at: float) -> _Span:
        """Return the part since a time (seconds since the epoch), if that is later than the start."""
        later_ns = min(int(at * 1e9), self.now_ns)
        return self._replace(start_ns=max(self.start_ns, later_ns))


def metrics_data(
    scraped: Scraped, resource: Resource, beginnings: Beginnings, *, exponential: bool
) -> otel.MetricsData:
    """Return all scraped metrics as data points.

    Args:
        resource: attributes of the source
        beginnings: start times of the series in earlier exports
        exponential: send durations with fine buckets whose bounds grow by the fourth root of two
    """
    figures = scraped.figures
    span = _Span(int(figures.daemon.started_at * 1e9), int(figures.at * 1e9))
    metrics = [
        *_ours(scraped, span, exponential=exponential),
        *_users(scraped.users.families.values(), span),
        *_of_triton(scraped.triton or TritonMetrics(), span),
    ]
    scope = InstrumentationScope(_SCOPE, figures.daemon.version)
    dated = beginnings.with_start_times(metrics, span.now_ns)
    return otel.MetricsData(
        [otel.ResourceMetrics(resource, [otel.ScopeMetrics(scope, dated, "")], "")]
    )


def _ours(scraped: Scraped, whole: _Span, *, exponential: bool) -> Iterator[otel.Metric]:
    for family in FAMILIES:
        span = whole if family.outlives_upgrades else whole.since(scraped.since)
        numbers: list[Any] = []
        histograms: list[Any] = []
        for values, value in samples_of(family, scraped):
            labels = dict(zip(family.labels, values))
            if not isinstance(value, Histogram):
                numbers.append(_number(labels, value, span))
            elif exponential and family.kind == "seconds":
                histograms.append(_exponential(labels, value, span))
            else:
                histograms.append(_explicit(labels, value, family.kind, span))
        if histograms and exponential and family.kind == "seconds":
            data: Any = otel.ExponentialHistogram(histograms, _CUMULATIVE)
        elif histograms:
            data = otel.Histogram(histograms, _CUMULATIVE)
        elif numbers:
            data = _sum(numbers) if family.kind == "counter" else otel.Gauge(numbers)
        else:
            continue
        yield otel.Metric(family.full_name, family.help, "", data)


def _number(labels: Mapping[str, str], value: float, span: _Span) -> otel.NumberDataPoint:
    return otel.NumberDataPoint(dict(labels), span.start_ns, span.now_ns, float(value))


def _sum(points: Sequence[otel.NumberDataPoint], *, monotonic: bool = True) -> otel.Sum:
    return otel.Sum(points, _CUMULATIVE, monotonic)


def _explicit(labels: Mapping[str, str], observed: Histogram, kind: str, span: _Span) -> Any:
    bounds, exposed = (
        (BOUNDS_S, EXPOSED_BOUNDS_S) if kind == "seconds" else (SIZE_BOUNDS, SIZE_BOUNDS)
    )
    filled = [*observed.buckets, *[0] * (len(bounds) + 1 - len(observed.buckets))]
    below = [*coarse(filled, bounds, exposed), sum(filled)]
    return _histogram(labels, list(map(float, exposed)), below, observed.sum, span)


def _histogram(
    labels: Mapping[str, str],
    bounds: Sequence[float],
    below: Sequence[float],
    total: float,
    span: _Span,
) -> otel.HistogramDataPoint:
    """Return a point; `below` has the cumulative count at each bound, then the total."""
    counts = [int(upper - lower) for lower, upper in zip([0, *below], below)]
    return otel.HistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.now_ns,
        count=int(below[-1]),
        sum=total,
        bucket_counts=counts,
        explicit_bounds=bounds,
        min=None,  # type: ignore[arg-type]  # unknown
        max=None,  # type: ignore[arg-type]
    )


def _exponential(labels: Mapping[str, str], observed: Histogram, span: _Span) -> Any:
    """Return a point with the workers' buckets, which are those of OpenTelemetry's scale 2.

    Values up to the first bound count in the bucket below it, those above the last bound in the one above it.
    """
    buckets = observed.buckets
    first = next((at for at, count in enumerate(buckets) if count), 0)
    return otel.ExponentialHistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.now_ns,
        count=observed.count,
        sum=observed.sum,
        scale=SCHEMA,
        zero_count=0,
        positive=otel.Buckets(FIRST_INDEX - 1 + first, buckets[first:]),
        negative=otel.Buckets(0, []),
        flags=0,
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


# ── metrics of callables and tritonserver ────────────────────────────────────────────────────────


def _users(families: Iterable[MergedFamily], span: _Span) -> Iterator[otel.Metric]:
    for metrics in _converter.each(families, lambda family: list(_users_family(family, span))):
        yield from metrics


def _users_family(family: MergedFamily, span: _Span) -> Iterator[otel.Metric]:
    series = [(dict(labels), values) for labels, values in family.series.items()]
    if family.since:  # a series that restarted would otherwise seem to count backwards
        span = span.since(family.since)
    if family.kind == "histogram":
        points = [_of_user(labels, values, span) for labels, values in series]
        data: Any = otel.Histogram(points, _CUMULATIVE)
        yield otel.Metric(family.name, family.help, "", data)
    elif family.kind == "summary":
        yield from _summary(family, series, span)
    else:
        numbers = [
            _number(labels, value, span) for labels, values in series for value in values.values()
        ]
        data = _sum(numbers) if family.kind == "counter" else otel.Gauge(numbers)
        yield otel.Metric(family.name, family.help, "", data)


def _of_user(labels: Mapping[str, str], values: Values, span: _Span) -> otel.HistogramDataPoint:
    buckets = sorted((float(le), count) for (suffix, le), count in values.items() if le)
    finite = [bound for bound, _ in buckets if bound != float("inf")]
    below = [count for _, count in buckets]
    return _histogram(labels, finite, below, values["_sum", ""], span)


def _summary(
    family: MergedFamily, series: Sequence[tuple[dict[str, str], Values]], span: _Span
) -> Iterator[otel.Metric]:
    """Yield the parts of a summary as separate metrics: the SDK's exporter does not support summaries."""
    for suffix in ("_count", "_sum"):
        numbers = [
            _number(labels, values[suffix, ""], span)
            for labels, values in series
            if (suffix, "") in values
        ]
        if numbers:
            data = _sum(numbers, monotonic=suffix == "_count")
            yield otel.Metric(f"{family.name}{suffix}", family.help, "", data)
    quantiles = [
        _number({**labels, "quantile": at}, value, span)
        for labels, values in series
        for (suffix, at), value in values.items()
        if not suffix
    ]
    if quantiles:
        yield otel.Metric(family.name, family.help, "", otel.Gauge(quantiles))


def _of_triton(triton: TritonMetrics, span: _Span) -> Iterator[otel.Metric]:
    """Yield tritonserver's counters and gauges, starting with its process."""
    if triton.since is None:
        return
    span = span.since(triton.since)
    for family in triton.families:
        numbers = [
            _number(sample.labels, sample.value, span)
            for sample in family.samples
            if not sample.name.endswith(("_bucket", "_created"))
        ]
        if numbers and family.type in ("counter", "gauge"):
            data: Any = _sum(numbers) if family.type == "counter" else otel.Gauge(numbers)
            yield otel.Metric(family.name, family.documentation, "", data)
