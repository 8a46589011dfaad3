"""Triton's trace settings, and the OpenTelemetry variables with the same meaning for spans created in Python.

A setting is "NAME=VALUE" for all modes or "MODE,NAME=VALUE" for one, as in tritonserver's option
--trace-config (source: `tritonserver --help` of 2.51 and Triton's user guide, "Triton
Server Trace"). OpenTelemetry's SDK for Python is configured by environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from urllib.parse import quote

#: The mode in which Triton creates spans.
OPENTELEMETRY = "opentelemetry"
_VARIABLES = {
    "url": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}


def mode(trace_config: Iterable[str]) -> str:
    """Return the trace mode selected by these settings; Triton's default is "triton"."""
    chosen = "triton"
    for scope, name, value in _settings(trace_config):
        if not scope and name == "mode":
            chosen = value
    return chosen


def environment(trace_config: Iterable[str]) -> dict[str, str]:
    """Return the environment variables that make OpenTelemetry's SDK follow these settings.

    Example:
        >>> environment(["mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:4318/v1/traces"])
        {'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT': 'http://127.0.0.1:4318/v1/traces'}
    """
    variables = {}
    resource = []
    for scope, name, value in _settings(trace_config):
        if scope != OPENTELEMETRY:
            continue
        if name in _VARIABLES:
            variables[_VARIABLES[name]] = value
        elif name == "resource":
            key, _, text = value.partition("=")
            resource.append(f"{key.strip()}={quote(text.strip(), safe=' /:')}")
    if resource:
        variables["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(resource)
    return variables


def with_absolute_files(trace_config: Iterable[str]) -> list[str]:
    """Return the settings with absolute paths of trace files, resolved against the current working directory.

    Example:
        >>> with_absolute_files(["triton,file=/tmp/trace.json", "rate=1"])
        ['triton,file=/tmp/trace.json', 'rate=1']
    """
    settings = []
    for entry in trace_config:
        name, _, value = entry.partition("=")
        is_file = name.replace(" ", "") == "triton,file" and value
        settings.append(f"{name}={os.path.abspath(value)}" if is_file else entry)
    return settings


def _settings(trace_config: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting's mode ("": all), name and value."""
    for entry in trace_config:
        name, _, value = entry.partition("=")
        scope, comma, own = name.partition(",")
        yield (scope.strip(), own.strip(), value) if comma else ("", name.strip(), value)
