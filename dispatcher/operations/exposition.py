"""Figures in the formats of Prometheus: text, and OpenMetrics where the scraper asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from pytriton.dispatcher.figures.families import FAMILIES, Family, Sample
from pytriton.dispatcher.figures.triton_metrics import TritonMetrics, openmetrics
from pytriton.ipc.lanes.histograms import BOUNDS_S, SIZE_BOUNDS, coarse
from pytriton.ipc.messages.figures import Figures, Histogram

#: The bounds that are told of durations: powers of two.
_TOLD_S = tuple(bound for bound in BOUNDS_S[::4] if 2.0**-13 <= bound <= 2.0**8)


class _Source:
    """The registry that `generate_latest` takes: something to collect from."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def expose(figures: Figures, accept: str, triton: TritonMetrics) -> tuple[bytes, str]:
    """Return the answer to a scraper and its content type.

    Args:
        figures: our own
        accept: what the scraper takes
        triton: tritonserver's metrics
    """
    encode, content_type = choose_encoder(accept)
    families = [_family(family, figures) for family in FAMILIES]
    if "openmetrics" in content_type:
        families += openmetrics(triton)
        return _encoded(encode, families), content_type
    return _encoded(encode, families) + triton.text.encode(), content_type


def _encoded(encode: Any, families: Iterable[Metric]) -> bytes:
    body: bytes = encode(_Source(families))
    return body


def _family(family: Family, figures: Figures) -> Metric:
    name, text, labels = family.full_name, family.help, list(family.labels)
    if family.kind in ("seconds", "rows"):
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, observed in family.read(figures):
            assert isinstance(observed, Histogram)
            buckets = list(_buckets(observed, family.kind))
            histogram.add_metric(list(values), buckets, observed.sum)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, text, labels=labels)
    for values, value in family.read(figures):
        metric.add_metric(list(values), _number((values, value)))
    return metric


def _number(sample: Sample) -> float:
    assert not isinstance(sample[1], Histogram)
    return float(sample[1])


def _le(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text


def _buckets(observed: Histogram, kind: str) -> Iterator[tuple[str, float]]:
    bounds, told = (BOUNDS_S, _TOLD_S) if kind == "seconds" else (SIZE_BOUNDS, SIZE_BOUNDS)
    filled = [*observed.buckets, *[0] * (len(bounds) + 1 - len(observed.buckets))]
    for bound, count in zip(told, coarse(filled, bounds, told)):
        yield _le(bound), count
    yield "+Inf", sum(filled)
