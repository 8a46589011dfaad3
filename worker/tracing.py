"""The worker's spans for a traced batch, which are children of the spans that tritonserver creates for each request.

    InferRequest                            tritonserver
     └─ MODEL                               tritonserver; the batch contains its context (`BatchTrace`)
         ├─ compute                         tritonserver
         └─ python_backend_execute          the worker, from when the proxy received the batch until it was answered
             └─ proxy_inference_callable    the call to the callable: `request.span`
                 └─ spans created by the callable

A batch has one of each per traced request. While the callable runs, the span of the first request is the current span
and so the parent of spans that name none. The spans of the other requests link to it.

OpenTelemetry is imported only if tracing is on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pytriton._protocol.lanes.lane_messages import Batch
from pytriton.proxy import telemetry
from pytriton.proxy.types import Request
from pytriton.worker.fault_reports import client_text, report

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


EXECUTE_SPAN = "python_backend_execute"
CALLABLE_SPAN = "proxy_inference_callable"


class NoSpans:
    """Stands in for `Spans` if no request of a batch is traced. Does nothing."""

    def calling(self, requests: Sequence[Request]) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return contextlib.nullcontext()

    def failed(self, text: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def __enter__(self) -> NoSpans:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


NO_SPANS = NoSpans()


class Spans:
    """The spans of one call, open until `end`. `outer` has an item for each request: its span, or None if it is not traced."""

    def __init__(self, tracer: Any, model: str, outer: list[Any]) -> None:
        self._tracer = tracer
        self._outer = outer
        self._attributes = {"triton.model_name": model, "pytriton.batch_requests": len(outer)}

    def around(self, infer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the callable so that each call runs within `calling`."""

        def traced(requests: list[Request]) -> Any:
            with self.calling(requests):
                return infer(requests)

        return traced

    @contextlib.contextmanager
    def calling(self, requests: Sequence[Request]) -> Iterator[None]:
        """Open a span for each traced request for the duration of a call to the callable."""
        from opentelemetry import trace

        inner = self._begin_inner(requests)
        if not inner:  # a merged batch that is answered alone, because another one was malformed
            yield
            return
        try:
            with trace.use_span(inner[0], record_exception=False, set_status_on_exception=False):
                yield
        except Exception as error:
            for span in inner:
                _record(span, error)
                span.set_status(_error(client_text(error)))
            raise
        finally:
            for span in inner:
                span.end()

    def failed(self, text: str) -> None:
        """Mark the spans as failed, with an error text."""
        for span in self._open():
            span.set_status(_error(text))

    def end(self) -> None:
        """End the spans, because the batch has been answered. Further calls do nothing."""
        for span in self._open():
            span.end()
        self._outer = []

    def __enter__(self) -> Spans:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.failed(client_text(error))
        self.end()

    def _open(self) -> list[Any]:
        return [span for span in self._outer if span is not None]

    def _begin_inner(self, requests: Sequence[Request]) -> list[Any]:
        from opentelemetry import trace

        if len(requests) != len(self._outer):
            return []
        inner: list[Any] = []
        for request, outer in zip(requests, self._outer):
            if outer is None:
                continue
            request.span = self._tracer.start_span(
                CALLABLE_SPAN,
                context=trace.set_span_in_context(outer),
                attributes=self._attributes,
                links=[trace.Link(inner[0].get_span_context())] if inner else None,
            )
            inner.append(request.span)
        return inner


def spans_of(model: str, batches: Sequence[Batch]) -> Spans | None:
    """Begin the spans of a call that answers these batches. Return None if no request is traced, or no span can be
    created.
    """
    for batch in batches:
        if batch.trace is not None:
            tracer = telemetry.get_telemetry_tracer() or default_tracer()
            return None if tracer is None else _begin(tracer, model, batches)
    return None


def create_tracer() -> None:
    """Create the tracer of a worker process before the first request.

    Also makes it OpenTelemetry's tracer of the whole process, so that spans which the callable creates are exported, too.
    """
    if telemetry.get_telemetry_tracer() is None:
        default_tracer(for_all=True)


def _begin(tracer: Any, model: str, batches: Sequence[Batch]) -> Spans:
    outer: list[Any] = []
    for batch in batches:
        contexts: Sequence[str] = [] if batch.trace is None else batch.trace.contexts
        for index in range(len(batch.requests)):
            parent = _context(contexts[index]) if index < len(contexts) else None
            span = None
            if parent is not None and batch.trace is not None:
                span = tracer.start_span(
                    EXECUTE_SPAN,
                    context=parent,
                    start_time=batch.trace.begun_ns,
                    attributes={"triton.model_name": model},
                )
            outer.append(span)
    return Spans(tracer, model, outer)


