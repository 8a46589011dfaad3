"""The native frontend and NVIDIA's trace alike: which requests, the context of models, spans, the trace file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.frontend.frontend_pair import Frontend, both_frontends
from support.frontend.grpc.requests import request
from support.frontend.http_client import answer
from support.frontend.requests import Ask, inputs, tensor
from support.real_daemon import eventually
from support.telemetry.collector import Collector, Span, collector
from tritonclient.grpc import service_pb2_grpc

CLIENTS_SPAN = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def frontends(
    tmp_path_factory: pytest.TempPathFactory, collected: Collector
) -> Iterator[tuple[Frontend, Frontend]]:
    options = [
        "mode=opentelemetry",
        "rate=1000",
        "level=TIMESTAMPS",
        f"opentelemetry,url={collected.url}",
        "opentelemetry,resource=service.name=tests",
        "opentelemetry,bsp_schedule_delay=100",
    ]
    folder = tmp_path_factory.mktemp("frontends")
    with both_frontends(folder, *(("trace-config", option) for option in options)) as both:
        yield both


def context_over_http(frontend: Frontend, headers: dict[str, str]) -> Any:
    """Return the trace context that a model sees and returns."""
    body = json.dumps(inputs(None, parameters={"report": True})).encode()
    said = answer(frontend, Ask("", "/v2/models/one/infer", body, headers))
    assert said.status == 200, said
    return said.content["parameters"]["was_trace"]


def context_over_grpc(frontend: Frontend, headers: dict[str, str]) -> Any:
    """Return the same over gRPC."""
    with grpc.insecure_channel(frontend.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        said = stub.ModelInfer(request(report=True), timeout=60, metadata=tuple(headers.items()))
    return said.parameters["was_trace"].string_param


@pytest.mark.parametrize("reported", [context_over_http, context_over_grpc])
def test_a_client_traces_its_request(
    frontends: tuple[Frontend, Frontend], collected: Collector, reported: Any
) -> None:
    for number, frontend in enumerate(frontends):
        if reported is context_over_grpc and frontend.name == "nvidia":
            continue  # it does not see the trace of a gRPC request now and then
        trace = f"{number + 1:016x}{id(reported) % 2**64:016x}"
        headers = {"traceparent": f"00-{trace}-{CLIENTS_SPAN}-01", "tracestate": "a=b"}
        context = json.loads(reported(frontend, headers))
        assert context["tracestate"] == "a=b"
        spans = three_spans(collected, trace)
        assert spans["InferRequest"].parent == CLIENTS_SPAN
        assert spans["one"].parent == spans["InferRequest"].id
        assert spans["compute"].parent == spans["one"].id
        assert context["traceparent"] == f"00-{trace}-{spans['one'].id}-01"
        assert spans["one"].attributes["triton.model_name"] == "one"
        assert {span.service for span in spans.values()} == {"tests"}
        assert spans["InferRequest"].start_ns <= spans["one"].start_ns <= spans["compute"].start_ns


def test_a_refused_request_is_traced(
    frontends: tuple[Frontend, Frontend], collected: Collector
) -> None:
    """The core does not release a trace that it never accepted."""
    _, native = frontends
    trace = f"{1:032x}"
    body = json.dumps(inputs(tensor(name="OTHER"))).encode()
    headers = {"traceparent": f"00-{trace}-{CLIENTS_SPAN}-01"}
    said = answer(native, Ask("", "/v2/models/one/infer", body, headers))
    assert said.status == 400, said
    eventually(
        lambda: sorted(collected.of_trace(trace)) == ["InferRequest"],
        lambda: f"spans: {collected.of_trace(trace)}",
        30,
    )


def three_spans(collected: Collector, trace: str) -> dict[str, Span]:
    """Return the spans of one request by name."""

    def found() -> bool:
        return sorted(collected.of_trace(trace)) == ["InferRequest", "compute", "one"]

    eventually(found, lambda: f"spans: {collected.of_trace(trace)}")
    return {name: spans[0] for name, spans in collected.of_trace(trace).items()}


def test_the_trace_rate_is_kept(frontends: tuple[Frontend, Frontend]) -> None:
    for frontend in frontends:
        answered = answer(frontend, Ask("", "/v2/models/one/trace/setting", b'{"trace_rate": "3"}'))
        assert answered.content["trace_rate"] == "3"
        reported = [context_over_http(frontend, {}) for _ in range(9)]
        assert [context != "(no trace)" for context in reported] == [False, False, True] * 3, (
            frontend
        )


def test_a_trace_file_has_the_expected_records(tmp_path: Path) -> None:
    options = ["triton,file={folder}/traces.json", "level=TIMESTAMPS", "level=TENSORS", "rate=1"]
    with both_frontends(tmp_path, *(("trace-config", option) for option in options)) as both:
        for frontend in both:
            body = json.dumps(inputs(None, id="7")).encode()
            assert answer(frontend, Ask("", "/v2/models/one/infer", body)).status == 200
            context_over_grpc(frontend, {})
    nvidia, native = (
        [plain(entry) for entry in json.loads((folder / "traces.json").read_text())]
        for folder in (tmp_path / "models-0", tmp_path / "models-1")
    )
    assert sorted(native, key=str) == sorted(nvidia, key=str)


def plain(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry without its times."""
    times = [stamp["name"] for stamp in entry.get("timestamps", [])]
    return {**entry, "timestamps": times} if times else entry
