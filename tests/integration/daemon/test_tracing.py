"""Tracing through a real tritonserver: from the client's trace to the spans that a callable makes."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from support.models.inference import PROTOCOLS, Inference, infer_once
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from support.telemetry.collector import Collector, Span, collector
from tritonclient.utils import InferenceServerException

from pytriton.client import DecoupledModelClient
from pytriton.client.auth import create_auth_headers
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig

ONE = np.ones((1, 3), np.float32)


#: A batch waits until it is full, however late its requests are.
GATHERING = ModelConfig(
    max_batch_size=3, batcher=DynamicBatcher(max_queue_delay_microseconds=60_000_000)
)


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def traced(collected: Collector) -> Iterator[RunningDaemon]:
    """A daemon that traces every request, and its models."""
    options = [
        "mode=opentelemetry",
        "rate=1",
        "level=TIMESTAMPS",
        f"opentelemetry,url={collected.url}",
        "opentelemetry,resource=service.name=tests",
        "opentelemetry,bsp_schedule_delay=100",
    ]
    settings = {"trace-config": options, "log-verbose": "1"}
    with RunningDaemon.start(
        tritonserver_options=settings, management_address="127.0.0.1:0"
    ) as running:
        for infer, config in (
            (nested, ModelConfig()),
            (failing, ModelConfig()),
            (merged, ModelConfig()),
            (together, GATHERING),
            (stream, ModelConfig(decoupled=True)),
            (stream_async, ModelConfig(decoupled=True)),
        ):
            running.client.register(
                infer, infer.__name__, inputs=X, outputs=Y, config=config, progress=False
            )
        yield running


def nested(requests: Any) -> Any:
    """Make a span in each possible way."""
    from opentelemetry import trace

    with trace.get_tracer("mine").start_as_current_span("by the API"):
        pass
    with requests[0].traced_span("by the request", step=1):
        pass
    with trace.use_span(requests[0].span):
        trace.get_current_span().set_attribute("seen", "yes")
    return [{"y": request["x"]} for request in requests]


def failing(requests: Any) -> Any:
    raise ValueError("not today")


@batch
def merged(x: Any) -> Any:
    return {"y": x}


@batch
def together(x: Any) -> Any:
    return {"y": x}


def stream(requests: Any) -> Any:
    from opentelemetry import trace

    for part in range(3):
        with trace.get_tracer("mine").start_as_current_span(f"part {part}"):
            yield [{"y": request["x"] + part} for request in requests]


async def stream_async(requests: Any) -> Any:
    from opentelemetry import trace

    for part in range(3):
        with trace.get_tracer("mine").start_as_current_span(f"part {part}"):
            result = [{"y": request["x"] + part} for request in requests]
        yield result


def traceparent(number: int) -> tuple[str, dict[str, str]]:
    """Return a client's trace id and its traceparent header (W3C Trace Context)."""
    trace = f"{number:032x}"
    return trace, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}


def asked(collected: Collector, number: int, ask: Callable[[dict[str, str]], None]) -> str:
    """Send a request with a client's trace; return its id.

    tritonserver (2.51) occasionally misses the trace of a gRPC request and starts its own; then the request is
    repeated.
    """
    traces: list[str] = []
    for attempt in range(1, 11):
        trace, headers = traceparent(number + attempt * 0x100)
        traces.append(trace)
        ask(headers)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for one in traces:  # that of an earlier request may only be late
                if collected.of_trace(one):
                    return one
            time.sleep(0.05)  # no event reports that another process has exported a span
    raise AssertionError(f"tritonserver saw the client's trace in none of {len(traces)} requests")


def spans_of(collected: Collector, trace: str, *names: str) -> list[Span]:
    """Return the span of each of these names once all have arrived."""

    def complete() -> list[Span] | None:
        found = collected.of_trace(trace)
        return [found[name][0] for name in names] if found.keys() >= set(names) else None

    def missing() -> str:
        return f"of {names}, there are {sorted(collected.of_trace(trace))}"

    spans: list[Span] = eventually(complete, missing)
    return spans


