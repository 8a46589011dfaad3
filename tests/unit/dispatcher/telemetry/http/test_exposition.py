"""Metrics snapshots in Prometheus' formats, and the page that lists the metrics."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Info, Summary
from prometheus_client import Histogram as UserHistogram
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from support.telemetry.scrapes import INSTANCE, merged, user_metrics

from pytriton._protocol.lanes.histograms import BOUNDS_S, DURATION_BUCKETS, Exemplar
from pytriton._protocol.messages import (
    DaemonMetrics,
    Histogram,
    InstanceMetrics,
    MetricsSnapshot,
    ModelMetrics,
    QueueMetrics,
    Work,
)
from pytriton.dispatcher.telemetry.http.exposition import expose
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES, Scrape
from pytriton.dispatcher.telemetry.metrics.triton_metrics import (
    TritonMetrics,
    fetch,
    parsed,
    waiting,
)
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedUserMetrics, Merger

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TRITON = """\
# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 7
# HELP nv_inference_request_failure Number of failed inference requests
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 2
nv_inference_request_failure{model="m",reason="OTHER",version="1"} 3
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="m",version="1"} 1500000
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 4
# HELP nv_cpu_utilization CPU utilization
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
"""

_BUCKETS = [0] * DURATION_BUCKETS
_BUCKETS[BOUNDS_S.index(2.0**-8)] = 3  # up to 2^-8 s: one of the exported bounds
_BUCKETS[BOUNDS_S.index(2.0**-8) + 1] = 2
_BUCKETS[-1] = 1


def figures(name: str = "m") -> MetricsSnapshot:
    work = Work(
        calls=6,
        failed={"callable": 2},
        busy_s=1.5,
        call_s=Histogram(300.0, _BUCKETS),
        rows_per_call=Histogram(9.0, [3, 0, 2]),
    )
    instance = InstanceMetrics(
        1, 0, state="ready", worker="w1", pid=7, starts=2, exits={"crash": 1}, work=work
    )
    model = ModelMetrics(
        name,
        1,
        "ready",
        desired=1,
        instances=[instance],
        work=Work(failed={"lost": 4}),
        queue=[QueueMetrics(1, pending=4)],
    )
    daemon = DaemonMetrics(
        "1.0", "ready", 1, 0.0, "ready", requests={"Register": {"done": 2}}, disk_free=5
    )
    return MetricsSnapshot(0.0, daemon, [model])


def scraped(
    triton: TritonMetrics | None = None, users: MergedUserMetrics | None = None, name: str = "m"
) -> Scrape:
    return Scrape(figures(name), triton, users or MergedUserMetrics())


def samples(text: str, parse: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


@pytest.fixture(params=["text", "openmetrics"])
def reported(request: pytest.FixtureRequest) -> Any:
    """Return what a scraper reads, by name and labels."""
    openmetrics = request.param == "openmetrics"
    body, content_type = expose(scraped(parsed(TRITON)), OPENMETRICS if openmetrics else "")
    assert content_type.startswith("application/openmetrics" if openmetrics else "text/plain")
    found = samples(body.decode(), parse_openmetrics if openmetrics else parse_text)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    return value


def test_counters_and_gauges(reported: Any) -> None:
    assert reported("pytriton_calls_total", **INSTANCE) == 6
    assert reported("pytriton_busy_seconds_total", **INSTANCE) == 1.5
    assert reported("pytriton_failed_requests_total", **INSTANCE, kind="callable") == 2
    assert reported("pytriton_failed_requests_total", **INSTANCE, kind="timeout") == 0
    lost = {**INSTANCE, "model_instance": ""}
    assert reported("pytriton_failed_requests_total", **lost, kind="lost") == 4
    assert reported("pytriton_worker_exits_total", **INSTANCE, reason="crash") == 1
    assert reported("pytriton_worker_exits_total", **INSTANCE, reason="hang") == 0
    assert reported("pytriton_instance_state", **INSTANCE, state="ready") == 1
    assert reported("pytriton_instance_state", **INSTANCE, state="backoff") == 0
    assert reported("pytriton_pending_requests", model="m", version="1") == 4
    assert reported("pytriton_ready_instances", model="m", version="1") == 1
    assert reported("pytriton_control_requests_total", message="Register", outcome="done") == 2
    assert reported("pytriton_state_directory_free_bytes") == 5
    assert reported("pytriton_tritonserver_up") == 1


def test_histograms(reported: Any) -> None:
    name = "pytriton_call_duration_seconds"
    assert reported(f"{name}_bucket", **INSTANCE, le="0.001953125") == 0
    assert reported(f"{name}_bucket", **INSTANCE, le="0.00390625") == 3
    assert reported(f"{name}_bucket", **INSTANCE, le="0.0078125") == 5
    assert reported(f"{name}_bucket", **INSTANCE, le="256.0") == 5
    assert (
        reported(f"{name}_bucket", **INSTANCE, le="+Inf")
        == reported(f"{name}_count", **INSTANCE)
        == 6
    )
    assert reported(f"{name}_sum", **INSTANCE) == 300.0
    rows = [
        reported("pytriton_call_rows_bucket", **INSTANCE, le=le) for le in ("1.0", "2.0", "4.0")
    ]
    assert rows == [3, 3, 5]


def test_tritonserver_s_metrics_follow_ours(reported: Any) -> None:
    assert reported("nv_cpu_utilization") == 0.5


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_tritonserver_s_metrics_keep_their_names(accept: str) -> None:
    body, _ = expose(scraped(parsed(TRITON)), accept)
    lines = body.decode().splitlines()
    start = 'nv_inference_request_success{model="m",version="1"} 7'
    assert [line for line in lines if line.startswith(start)] != []
    if accept:
        assert list(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_metrics_of_callables_have_the_labels_of_their_instance(accept: str) -> None:
    one, two = CollectorRegistry(), CollectorRegistry()
    for registry in (one, two):
        Counter("seen", "Things.", ["model"], registry=registry).labels('x"y').inc(3)
    UserHistogram("size", "Sizes.", buckets=(1, 10), registry=two).observe(5)
    Summary("took", "Times.", registry=two).observe(4)
    Info("build", "About.", registry=two).info({"commit": "abc"})
    body, _ = expose(scraped(users=merged(a=one, b=two)), accept)
    found = samples(body.decode(), parse_openmetrics if accept else parse_text)

    def value(name: str, model: str, **labels: str) -> float:
        instance = {"model": model, "version": "1", "model_instance": "0"}
        return found[name, frozenset({**instance, **labels}.items())]

    for model in "ab":
        assert value("seen_total", model, exported_model='x"y') == 3
    assert [value("size_bucket", "b", le=le) for le in ("1.0", "10.0", "+Inf")] == [0, 1, 1]
    assert (value("size_count", "b"), value("size_sum", "b")) == (1, 5)
    assert (value("took_count", "b"), value("took_sum", "b")) == (1, 4)
    assert value("build_info", "b", commit="abc") == 1


def test_metrics_that_clash_are_left_out_and_counted() -> None:
    one, two = CollectorRegistry(), CollectorRegistry()
    Counter("seen", "Things.", registry=one)
    Gauge("seen", "Another kind.", registry=two)
    Gauge("seen_total", "A name of the counter's.", registry=two)
    Gauge("fine", "Fine.", registry=two)
    users = merged(a=one, b=two)
    assert set(users.families) == {"seen", "fine"}
    assert users.omitted == {"b": 2}
    body, _ = expose(scraped(users=users), OPENMETRICS)
    found = samples(body.decode(), parse_openmetrics)
    assert found["pytriton_omitted_user_values", frozenset({("model", "b")})] == 2


def test_the_reason_for_dropping_a_metric_is_logged_once() -> None:
    registry = CollectorRegistry()
    Gauge("pytriton_x", "Of ours.", registry=registry)
    merger = Merger()
    said = user_metrics("m", registry)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert merger.merge([said, said]).omitted == {"m": 2}
    assert [(one["model"], one["metric"]) for one in logs] == [("m", "pytriton_x")]


def test_traced_calls_are_exemplars_of_their_buckets_in_openmetrics() -> None:
    near, far = "a" * 32, "b" * 32
    found = [Exemplar(0.003, "c" * 32, 5.0), Exemplar(0.0035, near, 6.0), Exemplar(500.0, far, 7.0)]
    reported = scraped()._replace(exemplars={("m", "1", "0"): found})
    body, _ = expose(reported, OPENMETRICS)
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar
    }
    assert {le: (one.labels, one.value, float(one.timestamp)) for le, one in exemplars.items()} == {
        "0.00390625": ({"trace_id": near}, 0.0035, 6.0),
        "+Inf": ({"trace_id": far}, 500.0, 7.0),
    }
    assert b"trace_id" not in expose(reported, "")[0]


def test_names_of_models_are_escaped() -> None:
    name = 'a"b\\c\n# TYPE x counter\nd {e="f"} 1'
    body, _ = expose(scraped(name=name), "")
    found = samples(body.decode(), parse_text)
    assert {dict(labels)["model"] for _, labels in found if "model" in dict(labels)} == {name}


def test_queues_are_read_from_tritonserver_s_metrics() -> None:
    assert parsed(TRITON).queues == {"m": [QueueMetrics(1, 4, 7, 5, 1.5, 0)]}
    assert waiting(TRITON) == {"m": 4}
    assert parsed("").queues == {}
    assert waiting("") == {}
    assert parsed(TRITON + "cut off {").text.startswith(TRITON)
    assert parsed(TRITON + "cut off {").queues == {}


def test_an_unreachable_tritonserver_has_no_metrics() -> None:
    assert fetch("") == ""
    assert fetch("http://127.0.0.1:1/metrics") == ""


def test_names_are_unique_and_contain_their_unit() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert family.help.endswith("."), family.name
        assert not set(family.help) & set('"\\\n'), "the help text is not escaped"
        assert not family.name.endswith("_total"), family.name
        assert (family.kind == "seconds") <= family.name.endswith("_seconds"), family.name
