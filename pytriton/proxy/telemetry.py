"""OpenTelemetry in the process that runs callables: the tracer of their spans.

Spans are created in the worker, only for requests that tritonserver traces (its trace mode `opentelemetry`);
docs/how-to/tracing.md describes how they nest and where they are exported. Set your own tracer
where the callable runs: in its module, its factory, or its first call.
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
    """Create this process's spans with this tracer, instead of the one configured by OTEL_… variables.

    Raises:
        ValueError: a tracer was set before.

    Example:
        >>> from opentelemetry.sdk.trace import TracerProvider        # doctest: +SKIP
        >>> set_telemetry_tracer(TracerProvider().get_tracer("mine")) # doctest: +SKIP
    """
    global _set
    with _lock:
        if _set is not None:
            raise ValueError("Telemetry tracer is already set: a process sets its tracer once.")
        _set = tracer


def get_telemetry_tracer() -> Tracer | None:
    """Return the tracer of this process: the one set by the user, else the worker's own, else None."""
    tracer: Tracer | None = _default if _set is None else _set
    return tracer


def set_default_tracer(tracer: Tracer | None) -> None:
    """Use this tracer until the user sets one. For workers."""
    global _default
    _default = tracer


def trace_environment(trace_config: Sequence[str] | None) -> dict[str, str]:
    """Return the OTEL_… variables for a worker that correspond to tritonserver's `trace_config`.

    Pass them to `register(..., env=...)` to export one model's spans elsewhere.

    Example:
        >>> trace_environment(["opentelemetry,url=http://127.0.0.1:4318/v1/traces"])
        {'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT': 'http://127.0.0.1:4318/v1/traces'}
    """
    from pytriton._protocol import trace_config as settings

    return settings.environment(trace_config or ())
