"""Renders metrics in the formats of Prometheus: text, and OpenMetrics if the scraper requests it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from pytriton.dispatcher.telemetry.metrics.families import (
    FAMILIES,
    OTLP_EXPORTS,
    USERS_LEFT_OUT,
    WITH_EXEMPLARS,
    DaemonMetric,
    Sample,
)
from pytriton.dispatcher.telemetry.metrics.snapshot import Scraped
from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics, openmetrics
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, MetricConverter

#: Bucket bounds exposed for durations: powers of two.
EXPOSED_BOUNDS_S = tuple(bound for bound in BOUNDS_S[::4] if 2.0**-13 <= bound <= 2.0**8)
_converter = MetricConverter()


class _MetricSource:
    """The registry interface that `generate_latest` expects."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def expose(scraped: Scraped, accept: str) -> tuple[bytes, str]:
    """Return the response to a scraper and its content type; `accept` is the scraper's Accept header."""
    encode, content_type = choose_encoder(accept)
    triton = scraped.triton or TritonMetrics()
    openly = "openmetrics" in content_type
    families = [
        *our_families(scraped, with_exemplars=openly),
        *_converter.each(scraped.users.families.values(), _user_family),
    ]
    if openly:
        families += openmetrics(triton)
        return _encoded(encode, families), content_type
    return _encoded(encode, families) + triton.text.encode(), content_type


def our_families(scraped: Scraped, *, with_exemplars: bool) -> list[Metric]:
    """Return the daemon's own metrics."""
    found = []
    for family in FAMILIES:
        has_exemplars = with_exemplars and family.name == WITH_EXEMPLARS
        exemplars = scraped.exemplars if has_exemplars else {}
        found.append(_family(family, samples_of(family, scraped), exemplars))
    return found


def samples_of(family: DaemonMetric, scraped: Scraped) -> Iterable[Sample]:
    """Return the samples of one of our families."""
    if family is USERS_LEFT_OUT:
        return [((model,), count) for model, count in scraped.users.left_out.items()]
    if family is OTLP_EXPORTS:
        return [((outcome,), count) for outcome, count in scraped.exports.items()]
    return family.read(scraped.figures)


def _encoded(encode: Any, families: Iterable[Metric]) -> bytes:
    body: bytes = encode(_MetricSource(families))
    return body


def _family(
    family: DaemonMetric,
    samples: Iterable[Sample],
    exemplars: Mapping[tuple[str, ...], Sequence[Exemplar]],
) -> Metric:
    name, text, labels = family.full_name, family.help, list(family.labels)
    if family.kind in ("seconds", "rows"):
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, observed in samples:
            assert isinstance(observed, Histogram)
            buckets = list(_buckets(observed, family.kind, exemplars.get(values, ())))
            histogram.add_metric(list(values), buckets, observed.sum)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, text, labels=labels)
    for values, value in samples:
        metric.add_metric(list(values), _number((values, value)))
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
    """Return the sort key of a value within its series: buckets first, in ascending order."""
    (suffix, at), _ = item
    return not at, float(at or 0.0), suffix


def _number(sample: Sample) -> float:
    assert not isinstance(sample[1], Histogram)
    return float(sample[1])


def _le(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text


def _buckets(
    observed: Histogram, kind: str, exemplars: Sequence[Exemplar]
) -> Iterator[tuple[Any, ...]]:
    """Yield each exposed bucket: its bound, its cumulative count, and its newest exemplar."""
    bounds, exposed = (
        (BOUNDS_S, EXPOSED_BOUNDS_S) if kind == "seconds" else (SIZE_BOUNDS, SIZE_BOUNDS)
    )
    filled = [*observed.buckets, *[0] * (len(bounds) + 1 - len(observed.buckets))]
    newest: dict[int, Exemplar] = {}
    for one in sorted(exemplars, key=lambda one: one.at):
        newest[bisect_left(exposed, one.seconds)] = one
    for number, (bound, count) in enumerate(zip(exposed, coarse(filled, bounds, exposed))):
        yield (_le(bound), count, *_exemplar(newest.get(number)))
    yield ("+Inf", sum(filled), *_exemplar(newest.get(len(exposed))))


def _exemplar(one: Exemplar | None) -> tuple[Any, ...]:
    if one is None:
        return ()
    return (prometheus.Exemplar({"trace_id": one.trace}, one.seconds, round(one.at, 3)),)
