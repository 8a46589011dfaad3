"""Converts `cli_args` (command line options of tritonserver) to settings of the daemon that a runner starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytriton.runner.errors import RunnerArgumentError

__all__ = ["daemon_settings"]

#: Option of tritonserver -> setting of the daemon. All other options are passed on to tritonserver.
_SETTINGS = {
    "allow-grpc": "allow_grpc",
    "allow-http": "allow_http",
    "allow-metrics": "allow_metrics",
    "grpc-address": "grpc_address",
    "grpc-port": "grpc_port",
    "http-address": "http_address",
    "http-port": "http_port",
    "metrics-address": "metrics_address",
    "metrics-port": "metrics_port",
    "model-control-mode": "model_control_mode",
    "exit-timeout-secs": "grace_period_s",
    "response-cache-byte-size": "response_cache_size",
}
_REPEATED = {"load-model": "load_model", "model-repository": "model_repository"}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def daemon_settings(cli_args: Sequence[str] | None) -> dict[str, Any]:
    """Convert options of tritonserver to the corresponding settings of a daemon.

    Options without a corresponding setting become `tritonserver_options`, which the daemon validates at startup.

    Raises:
        RunnerArgumentError: an argument is not an option, or the value of one is invalid.

    Example:
        >>> daemon_settings(["--http-port=9000", "--log-verbose=1"])
        {'tritonserver_options': {'log-verbose': ['1']}, 'http_port': 9000}
    """
    given = [] if cli_args is None else cli_args
    if isinstance(given, str) or not all(
        isinstance(one, str) and one.startswith("--") and len(one) > 2 for one in given
    ):
        raise RunnerArgumentError(
            f"cli_args must be a list of strings starting with '--', such as '--log-verbose=1'; got {cli_args!r}"
        )
    settings: dict[str, Any] = {"tritonserver_options": {}}
    for argument in given:
        name, _, value = argument[2:].partition("=")
        value = value or "true"
        if name in _REPEATED:
            settings.setdefault(_REPEATED[name], []).append(value)
        elif name in _SETTINGS:
            settings[_SETTINGS[name]] = _value(argument, _SETTINGS[name], value)
        else:
            settings["tritonserver_options"].setdefault(name, []).append(value)
    return settings


def _value(argument: str, setting: str, text: str) -> Any:
    try:
        if setting.startswith("allow_"):
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        if setting.endswith(("_port", "_size")):
            return int(text)
        return float(text) if setting.endswith("_s") else text
    except (KeyError, ValueError):
        kind = "true or false" if setting.startswith("allow_") else "a number"
        raise RunnerArgumentError(f"cli_args: {argument!r} must have {kind} after '='") from None