def _context(text: str) -> Any:
    """Convert a trace context from JSON to OpenTelemetry's form. Return None if it is empty or invalid."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not text:
        return None
    try:
        carrier = json.loads(text)
    except ValueError:
        carrier = None
    if not isinstance(carrier, dict) or "traceparent" not in carrier:
        report(f"invalid trace context: {text!r:.200}")
        return None
    return TraceContextTextMapPropagator().extract(carrier)


def _record(span: Any, error: Exception) -> None:
    try:
        span.record_exception(error)
    except Exception:  # a method of the exception itself raised
        about = {"exception.type": type(error).__name__, "exception.message": client_text(error)}
        span.add_event("exception", about)


def _error(text: str) -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR, text)


# ── the worker's own tracer ──────────────────────────────────────────────────────────────────────────
#
# OpenTelemetry's environment variables configure the export: OTEL_TRACES_EXPORTER selects the exporter (default: otlp),
# OTEL_EXPORTER_OTLP_(TRACES_)PROTOCOL its protocol (default: http/protobuf). As in OpenTelemetry's own launcher, exporters
# are found through the entry points of their packages.

#: Maximum time in seconds that an exiting worker waits for the export of its last spans.
_LAST_EXPORT_S = 2.0
#: Timeout of one export, in seconds, in a registrant's process with worker threads.
_HOSTED_TIMEOUT_S = 2
_GROUP = "opentelemetry_traces_exporter"
_PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}

_lock = threading.Lock()
_was_attempted = False  #: whether `default_tracer` has tried to create the tracer
_provider: Any = None  #: the provider that `finish` shuts down
_variables: dict[str, str] = {}


def add_variables(variables: Mapping[str, str]) -> None:
    """Configure the default tracer with these OTEL_… variables, which are not in this process's environment."""
    _variables.update({name: text for name, text in variables.items() if name.startswith("OTEL_")})


class _CannotExport(Exception):
    """Spans cannot be exported; the text says why and how to fix that."""


def default_tracer(*, for_all: bool = False) -> Any:
    """Return this process's tracer, which the first call creates. If that fails, log the failure once and return None.

    Args:
        for_all: also set its provider as OpenTelemetry's tracer provider of the whole process
    """
    global _was_attempted
    with _lock:
        if not _was_attempted:
            _was_attempted = True
            try:
                telemetry.set_default_tracer(_tracer(for_all))
            except _CannotExport as reason:
                report(f"tracing is on, but spans cannot be exported: {reason}")
    return telemetry.get_telemetry_tracer()


def finish() -> None:
    """Export the remaining spans within `_LAST_EXPORT_S`."""
    if _provider is None:
        return
    # In a thread, because an exporter retries an unresponsive collector for 6 to 10 s (seen in OpenTelemetry 1.45).
    last = threading.Thread(target=_provider.shutdown, daemon=True)
    last.start()
    last.join(_LAST_EXPORT_S)


def _tracer(for_all: bool) -> Any:
    global _provider
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _CannotExport(
            f"{error}. Install it into this environment: "
            f"{sys.executable} -m pip install {_PACKAGES}"
        ) from error
    present = trace.get_tracer_provider()
    if not isinstance(present, trace.ProxyTracerProvider):
        return present.get_tracer("pytriton")  # the user's own
    exporter = _exporter({} if for_all else _hosted_arguments())
    if exporter is None:
        return None
    resource = Resource.create(_attributes(_variables.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "pytriton"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=not for_all)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    if for_all:
        trace.set_tracer_provider(provider)
        _provider = provider
    return provider.get_tracer("pytriton")


def _hosted_arguments() -> dict[str, Any]:
    """Return the arguments of an OTLP exporter in a registrant's process: a short timeout, so that the process exits
    quickly.
    """
    arguments: dict[str, Any] = {}
    if not any(os.environ.get(f"OTEL_EXPORTER_OTLP_{name}TIMEOUT") for name in ("", "TRACES_")):
        arguments["timeout"] = _HOSTED_TIMEOUT_S
    endpoint = _variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if endpoint is not None:
        arguments["endpoint"] = endpoint
    return arguments


def _attributes(text: str) -> dict[str, Any]:
    """Parse the value of OTEL_RESOURCE_ATTRIBUTES."""
    pairs = (entry.partition("=") for entry in text.split(",") if entry)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


def _exporter(otlp_arguments: Mapping[str, Any]) -> Any:
    """Create the exporter that the environment selects. Return None if it selects "none".

    Raises:
        _CannotExport: the exporter is not installed, or its settings are invalid.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        protocol = (
            os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            or "http/protobuf"
        )
        if protocol not in _OTLP:
            raise _CannotExport(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; it must be {' or '.join(_OTLP)}"
            )
        name = _OTLP[protocol]
    arguments = otlp_arguments if name in _OTLP.values() else {}
    for point in _declared():
        if point.name == name:
            try:
                return point.load()(**arguments)
            except Exception as error:  # its type depends on the exporter
                raise _CannotExport(f"the exporter {name} cannot be created: {error}") from error
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise _CannotExport(
        f"the exporter {name} is not installed. Install it into this environment: "
        f"{sys.executable} -m pip install {package}, or choose another one with OTEL_TRACES_EXPORTER"
    )


def _declared() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # takes 20 ms, and few workers trace

    if sys.version_info >= (3, 10):
        return entry_points(group=_GROUP)
    return entry_points().get(_GROUP, [])
