"""Converts metrics to data points of OpenTelemetry's SDK: the same families as in /metrics, without `_total`.

This module is imported only if metrics are exported, because the SDK is an optional dependency.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pytriton._protocol.lanes.histograms import FIRST_INDEX, SCHEMA
from pytriton._protocol.lanes.user_series import Values
from pytriton._protocol.messages.metrics import Histogram
from pytriton.dispatcher.telemetry.http.exposition import exposed_buckets
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES, Scrape
from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, MetricConverter
from pytriton.dispatcher.upgrade.snapshot import SentSeries

_SCOPE = "pytriton-daemon"
_CUMULATIVE = otel.AggregationTemporality.CUMULATIVE
_converter = MetricConverter()
#: Number of series to remember after they have disappeared.
_MAX_GONE = 10_000

_Series = tuple[str, tuple[tuple[str, str], ...]]


class StartTimes:
    """Start times of all series.

    A series that has restarted from zero, for example because its model was registered again, gets the time of the last
    export as its new start time. Otherwise receivers would see a counter go backwards. Only one thread may call
    `with_start_times`.
    """

    def __init__(self, adopted: SentSeries | None = None) -> None:
        """Initialize. `adopted` is the state of the previous version of the daemon, after an upgrade."""
        #: Last value and start time (in nanoseconds) of each series. Those that have disappeared come first.
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
        """Return metrics with the start times of their series set."""
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
    """Period covered by data points, from the daemon's start until now, in nanoseconds since the epoch."""

    start_ns: int
    now_ns: int

    def since(self, at: float) -> _Span:
        """Return the part of the period that follows `at` (seconds since the epoch), or the whole period if that starts
        after `at`.
        """
        later_ns = min(int(at * 1e9), self.now_ns)
        return self._replace(start_ns=max(self.start_ns, later_ns))


def metrics_data(
    scrape: Scrape, resource: Resource, start_times: StartTimes, *, exponential: bool
) -> otel.MetricsData:
    """Return all metrics of a scrape as data points.

    Args:
        scrape: the metrics
        resource: resource that the metrics are about
        start_times: start times of the series
        exponential: whether to send durations as exponential histograms, whose bounds grow by the fourth root of two
    """
    snapshot = scrape.snapshot
    span = _Span(int(snapshot.daemon.started_at * 1e9), int(snapshot.at * 1e9))
    metrics = [
        *_daemon_families(scrape, span, exponential=exponential),
        *_user_families(scrape.users.families.values(), span),
        *_triton_families(scrape.triton or TritonMetrics(), span),
    ]
    scope = InstrumentationScope(_SCOPE, snapshot.daemon.version)
    dated = start_times.with_start_times(metrics, span.now_ns)
    return otel.MetricsData(
        [otel.ResourceMetrics(resource, [otel.ScopeMetrics(scope, dated, "")], "")]
    )


def _daemon_families(scrape: Scrape, whole: _Span, *, exponential: bool) -> Iterator[otel.Metric]:
    for family in FAMILIES:
        span = whole if family.outlives_upgrades else whole.since(scrape.since)
        numbers: list[Any] = []
        histograms: list[Any] = []
        for values, value in family.read(scrape):
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
    bounds, cumulative = exposed_buckets(observed, kind)
    return _histogram(labels, list(map(float, bounds)), cumulative, observed.sum, span)


def _histogram(
    labels: Mapping[str, str],
    bounds: Sequence[float],
    below: Sequence[float],
    total: float,
    span: _Span,
) -> otel.HistogramDataPoint:
    """Return a histogram's point. `below` contains the cumulative count at each bound, followed by the total."""
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
    """Return an exponential histogram's point. The workers' buckets are those of OpenTelemetry's scale 2.

    Values below the first bound count in the bucket below it; values above the last bound, in the one above it.
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


def _user_families(families: Iterable[MergedFamily], span: _Span) -> Iterator[otel.Metric]:
    for metrics in _converter.each(families, lambda family: list(_user_family(family, span))):
        yield from metrics


def _user_family(family: MergedFamily, span: _Span) -> Iterator[otel.Metric]:
    series = [(dict(labels), values) for labels, values in family.series.items()]
    if family.since:  # otherwise a series that has restarted would go backwards
        span = span.since(family.since)
    if family.kind == "histogram":
        points = [_user_histogram(labels, values, span) for labels, values in series]
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


def _user_histogram(
    labels: Mapping[str, str], values: Values, span: _Span
) -> otel.HistogramDataPoint:
    buckets = sorted((float(le), count) for (suffix, le), count in values.items() if le)
    finite = [bound for bound, _ in buckets if bound != float("inf")]
    below = [count for _, count in buckets]
    return _histogram(labels, finite, below, values["_sum", ""], span)


def _summary(
    family: MergedFamily, series: Sequence[tuple[dict[str, str], Values]], span: _Span
) -> Iterator[otel.Metric]:
    """Yield each part of a summary as a separate metric, because the SDK's exporter does not support summaries."""
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


def _triton_families(triton: TritonMetrics, span: _Span) -> Iterator[otel.Metric]:
    """Yield tritonserver's own counters and gauges. Their period starts when its process starts."""
    if triton.since is None:
        return
    span = span.since(triton.since)
    for family in triton.families:
        numbers = [_number(labels, value, span) for _, labels, value in family.samples]
        if not numbers:
            continue
        if family.kind == "counter":
            name = family.name.removesuffix("_total")
            yield otel.Metric(name, family.help, "", _sum(numbers))
        elif family.kind == "gauge":
            yield otel.Metric(family.name, family.help, "", otel.Gauge(numbers))
