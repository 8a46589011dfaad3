"""OpenTelemetry settings: whether tritonserver traces with it, and where workers export their spans."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import trace_config

#: Prefix and suffix of the variables that name a destination of spans.
_EXPORTER, _ENDPOINT = "OTEL_EXPORTER_", "ENDPOINT"


def uses_opentelemetry(config: DaemonConfig) -> bool:
    """Return True if tritonserver traces with OpenTelemetry. Its trace mode cannot change while it is running."""
    return trace_config.mode(_given(config)) == trace_config.OPENTELEMETRY


def worker_environment(config: DaemonConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a worker exports spans to the same destination as tritonserver.

    Args:
        config: the settings; only `trace-config` is used.
        environ: the daemon's environment.
    """
    own = {name: value for name, value in environ.items() if name.startswith("OTEL_")}
    return {**own, **trace_config.environment(_given(config))}


def exports_elsewhere(environ: Mapping[str, str]) -> bool:
    """Return True if a registrant's variables name an export destination.

    The daemon's variables then do not apply: its credentials must not be sent to that destination.
    """
    return any(name.startswith(_EXPORTER) and name.endswith(_ENDPOINT) for name in environ)


def _given(config: DaemonConfig) -> list[str]:
    given = config.tritonserver_options.get("trace-config", [])
    return [given] if isinstance(given, str) else given
