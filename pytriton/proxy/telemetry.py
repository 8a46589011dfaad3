"""The OpenTelemetry tracer for the spans of callables.

Spans are created in the worker, and only for requests that tritonserver traces (with its trace mode `opentelemetry`).
docs/how-to/tracing.md describes how they nest and where they are exported. Set your own tracer in the process that
runs the callable: in its module, its factory, or its first call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["get_telemetry_tracer", "set_telemetry_tracer", "trace_environment"]

_lock = threading.Lock()
_set: Any = None  #: set by the user
_default: Any = None  #: set by the worker


def set_telemetry_tracer(tracer: Tracer) -> None:
    """Set the tracer that creates this process's spans, instead of the one configured by OTEL_… variables.

    Raises:
        ValueError: a tracer has already been set.

    Example:
        >>> from opentelemetry.sdk.trace import TracerProvider        # doctest: +SKIP
        >>> set_telemetry_tracer(TracerProvider().get_tracer("mine")) # doctest: +SKIP
    """
    global _set
    with _lock:
        if _set is not None:
            raise ValueError("Telemetry tracer is already set: a process can set it only once.")
        _set = tracer


def get_telemetry_tracer() -> Tracer | None:
    """Return the tracer of this process: the one set by the user, or else the worker's default, or else None."""
    tracer: Tracer | None = _default if _set is None else _set
    return tracer


def set_default_tracer(tracer: Tracer | None) -> None:
    """Set the tracer that is used unless the user sets one. Called by workers."""
    global _default
    _default = tracer


def trace_environment(trace_config: Sequence[str] | None) -> dict[str, str]:
    """Convert tritonserver's `trace_config` to the corresponding OTEL_… environment variables for a worker.

    Pass them to `register(..., env=...)` to export one model's spans elsewhere.

    Example:
        >>> trace_environment(["opentelemetry,url=http://127.0.0.1:4318/v1/traces"])
        {'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT': 'http://127.0.0.1:4318/v1/traces'}
    """
    from pytriton._protocol import trace_config as settings

    return settings.environment(trace_config or ())