def _ask_nested(inference: Inference, headers: dict[str, str]) -> None:
    inference.infer("nested", {"x": ONE}, headers=headers)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_nest_from_the_client_to_the_callable(
    traced: RunningDaemon, collected: Collector, protocol: str
) -> None:
    inference = Inference(protocol, getattr(traced, protocol))
    trace = asked(
        collected,
        0x10 + PROTOCOLS.index(protocol),
        partial(_ask_nested, inference),
    )
    inference.close()
    request, model, execute, call, by_api, by_request = spans_of(
        collected, trace, "InferRequest", "nested", "python_backend_execute",
        "proxy_inference_callable", "by the API", "by the request",
    )  # fmt: skip
    assert request.parent == "00f067aa0ba902b7"
    assert [model.parent, execute.parent, call.parent] == [request.id, model.id, execute.id]
    assert by_api.parent == by_request.parent == call.id
    assert call.attributes["seen"] == "yes"
    assert call.attributes["triton.model_name"] == "nested"
    assert int(call.attributes["pytriton.batch_requests"]) == 1
    assert int(by_request.attributes["step"]) == 1
    assert {span.service for span in (request, call, by_api)} == {"tests"}
    assert execute.start_ns <= call.start_ns <= by_api.start_ns <= call.end_ns <= execute.end_ns
    assert not any(span.failed for span in (execute, call))


def test_one_model_can_export_its_spans_elsewhere(
    traced: RunningDaemon, collected: Collector
) -> None:
    trace, headers = traceparent(0x60)
    with collector() as other:
        traced.client.register(
            merged,
            "elsewhere",
            inputs=X,
            outputs=Y,
            trace_config=[f"opentelemetry,url={other.url}", "opentelemetry,bsp_schedule_delay=100"],
            progress=False,
        )
        infer_once(traced, "elsewhere", {"x": ONE}, headers=headers)
        (call,) = spans_of(other, trace, "proxy_inference_callable")
    assert call.service == "pytriton"  # the daemon's variables are for the daemon's place
    spans_of(collected, trace, "InferRequest", "elsewhere", "compute")
    assert "proxy_inference_callable" not in collected.of_trace(trace)


