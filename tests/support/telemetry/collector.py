"""A minimal collector of OpenTelemetry traces: OTLP over HTTP on loopback, spans in a list.

tritonserver sends JSON, OpenTelemetry's exporter for Python protobuf (OTLP specification, "OTLP/HTTP").
"""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """The part of a span that tests check."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool
    links: tuple[str, ...]


@dataclass
class Collector:
    """The spans that have arrived."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def of_trace(self, trace: str) -> dict[str, list[Span]]:
        """Return the spans of a trace by name."""
        found: dict[str, list[Span]] = {}
        for span in list(self.spans):
            if span.trace == trace:
                found.setdefault(span.name, []).append(span)
        return found


@contextmanager
def collector() -> Iterator[Collector]:
    """Collect until the end of the block."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    found = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    server.collector = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_json = "json" in self.headers["Content-Type"]
        sent = json.loads(body) if is_json else _of_protobuf(body)
        self.server.collector.spans.extend(_spans(sent))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


def _of_protobuf(body: bytes) -> Any:
    sent = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for span in _raw_spans(sent):
        for holder in (span, *span.get("links", [])):
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in holder:  # protobuf's JSON has base64 for bytes, OTLP's has hexadecimal
                    holder[name] = base64.b64decode(holder[name]).hex()
    return sent


def _raw_spans(sent: Any) -> Iterator[Any]:
    for resource in sent.get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            yield from scope.get("spans", [])


def _spans(sent: Any) -> Iterator[Span]:
    for resource in sent.get("resourceSpans", []):
        about = _attributes(resource.get("resource", {}))
        for span in _raw_spans({"resourceSpans": [resource]}):
            yield Span(
                span["name"],
                span["traceId"],
                span["spanId"],
                span.get("parentSpanId", ""),
                str(about.get("service.name", "")),
                int(span["startTimeUnixNano"]),
                int(span["endTimeUnixNano"]),
                _attributes(span),
                str(span.get("status", {}).get("code", 0)) in ("2", "STATUS_CODE_ERROR"),
                tuple(link["spanId"] for link in span.get("links", [])),
            )


def _attributes(holder: Any) -> dict[str, Any]:
    found = {}
    for entry in holder.get("attributes") or []:
        (value,) = entry["value"].values()
        found[entry["key"]] = value
    return found
