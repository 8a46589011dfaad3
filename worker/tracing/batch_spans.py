"""The worker's spans of a traced batch, below those that tritonserver creates for each of its requests.

    InferRequest                            tritonserver
     └─ MODEL                               tritonserver; its context comes with the batch (`BatchTrace`)
         ├─ compute                         tritonserver
         └─ python_backend_execute          from when the proxy received the batch until it was answered
             └─ proxy_inference_callable    the callable: `request.span`
                 └─ spans created by the callable

A batch has one of each per traced request. While the callable runs, the span of the first
request is the current one, so that spans without an explicit parent have one; the spans of the others link to it.

OpenTelemetry is not imported unless tracing is on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from pytriton._protocol.lanes.lane_messages import Batch
from pytriton.proxy import telemetry
from pytriton.proxy.types import Request
from pytriton.worker.callables import Infer
from pytriton.worker.fault_reports import client_text, report
from pytriton.worker.tracing import span_export

EXECUTE_SPAN = "python_backend_execute"
CALLABLE_SPAN = "proxy_inference_callable"


class NoSpans:
    """The spans of an untraced batch: none."""

    def calling(self, requests: Sequence[Request]) -> contextlib.AbstractContextManager[None]:
        """Do nothing around a call of the callable."""
        return contextlib.nullcontext()

    def failed(self, text: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def __enter__(self) -> NoSpans:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing."""


NO_SPANS = NoSpans()


class Spans:
    """The spans of one call, open until `end`. `outer` holds a span or None for each request, in order."""

    def __init__(self, tracer: Any, model: str, outer: list[Any]) -> None:
        self._tracer = tracer
        self._outer = outer
        self._attributes = {"triton.model_name": model, "pytriton.batch_requests": len(outer)}

    def around(self, infer: Infer) -> Infer:
        """Wrap the callable so that each call has its spans."""

        def traced(requests: list[Request]) -> Any:
            with self.calling(requests):
                return infer(requests)

        return traced

    @contextlib.contextmanager
    def calling(self, requests: Sequence[Request]) -> Iterator[None]:
        """Open a span per traced request around a call of the callable."""
        from opentelemetry import trace

        inner = self._begin_inner(requests)
        if not inner:  # part of a batch of which another part was malformed
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
        """Record that the batch is answered with an error."""
        for span in self._open():
            span.set_status(_error(text))

    def end(self) -> None:
        """End the spans: the batch is answered. Calling it again does nothing."""
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
    """Begin the spans of a call for these batches; None if none of their requests is traced."""
    for batch in batches:
        if batch.trace is not None:
            tracer = telemetry.get_telemetry_tracer() or span_export.default_tracer()
            return None if tracer is None else _begin(tracer, model, batches)
    return None


def prepare() -> None:
    """Create the tracer of a worker process in advance, so that no request has to wait for it.

    Spans that the callable creates directly with OpenTelemetry are exported the same way.
    """
    if telemetry.get_telemetry_tracer() is None:
        span_export.default_tracer(for_all=True)


def offer(variables: Mapping[str, str]) -> None:
    """Configure where a process other than a worker's own exports spans, if any are created."""
    span_export.offer(variables)


def finish() -> None:
    """Export remaining spans, within a short time limit."""
    span_export.finish()


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
    """Return OpenTelemetry's form of a context; None if there is none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not text:
        return None
    try:
        carrier = json.loads(text)
    except ValueError:
        carrier = None
    if not isinstance(carrier, dict) or "traceparent" not in carrier:
        report(f"a trace context cannot be read: {text!r:.200}")
        return None
    return TraceContextTextMapPropagator().extract(carrier)


def _record(span: Any, error: Exception) -> None:
    try:
        span.record_exception(error)
    except Exception:  # raised by the exception's own methods
        about = {"exception.type": type(error).__name__, "exception.message": client_text(error)}
        span.add_event("exception", about)


def _error(text: str) -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR, text)