def test_a_callable_in_a_registrants_thread_has_spans(
    traced: RunningDaemon, collected: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own tracer provider, since this process has none."""
    for name in ("_was_attempted", "_provider", "_variables"):
        monkeypatch.setattr(f"pytriton.worker.tracing.{name}", {} if name == "_variables" else None)
    monkeypatch.setattr("pytriton.proxy.telemetry._set", None)
    monkeypatch.setattr("pytriton.proxy.telemetry._default", None)
    trace, headers = traceparent(0x70)
    settings = [
        f"opentelemetry,url={collected.url}",
        "opentelemetry,resource=service.name=a thread",
        "opentelemetry,bsp_schedule_delay=100",
    ]
    model = traced.client.register(
        merged, "hosted", X, Y, isolation="thread", trace_config=settings, progress=False
    )
    infer_once(traced, "hosted", {"x": ONE}, headers=headers)
    execute, call = spans_of(collected, trace, "python_backend_execute", "proxy_inference_callable")
    assert call.parent == execute.id
    assert call.service == "a thread"
    model.unregister()


def test_an_error_is_recorded_in_the_spans(traced: RunningDaemon, collected: Collector) -> None:
    trace, headers = traceparent(0x20)
    with pytest.raises(InferenceServerException, match="not today"):
        infer_once(traced, "failing", {"x": ONE}, headers=headers)
    spans = spans_of(collected, trace, "python_backend_execute", "proxy_inference_callable")
    assert [span.failed for span in spans] == [True, True]


def test_each_request_of_a_batch_has_spans_in_its_own_trace(
    traced: RunningDaemon, collected: Collector
) -> None:
    def send(number: int) -> str:
        trace, headers = traceparent(number)
        infer_once(traced, "together", {"x": ONE}, headers=headers)
        return trace

    with ThreadPoolExecutor(3) as pool:
        traces = list(pool.map(send, (0x30, 0x31, 0x32)))
    calls = [spans_of(collected, trace, "proxy_inference_callable")[0] for trace in traces]
    assert len({call.parent for call in calls}) == 3
    assert {int(call.attributes["pytriton.batch_requests"]) for call in calls} == {3}
    ids = {call.id for call in calls}
    assert sum(len(call.links) for call in calls) >= 1
    assert all(link in ids for call in calls for link in call.links)


@pytest.mark.parametrize("model", ["stream", "stream_async"])
def test_the_spans_of_a_stream_last_until_its_end(
    traced: RunningDaemon, collected: Collector, model: str
) -> None:
    def ask(headers: dict[str, str]) -> None:
        with DecoupledModelClient(f"grpc://{traced.grpc}", model) as client:
            assert len(list(client.infer_batch(ONE, headers=headers))) == 3

    trace = asked(collected, 0x40 + len(model), ask)
    execute, call, *parts = spans_of(
        collected,
        trace,
        "python_backend_execute",
        "proxy_inference_callable",
        "part 0",
        "part 1",
        "part 2",
    )
    assert call.parent == execute.id
    assert {part.parent for part in parts} == {call.id}
    assert call.end_ns >= parts[-1].end_ns


@pytest.mark.parametrize("model", ["nested", "stream"])
def test_a_traced_calls_duration_has_an_exemplar(
    traced: RunningDaemon, collected: Collector, model: str
) -> None:
    """An exemplar of OpenMetrics names the trace."""
    traces: list[str] = []

    def ask(headers: dict[str, str]) -> None:
        traces.append(headers["traceparent"].split("-")[1])
        if model == "stream":
            with DecoupledModelClient(f"grpc://{traced.grpc}", model) as client:
                list(client.infer_batch(ONE, headers=headers))
        else:
            inference = Inference("http", traced.http)
            _ask_nested(inference, headers)
            inference.close()

    asked(collected, 0x80 if model == "nested" else 0x81, ask)
    scrape = urllib.request.Request(
        f"{traced.client.status().management_urls[0]}/metrics",
        headers={"Accept": "application/openmetrics-text; version=1.0.0"},
    )
    exemplar = re.compile(rf'# {{trace_id="({"|".join(traces)})"}} ')

    def with_exemplar() -> list[str]:
        with urllib.request.urlopen(scrape, timeout=30) as answer:
            return [line for line in answer.read().decode().splitlines() if exemplar.search(line)]

    # The worker counts a call only after it has answered.
    buckets = eventually(with_exemplar, "the call has been counted")
    start = 'pytriton_call_duration_seconds_bucket{le="'
    assert len(buckets) <= len(traces), buckets
    assert all(line.startswith(start) and f'model="{model}"' in line for line in buckets), buckets


def test_a_request_without_a_trace_starts_one(traced: RunningDaemon, collected: Collector) -> None:
    infer_once(traced, "merged", {"x": ONE})

    def root() -> Span | None:
        """Return the only span without a parent: all others belong to a client's trace."""
        return next((span for span in list(collected.spans) if not span.parent), None)

    begun = eventually(root, "tritonserver's span")
    (call,) = spans_of(collected, begun.trace, "proxy_inference_callable")
    assert call.start_ns >= begun.start_ns


def test_no_spans_are_made_after_tracing_was_switched_off(
    traced: RunningDaemon, collected: Collector
) -> None:
    token = traced.client.access_token
    assert token is not None
    with tritonclient.http.InferenceServerClient(traced.http) as admin:
        headers = create_auth_headers(token, "http")
        admin.update_trace_settings("nested", {"trace_level": ["OFF"]}, headers=headers)
    trace, headers = traceparent(0x50)
    after, after_headers = traceparent(0x51)
    inference = Inference("http", traced.http)
    inference.infer("nested", {"x": ONE}, headers=headers)
    inference.infer("merged", {"x": ONE}, headers=after_headers)
    inference.close()
    spans_of(collected, after, "proxy_inference_callable")  # which was later
    assert collected.of_trace(trace) == {}


def test_a_verbose_log_causes_a_warning(traced: RunningDaemon) -> None:
    """Not related to tracing, but this daemon's server is verbose."""
    records = [json.loads(line) for line in traced.said().splitlines() if line.startswith("{")]
    warnings = [record["event"] for record in records if record["level"] == "warning"]
    assert "tritonserver's verbose log is on, which may slow down inference" in warnings
