"""Metrics in Prometheus' protobuf format. Prometheus scrapes native histograms only in this format.

For the messages and fields, see https://github.com/prometheus/client_model, io/prometheus/client/metrics.proto.
Histograms have two kinds of buckets: the coarse ones of the text formats, and the fine ones of the workers (native
histograms).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from pytriton._protocol.lanes.histograms import BOUNDS_S, FIRST_INDEX, SCHEMA, Exemplar
from pytriton._protocol.lanes.user_series import Values
from pytriton._protocol.messages.metrics import Histogram
from pytriton.dispatcher.telemetry.http.exposition import exposed_buckets, newest_exemplars
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES, WITH_EXEMPLARS, Scrape
from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonFamily
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, MetricConverter

CONTENT_TYPE = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
_MEDIA, _PROTO = "application/vnd.google.protobuf", "io.prometheus.client.metricfamily"
#: Type of a metric -> (MetricType, number of the field of Metric that has the value).
_TYPES = {
    "counter": (0, 3),
    "gauge": (1, 2),
    "summary": (2, 4),
    "unknown": (3, 5),
    "histogram": (4, 7),
}
_UINT64_MASK = (1 << 64) - 1
_converter = MetricConverter()


def is_preferred(accept: str) -> bool:
    """Return whether the scraper prefers this format over all others, according to its Accept header."""
    best, is_ours = 0.0, False
    for item in accept.lower().split(","):
        media, *parameters = [part.strip() for part in item.split(";")]
        named = dict(part.partition("=")[::2] for part in parameters)
        weight = _weight(named.get("q", "1"))
        ours = media == _MEDIA and named.get("proto") == _PROTO
        ours = ours and named.get("encoding") == "delimited"
        if weight > best:
            best, is_ours = weight, ours
    return is_ours


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def encode(scrape: Scrape) -> bytes:
    """Encode all metrics of a scrape."""
    families = [
        *_daemon_families(scrape),
        *_converter.each(scrape.users.families.values(), _user_family),
        *_triton_families(scrape.triton.families if scrape.triton else ()),
    ]
    return b"".join(_varint(len(family)) + family for family in families)


# ── families ─────────────────────────────────────────────────────────────────────────────────────


def _daemon_families(scrape: Scrape) -> Iterator[bytes]:
    for family in FAMILIES:
        exemplars = scrape.exemplars if family.name == WITH_EXEMPLARS else {}
        metrics = []
        for values, value in family.read(scrape):
            labels = dict(zip(family.labels, values))
            if isinstance(value, Histogram):
                body = _native(value, family.kind, exemplars.get(values, ()))
            else:
                body = _double(1, float(value))
            metrics.append((labels, body))
        if metrics:
            kind = "histogram" if family.is_histogram else family.kind
            yield _family(family.exposed_name, family.help, kind, metrics)


def _user_family(family: MergedFamily) -> bytes:
    bodies = {"histogram": _user_histogram, "summary": _user_summary}
    body_of = bodies.get(family.kind, _user_number)
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    metrics = [(dict(labels), body_of(values)) for labels, values in family.series.items()]
    return _family(name, family.help, family.kind, metrics)


def _user_number(values: Values) -> bytes:
    return _double(1, next(iter(values.values())))


def _user_histogram(values: Values) -> bytes:
    buckets = sorted((float(le), count) for (_, le), count in values.items() if le)
    return (
        _number(1, int(values["_count", ""]))
        + _double(2, values["_sum", ""])
        + b"".join(_bucket(bound, int(count)) for bound, count in buckets)
    )


def _user_summary(values: Values) -> bytes:
    quantiles = [(float(at), value) for (suffix, at), value in values.items() if not suffix]
    return (
        _number(1, int(values.get(("_count", ""), 0)))
        + _double(2, values.get(("_sum", ""), 0.0))
        + b"".join(_message(3, _double(1, at) + _double(2, value)) for at, value in quantiles)
    )


def _triton_families(families: Iterable[TritonFamily]) -> Iterator[bytes]:
    """Yield tritonserver's own counters and gauges."""
    for family in families:
        if family.kind in ("counter", "gauge") and family.samples:
            metrics = [(labels, _double(1, value)) for _, labels, value in family.samples]
            yield _family(family.name, family.help, family.kind, metrics)


def _family(
    name: str, text: str, kind: str, metrics: Iterable[tuple[Mapping[str, str], bytes]]
) -> bytes:
    number, field = _TYPES[kind]
    encoded = b"".join(
        _message(4, _labels(labels) + _message(field, body)) for labels, body in metrics
    )
    return _text(1, name) + _text(2, text) + _number(3, number) + encoded


def _labels(labels: Mapping[str, str]) -> bytes:
    return b"".join(_label(name, value) for name, value in labels.items())


@lru_cache(maxsize=4096)  # a model's name is in dozens of series
def _label(name: str, value: str) -> bytes:
    return _message(1, _text(1, name) + _text(2, value))


# ── histograms ───────────────────────────────────────────────────────────────────────────────────


def _native(observed: Histogram, kind: str, exemplars: Sequence[Exemplar]) -> bytes:
    bounds, cumulative = exposed_buckets(observed, kind)
    newest = newest_exemplars(exemplars, bounds)
    classic = b"".join(
        _bucket(float(bound), count, newest.get(number))
        for number, (bound, count) in enumerate(zip((*bounds, float("inf")), cumulative))
    )
    # Bucket i of a native histogram counts the values in (base^(i - 1), base^i]. Durations below the lowest bound count
    # as zero.
    durations = kind == "seconds"
    zero = observed.buckets[0] if durations and observed.buckets else 0
    first = FIRST_INDEX if durations else 0
    fine = [0, *observed.buckets[1:]] if durations else observed.buckets
    return (
        _number(1, observed.count)
        + _double(2, observed.sum)
        + classic
        + _number(5, _zigzag(SCHEMA if durations else 0))
        + _double(6, BOUNDS_S[0] if durations else 0.0)
        + _number(7, zero)
        + _spans(fine, first)
    )


def _spans(counts: Sequence[int], first: int) -> bytes:
    """Encode the buckets from the first to the last non-empty one, as a span and the deltas between their counts."""
    filled = [at for at, count in enumerate(counts) if count]
    if not filled:
        # An empty span shows that the histogram is native.
        return _message(12, _number(1, 0) + _number(2, 0))
    chosen = counts[filled[0] : filled[-1] + 1]
    steps = [count - before for before, count in zip([0, *chosen], chosen)]
    span = _number(1, _zigzag(first + filled[0])) + _number(2, len(chosen))
    return _message(12, span) + b"".join(_number(13, _zigzag(step)) for step in steps)


def _bucket(bound: float, count: int, exemplar: Exemplar | None = None) -> bytes:
    encoded = _number(1, count) + _double(2, bound)
    if exemplar is not None:
        seconds, rest = divmod(exemplar.at, 1)
        at = _number(1, int(seconds)) + _number(2, int(rest * 1e9))
        label = _labels({"trace_id": exemplar.trace})
        encoded += _message(3, label + _double(2, exemplar.seconds) + _message(3, at))
    return _message(3, encoded)


# ── wire format ──────────────────────────────────────────────────────────────────────────────────


_ONE_BYTE = [bytes([number]) for number in range(0x80)]


def _varint(number: int) -> bytes:
    if 0 <= number <= 0x7F:
        return _ONE_BYTE[number]
    found = bytearray()
    number &= _UINT64_MASK  # negative numbers are encoded as two's complement
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))
