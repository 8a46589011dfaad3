"""OpenTelemetry: does tritonserver trace with it, and where do the workers' spans go then?

Where they go is said in OpenTelemetry's own environment variables (`OTEL_…`, the specification's
"OpenTelemetry Environment Variable Specification"), which a worker gets from, the later the stronger,
the daemon's environment, tritonserver's `trace-config`, and its registrant.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import trace_config

#: What begins and ends so says where spans go.
_EXPORTER, _ENDPOINT = "OTEL_EXPORTER_", "ENDPOINT"


def uses_opentelemetry(config: DaemonConfig) -> bool:
    """Return whether tritonserver traces with OpenTelemetry: its mode cannot change while it runs."""
    return trace_config.mode(_given(config)) == trace_config.OPENTELEMETRY


def worker_environment(config: DaemonConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a worker sends its spans to where tritonserver sends its own.

    Args:
        config: its `trace-config` counts.
        environ: the daemon's environment.
    """
    own = {name: value for name, value in environ.items() if name.startswith("OTEL_")}
    return {**own, **trace_config.environment(_given(config))}


def exports_elsewhere(environ: Mapping[str, str]) -> bool:
    """Return whether a registrant's variables send spans to a place of its own.

    The daemon's variables are of no use then: its credentials must not go to that place.
    """
    return any(name.startswith(_EXPORTER) and name.endswith(_ENDPOINT) for name in environ)


def _given(config: DaemonConfig) -> list[str]:
    given = config.tritonserver_options.get("trace-config", [])
    return [given] if isinstance(given, str) else given
