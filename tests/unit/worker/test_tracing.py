"""The worker's spans, kept in memory: their contents and parents, and that there are none without tracing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.lane_pair import Lanes
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestRef,
)
from pytriton._protocol.messages import ModelSpec, WorkerEnvironment
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.telemetry import get_telemetry_tracer, set_telemetry_tracer
from pytriton.worker.model import Unrecoverable, WorkerModel
from pytriton.worker.request_log import CallLog, Part
from pytriton.worker.tracing import spans_of

ROOT = Path(__file__).parents[3]
Infer = Callable[[Any], Any]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The ended spans of a user's own tracer."""
    monkeypatch.setattr("pytriton.proxy.telemetry._set", None)
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_telemetry_tracer(provider.get_tracer("tests"))
    yield exporter
    provider.shutdown()


def model(infer: Infer) -> WorkerModel:
    config = {
        "name": "linear",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    return WorkerModel(
        ModelSpec("linear", 1, config, WorkerEnvironment("", [], "", {})), infer, CallLog()
    )


def echo(requests: Any) -> Any:
    return [{"y": request["x"]} for request in requests]


def context(number: int) -> str:
    """Return Triton's context for a request of trace `number`, whose span has that number, too."""
    return json.dumps({"traceparent": f"00-{number:032x}-{number:016x}-01"})


def answer(
    infer: Infer, lanes: Lanes, contexts: Sequence[str] | None, requests: int = 2
) -> BatchDone | BatchFailed:
    """Run one batch of that many requests through a model."""
    proxy, worker = lanes
    x = np.ones((1, 3), np.float32)
    refs = [
        RequestRef([tensors.write(proxy, "x", "FP32", x, x.dtype)], "", []) for _ in range(requests)
    ]
    traced = None if contexts is None else BatchTrace(1_000, list(contexts))
    proxy.send(Batch(1, refs, traced))
    batch = worker.receive()
    assert isinstance(batch, Batch)
    return model(infer).answer([Part(worker, batch)])[0]


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the ended spans of that name, by their trace."""
    found = [span for span in spans.get_finished_spans() if span.name == name]
    return sorted(found, key=lambda span: span.context.trace_id)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_each_traced_request_has_two_spans(lanes: Lanes, spans: InMemorySpanExporter) -> None:
    assert isinstance(answer(echo, lanes, [context(7), "", context(8)], 3), BatchDone)
    outer = named(spans, "python_backend_execute")
    inner = named(spans, "proxy_inference_callable")
    assert [span.context.trace_id for span in outer] == [7, 8]
    assert [parent_of(span) for span in outer] == [7, 8]
    assert [parent_of(span) for span in inner] == [span.context.span_id for span in outer]
    assert {span.start_time for span in outer} == {1_000}
    for span in inner:
        assert dict(span.attributes or {}) == {
            "triton.model_name": "linear",
            "pytriton.batch_requests": 3,
        }
    assert len(spans.get_finished_spans()) == 4


def test_the_first_requests_span_is_current_and_the_others_link_to_it(
    lanes: Lanes, spans: InMemorySpanExporter
) -> None:
    seen: list[Any] = []

    def infer(requests: Any) -> Any:
        seen.append((trace.get_current_span(), [request.span for request in requests]))
        return echo(requests)

    before = trace.get_current_span()
    answer(infer, lanes, [context(7), context(8)])
    (current, own) = seen[0]
    assert current is own[0]
    assert trace.get_current_span() is before
    first, second = named(spans, "proxy_inference_callable")
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert not first.links


def test_a_span_of_the_request_is_below_the_callables(
    lanes: Lanes, spans: InMemorySpanExporter
) -> None:
    def infer(requests: Any) -> Any:
        with requests[1].traced_span("look up", rows=3):
            return echo(requests)

    answer(infer, lanes, [context(7), context(8)])
    (own,) = named(spans, "look up")
    assert own.context.trace_id == 8
    assert parent_of(own) == named(spans, "proxy_inference_callable")[1].context.span_id
    assert dict(own.attributes or {}) == {"rows": 3}


def test_an_error_of_the_callable_is_recorded(lanes: Lanes, spans: InMemorySpanExporter) -> None:
    def infer(requests: Any) -> Any:
        raise ValueError("no such row")

    assert isinstance(answer(infer, lanes, [context(7)], 1), BatchFailed)
    (outer,) = named(spans, "python_backend_execute")
    (inner,) = named(spans, "proxy_inference_callable")
    assert outer.status.description == inner.status.description == "ValueError: no such row"
    assert [event.name for event in inner.events] == ["exception"]


def test_a_wrong_result_marks_only_the_outer_span(
    lanes: Lanes, spans: InMemorySpanExporter
) -> None:
    assert isinstance(answer(lambda requests: None, lanes, [context(7)], 1), BatchFailed)
    assert not named(spans, "python_backend_execute")[0].status.is_ok
    assert named(spans, "proxy_inference_callable")[0].status.is_unset


def test_spans_end_also_when_the_callable_is_unrecoverable(
    lanes: Lanes, spans: InMemorySpanExporter
) -> None:
    def infer(requests: Any) -> Any:
        raise PyTritonUnrecoverableError("the GPU is gone")

    with pytest.raises(Unrecoverable, match="the GPU is gone"):
        answer(infer, lanes, [context(7)], 1)
    (outer,) = named(spans, "python_backend_execute")
    assert "the GPU is gone" in str(outer.status.description)


def test_spans_ended_by_an_internal_error_record_it(spans: InMemorySpanExporter) -> None:
    batch = Batch(1, [RequestRef([], "", [])], BatchTrace(1_000, [context(9)]))
    with pytest.raises(ValueError, match="lost"), spans_of("m", [batch]) or pytest.fail("none"):
        raise ValueError("lost")
    (span,) = spans.get_finished_spans()
    assert span.status.description == "ValueError: lost"
    assert spans_of("m", [Batch(2, batch.requests)]) is None


def test_without_a_trace_there_are_no_spans(lanes: Lanes, spans: InMemorySpanExporter) -> None:
    seen: list[Any] = []

    def infer(requests: Any) -> Any:
        seen.extend(request.span for request in requests)
        return echo(requests)

    assert isinstance(answer(infer, lanes, None), BatchDone)
    assert seen == [None, None]
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"tracestate":"a=b"}', "7"])
def test_a_malformed_context_is_not_traced_and_reported(
    lanes: Lanes,
    spans: InMemorySpanExporter,
    capfd: pytest.CaptureFixture[str],
    text: str,
) -> None:
    assert isinstance(answer(echo, lanes, [text, context(8)]), BatchDone)
    assert [span.context.trace_id for span in named(spans, "python_backend_execute")] == [8]
    assert "invalid trace context" in capfd.readouterr().err


def test_a_tracer_is_set_once(spans: InMemorySpanExporter) -> None:
    tracer = get_telemetry_tracer()
    assert tracer is not None
    with pytest.raises(ValueError, match="Telemetry tracer is already set"):
        set_telemetry_tracer(tracer)


def test_a_workers_tracer_gives_way_to_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton.proxy.telemetry._set", None)
    default, own = (TracerProvider().get_tracer(name) for name in ("default", "own"))
    monkeypatch.setattr("pytriton.proxy.telemetry._default", default)
    assert get_telemetry_tracer() is default
    set_telemetry_tracer(own)
    assert get_telemetry_tracer() is own


# ── in a process of its own ──────────────────────────────────────────────────────────────────────

PREPARE = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from pytriton.proxy import telemetry
from pytriton.worker import tracing
tracing.create_tracer()
print(type(telemetry.get_telemetry_tracer()).__name__)
if telemetry.get_telemetry_tracer() is not None:
    from opentelemetry import trace
    print(trace.get_tracer_provider().resource.attributes["service.name"])
    with trace.get_tracer("mine").start_as_current_span("span"):
        pass
tracing.finish()
"""


def prepared(hidden: Sequence[str] = (), **variables: str) -> tuple[list[str], str]:
    """Return the output of a worker that prepares to trace, on both streams."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARE.format(hidden=list(hidden))],
        cwd=ROOT,
        env={"PATH": "/usr/bin", **variables},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.programs
def test_without_the_packages_the_log_says_how_to_install_them() -> None:
    said, log = prepared(["opentelemetry"])
    assert said == ["NoneType"]
    assert f"{sys.executable} -m pip install opentelemetry-sdk" in log


@pytest.mark.programs
def test_the_exporter_is_chosen_by_opentelemetrys_variables() -> None:
    said, log = prepared(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="shop")
    assert said[:2] == ["Tracer", "shop"]
    assert '"name": "span"' in "".join(said[2:])
    assert log == ""


@pytest.mark.programs
def test_without_an_exporter_there_is_no_tracer() -> None:
    assert prepared(OTEL_TRACES_EXPORTER="none") == (["NoneType"], "")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "opentelemetry-exporter-zipkin"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "'http/json'; it must be grpc or http/proto",
        ),
    ],
)
def test_an_unusable_exporter_is_reported_with_the_fix(
    variables: dict[str, str], text: str
) -> None:
    said, log = prepared(**variables)
    assert said == ["NoneType"]
    assert text in log


@pytest.mark.programs
def test_a_missing_collector_does_not_delay_the_workers_exit() -> None:
    """The exporter would retry for 6 s and more; the order of events shows that nothing waited."""
    said, log = prepared(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert said == ["Tracer", "pytriton"]
    assert "Failed to export" not in log  # reported when it has given up


@pytest.mark.programs
def test_nothing_of_opentelemetry_is_imported_without_tracing() -> None:
    code = (
        "import sys; import pytriton.worker.model, pytriton.worker.stream_loop\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
