"""A collector of OpenTelemetry metrics over OTLP/HTTP on loopback; it keeps the last value of each series."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

Series = tuple[str, frozenset[tuple[str, str]]]


class MetricReceiver:
    """The received metrics.

    Attributes:
        url: of the collector.
        status: the status of its answers.
        may_answer: it does not answer while this event is not set.
        received: the number of requests received.
        points: the last point of each series, by name and labels.
        metrics: the last of each metric, by name.
        resource: the resource of the last request.
    """

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.received = 0
        self.points: dict[Series, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, str] = {}

    def take(self, body: bytes) -> None:
        """Store a request's metrics."""
        for sent in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resource = {one.key: one.value.string_value for one in sent.resource.attributes}
            for scope in sent.scope_metrics:
                for metric in scope.metrics:
                    self.metrics[metric.name] = metric
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        labels = {one.key: one.value.string_value for one in point.attributes}
                        self.points[metric.name, frozenset(labels.items())] = point
        self.received += 1

    def point(self, name: str, **labels: str) -> Any:
        """Return the last point of a series."""
        return self.points[name, frozenset(labels.items())]


@contextmanager
def metric_receiver() -> Iterator[MetricReceiver]:
    """Collect until the end of the block."""
    found = MetricReceiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.may_answer.wait(60)
            if found.status == 200:
                found.take(body)
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
