"""Metrics snapshots in Prometheus' protobuf format, parsed by protobuf with the published field numbers."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.models.figures import model, snapshot
from support.telemetry.scrapes import INSTANCE, scraped

from pytriton._protocol.lanes.histograms import Exemplar
from pytriton._protocol.lanes.stats_page import Counts
from pytriton.dispatcher.telemetry.http.protobuf import encode, is_preferred
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import Scrape
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily

#: Message -> fields: number, name, type ("*": repeated).
_PROTO = {
    "LabelPair": "1 name string, 2 value string",
    "Number": "1 value double",
    "Quantile": "1 quantile double, 2 value double",
    "Summary": "1 sample_count uint64, 2 sample_sum double, 3 quantile *Quantile",
    "Timestamp": "1 seconds int64, 2 nanos int32",
    "Exemplar": "1 label *LabelPair, 2 value double, 3 timestamp Timestamp",
    "Bucket": "1 cumulative_count uint64, 2 upper_bound double, 3 exemplar Exemplar",
    "BucketSpan": "1 offset sint32, 2 length uint32",
    "Histogram": "1 sample_count uint64, 2 sample_sum double, 3 bucket *Bucket, 5 schema sint32, "
    "6 zero_threshold double, 7 zero_count uint64, 12 positive_span *BucketSpan, 13 positive_delta *sint64",
    "Metric": "1 label *LabelPair, 2 gauge Number, 3 counter Number, 4 summary Summary, 5 untyped Number, "
    "7 histogram Histogram",
    "MetricFamily": "1 name string, 2 help string, 3 type int32, 4 metric *Metric",
}


def _family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="t", syntax="proto2")
    for name, fields in _PROTO.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, called, kind = field.split()
            repeated, kind = kind.startswith("*"), kind.lstrip("*")
            added = message.field.add(name=called, number=int(number), label=3 if repeated else 1)
            if kind in _PROTO:
                added.type, added.type_name = 11, f".t.{kind}"
            else:
                added.type = getattr(added, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.MetricFamily"))


Family = _family_class()


def families(scraped: Scrape) -> dict[str, Any]:
    data, found, at = encode(scraped), {}, 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        family = Family.FromString(data[at : at + size])
        assert family.name not in found
        found[family.name] = family
        at += size
    return found


def metric(family: Any, **labels: str) -> Any:
    (found,) = [
        one for one in family.metric if {pair.name: pair.value for pair in one.label} == labels
    ]
    return found


def test_values_of_all_kinds_are_reported() -> None:
    reported = families(scraped())
    calls = reported["pytriton_calls_total"]
    assert (calls.type, metric(calls, **INSTANCE).counter.value) == (0, 50)
    assert calls.help.startswith("Calls of the callable")
    ready = reported["pytriton_ready_instances"]
    assert (ready.type, metric(ready, model="m", version="1").gauge.value) == (1, 1)
    assert metric(reported["seen_total"], **INSTANCE, colour='r"ed').counter.value == 3
    size = metric(reported["size"], **INSTANCE).histogram
    assert [(one.upper_bound, one.cumulative_count) for one in size.bucket] == [
        (1, 0), (10, 2), (float("inf"), 3)
    ]  # fmt: skip
    assert (size.sample_count, size.sample_sum) == (3, 61)
    took = metric(reported["took"], **INSTANCE).summary
    assert (took.sample_count, took.sample_sum) == (1, 4)
    nv = reported["nv_inference_request_success"]
    assert (nv.type, metric(nv, model="m", version="1").counter.value) == (0, 7)
    assert metric(reported["nv_cpu_utilization"]).gauge.value == 0.5


def natively(histogram: Any) -> dict[int, int]:
    """Return the counts of a native histogram by the number of the bucket."""
    (span,) = histogram.positive_span
    counts, count = {}, 0
    for number, step in enumerate(histogram.positive_delta, span.offset):
        count += step
        counts[number] = count
    assert len(histogram.positive_delta) == span.length
    return counts


def test_histograms_have_native_and_classic_buckets() -> None:
    figures = scraped().snapshot
    observed = figures.models[0].instances[0].work.call_s
    observed.buckets[0] = 2  # below the resolution
    observed.buckets.extend([0] * 3 + [4])
    reported = families(scraped()._replace(snapshot=figures))
    found = metric(reported["pytriton_call_duration_seconds"], **INSTANCE).histogram
    assert (found.sample_count, found.schema, found.zero_count) == (56, 2, 2)
    counts = {number: count for number, count in natively(found).items() if count}
    (five_ms, later) = sorted(counts)
    assert counts == {five_ms: 50, later: 4}
    assert 2 ** ((five_ms - 1) / 4) < 0.005 <= 2 ** (five_ms / 4)
    assert found.bucket[-1].cumulative_count == 56
    below = [one.cumulative_count for one in found.bucket]
    assert below == sorted(below)
    rows = metric(reported["pytriton_call_rows"], **INSTANCE).histogram
    assert (rows.schema, rows.sample_count) == (0, 0)
    assert [(one.offset, one.length) for one in rows.positive_span] == [(0, 0)]


def test_a_hostile_page_s_histograms_stay_cumulative() -> None:
    largest = (1 << 64) - 1
    page = [(largest,) * len(one) if isinstance(one, tuple) else largest for one in Counts()]
    figures = snapshot(1010, model("m", Counts._make(page).as_work()))
    reported = families(scraped()._replace(snapshot=figures))
    found = metric(reported["pytriton_call_duration_seconds"], **INSTANCE).histogram
    below = [one.cumulative_count for one in found.bucket]
    assert below == sorted(below)
    assert below[-1] == found.sample_count == found.zero_count + sum(natively(found).values())


@pytest.mark.parametrize("kind", ["histogram", "summary"])
def test_an_invalid_custom_metric_drops_no_others(kind: str) -> None:
    whole = scraped()
    broken = {("_count", ""): float("nan"), ("_sum", ""): 1.0}
    whole.users.families[kind] = MergedFamily(kind, kind, "", {(("a", "b"),): broken})
    with structlog.testing.capture_logs() as logs:
        reported = [families(whole) for _ in range(2)]
    assert all("seen_total" in one and "size" in one and kind not in one for one in reported)
    assert [one["metric"] for one in logs] == [kind]


def test_a_traced_call_is_an_exemplar_of_its_bucket() -> None:
    trace = "a" * 32
    reported = families(scraped(exemplars={("m", "1", "0"): [Exemplar(0.003, trace, 6.5)]}))
    found = metric(reported["pytriton_call_duration_seconds"], **INSTANCE).histogram
    (bucket,) = [one for one in found.bucket if one.HasField("exemplar")]
    assert bucket.upper_bound == 0.00390625
    (label,) = bucket.exemplar.label
    at = bucket.exemplar.timestamp
    assert (label.name, label.value, bucket.exemplar.value) == ("trace_id", trace, 0.003)
    assert (at.seconds, at.nanos) == (6, 500_000_000)


def test_a_negative_number_is_reported() -> None:
    reported = families(scraped(exemplars={("m", "1", "0"): [Exemplar(0.003, "a" * 32, -1.5)]}))
    found = metric(reported["pytriton_call_duration_seconds"], **INSTANCE).histogram
    (at,) = [one.exemplar.timestamp for one in found.bucket if one.HasField("exemplar")]
    assert (at.seconds, at.nanos) == (-2, 500_000_000)


PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        ("", False),
        ("text/plain", False),
        (f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1", True),
        (f"application/openmetrics-text;version=1.0.0;q=0.6,{PROTOBUF};q=0.5", False),
        (f"text/plain;q=0.5,{PROTOBUF};q=0.6", True),
        (PROTOBUF.replace("delimited", "text"), False),
        ("application/vnd.google.protobuf", False),
        (f"{PROTOBUF};q=x", False),
    ],
)
def test_protobuf_is_sent_to_scrapers_that_prefer_it(accept: str, preferred: bool) -> None:
    assert is_preferred(accept) is preferred
