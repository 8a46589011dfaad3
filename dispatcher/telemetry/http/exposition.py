"""Metrics in Prometheus' text format, and in OpenMetrics if the scraper requests it.

A page has 12 KB for each loaded model, so the lines of the daemon's own metrics are formatted here, which takes a third
of the time that the library takes. The library encodes the metrics of callables. tritonserver's text is passed on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric
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
from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, MetricConverter

#: Bucket bounds to expose for durations: powers of two.
EXPOSED_BOUNDS_S = tuple(bound for bound in BOUNDS_S[::4] if 2.0**-13 <= bound <= 2.0**8)
#: The bounds as text, by kind of histogram.
_LE: dict[str, tuple[str, ...]] = {
    kind: tuple(map(floatToGoString, (*bounds, float("inf"))))
    for kind, bounds in (("seconds", EXPOSED_BOUNDS_S), ("rows", SIZE_BOUNDS))
}
#: The end of an OpenMetrics page.
_END = b"# EOF\n"
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
    ours = "".join(_daemon_lines(scrape, is_openmetrics=is_openmetrics))
    users = _converter.each(scrape.users.families.values(), _user_family)
    theirs: bytes = encode(_MetricSource(users))
    if not is_openmetrics:
        return ours.encode() + theirs + triton.text.encode(), content_type
    assert theirs.endswith(_END)
    body = ours.encode() + theirs[: -len(_END)] + triton.openmetrics.encode() + _END
    return body, content_type


def _daemon_lines(scrape: Scrape, *, is_openmetrics: bool) -> Iterator[str]:
    """Yield the lines of the daemon's own metrics. Some pieces have several lines."""
    labels = _LabelTexts()
    for family in FAMILIES:
        kind = "histogram" if family.is_histogram else family.kind
        name, exposed = family.full_name, family.exposed_name
        title = name if is_openmetrics else exposed
        yield f"# HELP {title} {family.help}\n# TYPE {title} {kind}\n"
        if not family.is_histogram:
            for values, value in family.read(scrape):
                assert not isinstance(value, Histogram)
                number = value if type(value) is int else _number(value)
                text = labels.of(family, values)
                yield f"{exposed}{{{text}}} {number}\n" if text else f"{exposed} {number}\n"
            continue
        has_exemplars = is_openmetrics and family.name == WITH_EXEMPLARS
        exemplars = scrape.exemplars if has_exemplars else {}
        for values, observed in family.read(scrape):
            assert isinstance(observed, Histogram)
            text = labels.of(family, values)
            yield from _histogram_lines(
                name, text, observed, family.kind, exemplars.get(values, ())
            )


class _LabelTexts:
    """The labels of series as text, cached because most series share the labels of a model or of an instance."""

    def __init__(self) -> None:
        self._texts: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}

    def of(self, family: DaemonMetric, values: tuple[str, ...]) -> str:
        """Return labels as text, such as `model="m",version="1"`, sorted by name as the library does; "" if there are none."""
        key = (family.labels, values)
        text = self._texts.get(key)
        if text is None:
            pairs = sorted(zip(family.labels, values))
            text = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
            self._texts[key] = text
        return text


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _histogram_lines(
    name: str, labels: str, observed: Histogram, kind: str, exemplars: Sequence[Exemplar]
) -> Iterator[str]:
    bounds, cumulative = exposed_buckets(observed, kind)
    newest = newest_exemplars(exemplars, bounds) if exemplars else {}
    comma = "," if labels else ""
    for number, (le, count) in enumerate(zip(_LE[kind], cumulative)):
        exemplar = newest.get(number)
        more = "" if exemplar is None else _exemplar(exemplar)
        yield f'{name}_bucket{{le="{le}"{comma}{labels}}} {count}{more}\n'
    braced = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{braced} {cumulative[-1]}\n{name}_sum{braced} {_number(observed.sum)}\n"


def _exemplar(one: Exemplar) -> str:
    return f' # {{trace_id="{_escaped(one.trace)}"}} {_number(one.seconds)} {round(one.at, 3)}'


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
    """Return the newest exemplar of each bucket, by bucket index."""
    oldest_first = sorted(exemplars, key=lambda one: one.at)
    return {bisect_left(bounds, one.seconds): one for one in oldest_first}
