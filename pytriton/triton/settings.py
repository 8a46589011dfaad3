"""The settings of a private daemon (pytriton/_host/settings), derived from TritonConfig and TritonSecurityConfig."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytriton._protocol.parameters import ACCESS_HEADER
from pytriton._protocol.trace_config import with_absolute_files
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT
from pytriton.exceptions import PyTritonValidationError
from pytriton.triton.config import TritonConfig
from pytriton.triton.security import TritonSecurityConfig, unknown_endpoints

_PORTS = {
    "http": DEFAULT_HTTP_PORT,
    "grpc": DEFAULT_GRPC_PORT,
    "metrics": DEFAULT_METRICS_PORT,
}
#: Like PyTriton, listen on all interfaces: containers rely on it.
_ADDRESS = "0.0.0.0"
#: Fields of TritonConfig that `daemon_settings` turns into settings of the daemon. All others are options of
#: tritonserver.
_DAEMON_SETTINGS = (
    *(f"{part}_{name}" for name in ("port", "address") for part in _PORTS),
    *(f"allow_{part}" for part in _PORTS),
    "cache_config", "exit_timeout_secs", "grpc_restricted_protocol", "http_restricted_api",
    "model_repository", "response_cache_byte_size",
)  # fmt: skip
#: Time limit for in-flight requests at `stop`, as in PyTriton, in seconds.
_GRACE_S = 30.0
#: Settings of the daemon that a script may set through its environment, as PYTRITON_DAEMON_*.
_FROM_ENVIRONMENT = (
    "tritonserver", "frontend", "proxy_python", "cache_dir", "log_format", "log_level",
)  # fmt: skip


def effective_security(
    config: TritonConfig, security: TritonSecurityConfig | None
) -> TritonSecurityConfig:
    """Return a copy of `security`; if it is None, return the restrictions in `config`, else the defaults.

    Raises:
        PyTritonValidationError: both restrict endpoints, or `config` uses a header other than the access token's
    """
    endpoints: list[str] = []
    token = None
    for name in ("http_restricted_api", "grpc_restricted_protocol"):
        for entry in getattr(config, name) or []:
            token, named = _parse_restriction(name, entry)
            endpoints += [one for one in named if one not in endpoints]
    if security is None:
        security = TritonSecurityConfig(token, endpoints) if endpoints else TritonSecurityConfig()
    elif endpoints:
        raise PyTritonValidationError(
            "TritonConfig restricts endpoints, but security_config= was passed as well. Use only "
            "TritonSecurityConfig(access_token=..., restricted_endpoints=[...])."
        )
    return dataclasses.replace(security)  # validate again, and ignore later changes by the caller


def _parse_restriction(name: str, entry: str) -> tuple[str, list[str]]:
    endpoints, _, pair = entry.partition(":")
    key, _, token = pair.partition("=")
    if key != ACCESS_HEADER or not token:
        raise PyTritonValidationError(
            f"TritonConfig: {name} must have the form 'ENDPOINT,...:{ACCESS_HEADER}=TOKEN' (the value "
            "is not shown). The header's name is fixed, because pytriton's clients send this header. "
            "Prefer TritonSecurityConfig(access_token=..., restricted_endpoints=[...])."
        )
    short = {"shm": "shared-memory"}
    named = [short.get(one.strip(), one.strip()) for one in endpoints.split(",")]
    unknown = unknown_endpoints(named)
    if unknown:
        raise PyTritonValidationError(f"TritonConfig: {name}: {unknown}")
    return token, named


def daemon_settings(
    config: TritonConfig,
    security: TritonSecurityConfig,
    runtime_dir: Path,
    model_names: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the settings of a `Triton` object's daemon as JSON-compatible values.

    Args:
        config: the user's configuration
        security: the effective security settings, including the token
        runtime_dir: the daemon's runtime directory
        model_names: names of the models bound so far, in order

    Raises:
        PyTritonValidationError: two fields contradict each other
    """
    cache_size, cache_options = _cache(config)
    settings: dict[str, Any] = {
        "log_format": "plain",
        **_settings_of_environment(),
        "runtime_dir": str(runtime_dir),
        "ephemeral": True,
        "grace_period_s": float(_or(config.exit_timeout_secs, _GRACE_S)),
        "response_cache_size": cache_size,
        "restricted_endpoints": security.endpoints,
        "access_token": security.access_token,
        "tritonserver_options": {**server_options(config, model_names), **cache_options},
    }
    for part, port in _PORTS.items():
        settings[f"allow_{part}"] = _or(getattr(config, f"allow_{part}"), True)
        settings[f"{part}_address"] = _or(getattr(config, f"{part}_address"), _ADDRESS)
        settings[f"{part}_port"] = _or(getattr(config, f"{part}_port"), port)
    if config.model_repository is not None:
        settings["model_repository"] = [os.path.abspath(config.model_repository)]
    return settings


def server_options(config: TritonConfig, model_names: Iterable[str] = ()) -> dict[str, Any]:
    """Return tritonserver's options: the fields of `config` that are set and are not settings of the daemon."""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None or field.name in _DAEMON_SETTINGS:
            continue
        options[field.name.replace("_", "-")] = _texts(value)
    # tritonserver has another working directory, so make paths absolute.
    if "trace-config" in options:
        options["trace-config"] = with_absolute_files(options["trace-config"])
    if config.cache_directory is not None:
        options["cache-directory"] = os.path.abspath(config.cache_directory)
    first = next(iter(model_names), None)
    if config.allow_vertex_ai and config.vertex_ai_default_model is None and first is not None:
        options["vertex-ai-default-model"] = first
    return options


def command_line(config: TritonConfig) -> str:
    """Return the settings as options of tritonserver's command line, for display."""
    words = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        entries = value if isinstance(value, list) else [value]
        option = f"--{field.name.replace('_', '-')}"
        words += [f"{option}={_text(one)}" for one in entries if one is not None]
    return " ".join(words)


def _texts(value: Any) -> str | list[str]:
    return [_text(one) for one in value] if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Path):
        return os.path.abspath(value)  # tritonserver has another working directory
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings_of_environment() -> dict[str, str]:
    found = {name: os.environ.get(f"PYTRITON_DAEMON_{name.upper()}") for name in _FROM_ENVIRONMENT}
    return {name: os.path.expanduser(text) for name, text in found.items() if text}


def _cache(config: TritonConfig) -> tuple[int, dict[str, Any]]:
    """Return the size of the local response cache in bytes, and tritonserver's options for other caches."""
    size = config.response_cache_byte_size
    others = []
    for entry in config.cache_config or []:
        match = re.fullmatch(r"local,size=(\d+)", entry.replace(" ", ""))
        if match is None:
            others.append(entry)
        elif size not in (None, int(match[1])):
            raise PyTritonValidationError(
                f"TritonConfig: response_cache_byte_size={size} and cache_config {entry!r} "
                "contradict each other; set only one of them."
            )
        else:
            size = int(match[1])
    return size or 0, {"cache-config": others} if others else {}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
