"""A worker's own tracer, whose spans are exported as OpenTelemetry's environment variables specify.

OTEL_TRACES_EXPORTER selects the exporter (otlp by default), OTEL_EXPORTER_OTLP_(TRACES_)PROTOCOL its
protocol (http/protobuf by default). Exporters are found as OpenTelemetry's own launcher finds them: by
the entry points that their packages declare.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pytriton.proxy import telemetry
from pytriton.worker.fault_reports import report

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Maximum seconds that a worker's exit waits for its last spans to be exported.
_LAST_EXPORT_S = 2.0
#: Timeout in seconds of one export in a process that hosts worker threads.
_HOSTED_TIMEOUT_S = 2
_GROUP = "opentelemetry_traces_exporter"
_PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}

_lock = threading.Lock()
_made = False  #: whether creation was attempted
_provider: Any = None  #: the provider that `finish` shuts down
_offered: dict[str, str] = {}


def offer(variables: Mapping[str, str]) -> None:
    """Configure the default tracer with these OTEL_… variables: the process has its own environment."""
    _offered.update({name: text for name, text in variables.items() if name.startswith("OTEL_")})


class _CannotExport(Exception):
    """Spans cannot be exported; the text says why and what to do."""


def default_tracer(*, for_all: bool = False) -> Any:
    """Return the tracer of this process; None if it cannot be created, which is logged once.

    Args:
        for_all: also set it as OpenTelemetry's tracer provider of the whole process
    """
    global _made
    with _lock:
        if not _made:
            _made = True
            try:
                telemetry.set_default_tracer(_tracer(for_all))
            except _CannotExport as reason:
                report(f"tracing is on, but spans cannot be created: {reason}")
    return telemetry.get_telemetry_tracer()


def finish() -> None:
    """Export remaining spans, for at most `_LAST_EXPORT_S`."""
    if _provider is None:
        return
    # An exporter retries a collector that does not answer for 6 to 10 s (seen in 1.45).
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
    resource = Resource.create(_attributes(_offered.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "pytriton"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=not for_all)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    if for_all:
        trace.set_tracer_provider(provider)
        _provider = provider
    return provider.get_tracer("pytriton")


def _hosted_arguments() -> dict[str, Any]:
    """Return arguments of an OTLP exporter in a registrant's process, whose exit must not be delayed for long."""
    arguments: dict[str, Any] = {}
    if not any(os.environ.get(f"OTEL_EXPORTER_OTLP_{name}TIMEOUT") for name in ("", "TRACES_")):
        arguments["timeout"] = _HOSTED_TIMEOUT_S
    endpoint = _offered.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if endpoint is not None:
        arguments["endpoint"] = endpoint
    return arguments


def _attributes(text: str) -> dict[str, Any]:
    """Parse OTEL_RESOURCE_ATTRIBUTES."""
    pairs = (entry.partition("=") for entry in text.split(",") if entry)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


def _exporter(otlp_arguments: Mapping[str, Any]) -> Any:
    """Return the exporter selected by the environment; None if it selects none.

    Raises:
        _CannotExport: it is not installed, or its settings are invalid.
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
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; it may be {' or '.join(_OTLP)}"
            )
        name = _OTLP[protocol]
    arguments = otlp_arguments if name in _OTLP.values() else {}
    for point in _declared():
        if point.name == name:
            try:
                return point.load()(**arguments)
            except Exception as error:  # any exporter-specific settings error
                raise _CannotExport(f"the exporter {name} cannot be created: {error}") from error
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise _CannotExport(
        f"the exporter {name} is not installed. Install it into this environment: "
        f"{sys.executable} -m pip install {package}, or choose another one with OTEL_TRACES_EXPORTER"
    )


def _declared() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # few workers trace, and it takes 20 ms

    if sys.version_info >= (3, 10):
        return entry_points(group=_GROUP)
    return entry_points().get(_GROUP, [])
