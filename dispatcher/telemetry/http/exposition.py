"""Metrics in Prometheus' text format, and in OpenMetrics if the scraper requests it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import core as prometheus
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from pytriton._protocol.lanes.histograms import BOUNDS_S, SIZE_BOUNDS, Exemplar, coarse
from pytriton._protocol.messages.metrics import Histogram
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import (
    FAMILIES,
    WITH_EXEMPLARS,
    DaemonMetric,
    Scrape,
)
from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics, openmetrics
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, MetricConverter

#: Bucket bounds to expose for durations: powers of two.
EXPOSED_BOUNDS_S = tuple(bound for bound in BOUNDS_S[::4] if 2.0**-13 <= bound <= 2.0**8)
_converter = MetricConverter()


class _MetricSource:
    """Adapter that provides the registry interface expected by `generate_latest`."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def expose(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """Return the response to a scraper, and its content type.

    Args:
        scrape: the metrics
        accept: Accept header of the request
    """
    encode, content_type = choose_encoder(accept)
    triton = scrape.triton or TritonMetrics()
    is_openmetrics = "openmetrics" in content_type
    families = [
        *(_daemon_family(family, scrape, with_exemplars=is_openmetrics) for family in FAMILIES),
        *_converter.each(scrape.users.families.values(), _user_family),
    ]
    if is_openmetrics:
        families += openmetrics(triton)
    body: bytes = encode(_MetricSource(families))
    return body if is_openmetrics else body + triton.text.encode(), content_type


def _daemon_family(family: DaemonMetric, scrape: Scrape, *, with_exemplars: bool) -> Metric:
    name, text, labels = family.full_name, family.help, list(family.labels)
    if family.is_histogram:
        has_exemplars = with_exemplars and family.name == WITH_EXEMPLARS
        exemplars = scrape.exemplars if has_exemplars else {}
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, observed in family.read(scrape):
            assert isinstance(observed, Histogram)
            buckets = list(_buckets(observed, family.kind, exemplars.get(values, ())))
            histogram.add_metric(list(values), buckets, observed.sum)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, text, labels=labels)
    for values, value in family.read(scrape):
        assert not isinstance(value, Histogram)
        metric.add_metric(list(values), float(value))
    return metric


def _user_family(family: MergedFamily) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    bound = {"histogram": "le", "summary": "quantile"}.get(family.kind, "")
    for labels, values in family.series.items():
        for (suffix, at), value in sorted(values.items(), key=_place):
            all_labels = dict(labels, **{bound: at}) if at else dict(labels)
            metric.add_sample(f"{family.name}{suffix}", all_labels, value)
    return metric


def _place(item: tuple[tuple[str, str], float]) -> tuple[bool, float, str]:
    """Return the sort key of a value within its series: buckets first, in ascending order of their bounds."""
    (suffix, at), _ = item
    return not at, float(at or 0.0), suffix


def exposed_buckets(observed: Histogram, kind: str) -> tuple[Sequence[float], list[int]]:
    """Return the bounds to expose, and the cumulative counts at those bounds, followed by the total count."""
    bounds, exposed = (
        (BOUNDS_S, EXPOSED_BOUNDS_S) if kind == "seconds" else (SIZE_BOUNDS, SIZE_BOUNDS)
    )
    padded = [*observed.buckets, *[0] * (len(bounds) + 1 - len(observed.buckets))]
    return exposed, [*coarse(padded, bounds, exposed), observed.count]


def newest_exemplars(exemplars: Iterable[Exemplar], bounds: Sequence[float]) -> dict[int, Exemplar]:
    """Return the newest exemplar of each bucket, by index of the bucket."""
    oldest_first = sorted(exemplars, key=lambda one: one.at)
    return {bisect_left(bounds, one.seconds): one for one in oldest_first}


def _buckets(
    observed: Histogram, kind: str, exemplars: Sequence[Exemplar]
) -> Iterator[tuple[Any, ...]]:
    """Yield the bound, the cumulative count and the newest exemplar of each bucket to expose."""
    bounds, cumulative = exposed_buckets(observed, kind)
    newest = newest_exemplars(exemplars, bounds)
    for number, (bound, count) in enumerate(zip((*bounds, float("inf")), cumulative)):
        le: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
        yield (le, count, *_exemplar(newest.get(number)))


def _exemplar(one: Exemplar | None) -> tuple[Any, ...]:
    if one is None:
        return ()
    return (prometheus.Exemplar({"trace_id": one.trace}, one.seconds, round(one.at, 3)),)
