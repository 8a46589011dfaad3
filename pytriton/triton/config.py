"""`TritonConfig`: PyTriton's settings for the tritonserver that a `Triton` object starts."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton.exceptions import PyTritonValidationError
from pytriton.triton.values import cast, read_environment

__all__ = ["TritonConfig"]

logger = logging.getLogger("pytriton.triton")

_NO_POSITIONAL = "TritonConfig initialization can't be used with positional arguments"


@dataclass
class TritonConfig:
    """Options of tritonserver. None means tritonserver's own default.

    A field has the name of tritonserver's option, with `_` instead of `-`. It can also be set by an environment
    variable, such as `PYTRITON_TRITON_CONFIG_HTTP_PORT=9000`. The entries of a list are numbered:
    `PYTRITON_TRITON_CONFIG_CACHE_CONFIG_0=local,size=1048576`. Fields set in `Triton(config=...)` override the
    environment.

    Args:
        model_repository: folder of additional models that tritonserver loads at startup
        id: name of the server in its responses
        log_verbose: verbosity of tritonserver's log; levels above 0 slow down inference
        log_file: file for tritonserver's log; None: the standard output of this process
        exit_timeout_secs: how long `stop` waits for in-flight requests, in seconds
        exit_on_error: exit if an error occurs at startup
        strict_readiness: report ready only when all models are ready
        allow_http: serve HTTP
        http_address: address to listen on; None: 0.0.0.0, all interfaces
        http_port: port; None: 8000; 0: any free port
        http_header_forward_pattern: regular expression; matching headers are passed to the callable as parameters
        http_thread_count: number of HTTP threads
        http_restricted_api: `ENDPOINT,...:triton-access-token=TOKEN`; prefer `TritonSecurityConfig`
        allow_grpc: serve gRPC
        grpc_address: like `http_address`
        grpc_port: port; None: 8001; 0: any free port
        grpc_header_forward_pattern: like `http_header_forward_pattern`
        grpc_infer_allocation_pool_size: number of messages kept for reuse
        grpc_restricted_protocol: like `http_restricted_api`
        grpc_use_ssl: use TLS
        grpc_use_ssl_mutual: require client certificates
        grpc_server_cert: server certificate (PEM)
        grpc_server_key: its private key (PEM)
        grpc_root_cert: CA certificates (PEM)
        grpc_infer_response_compression_level: none, low, medium or high
        grpc_keepalive_time: interval between keepalive pings, in milliseconds
        grpc_keepalive_timeout: timeout of a keepalive ping, in milliseconds
        grpc_keepalive_permit_without_calls: ping idle connections
        grpc_http2_max_pings_without_data: maximum number of pings without data
        grpc_http2_min_recv_ping_interval_without_data: minimum interval between received pings, in milliseconds
        grpc_http2_max_ping_strikes: number of bad pings before a connection is closed
        allow_metrics: serve Prometheus metrics
        allow_gpu_metrics: include GPU metrics
        allow_cpu_metrics: include CPU metrics
        metrics_interval_ms: interval between device measurements, in milliseconds
        metrics_port: port; None: 8002; 0: any free port
        metrics_address: like `http_address`
        metrics_config: list of NAME=VALUE
        allow_sagemaker: serve SageMaker's endpoints
        sagemaker_port: port of these endpoints
        sagemaker_safe_port_range: e.g. "8081-8083"
        sagemaker_thread_count: number of threads
        allow_vertex_ai: serve Vertex AI's endpoints
        vertex_ai_port: port of these endpoints
        vertex_ai_thread_count: number of threads
        vertex_ai_default_model: model that serves these requests; None: the first bound model
        trace_config: list of `level=TIMESTAMPS`, `mode=opentelemetry`, ...
        cache_config: e.g. ["local,size=1048576"]
        cache_directory: folder of the cache libraries
        buffer_manager_thread_count: number of threads that copy buffers
        response_cache_byte_size: size of the local response cache in bytes, like `cache_config` with `local,size=`

    Values may also be strings, for example a port from an environment variable or the command line.

    Raises:
        TypeError: an argument is positional, or its name is unknown
        PyTritonValidationError: a value has the wrong type, or both HTTP and gRPC are disabled

    Example:
        >>> TritonConfig(http_port=9000, response_cache_byte_size=1024 * 1024).http_port
        9000
    """

    model_repository: Path | None = None
    id: str | None = None
    log_verbose: int | None = None
    log_file: Path | None = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_thread_count: int | None = None
    http_restricted_api: list[str] | None = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_restricted_protocol: list[str] | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: Path | None = None
    grpc_server_key: Path | None = None
    grpc_root_cert: Path | None = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    metrics_config: list[str] | None = None
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    trace_config: list[str] | None = None
    cache_config: list[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None
    response_cache_byte_size: int | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> TritonConfig:
        """Reject positional arguments (kw_only requires Python 3.10) and suggest the nearest name for unknown ones."""
        if args:
            raise TypeError(_NO_POSITIONAL)
        for name in kwargs:
            if name not in cls.__dataclass_fields__:
                raise TypeError(
                    f"TritonConfig.__init__() got an unexpected keyword argument {name!r}"
                    f"{_nearest(name, cls.__dataclass_fields__)}"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            setattr(self, name, cast(name, kind, getattr(self, name), f"TritonConfig: {name}"))
        if self.allow_http is False and self.allow_grpc is False:
            raise PyTritonValidationError("The `http` or `grpc` endpoint has to be allowed.")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict of name to value."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TritonConfig:
        """Create settings from a dict, whose values may be strings.

        Unknown names are logged as a warning and ignored.

        Raises:
            PyTritonValidationError: a value has the wrong type

        Example:
            >>> TritonConfig.from_dict({"http_port": "9000", "allow_metrics": "False"}).allow_metrics
            False
        """
        values = {}
        for name, value in config.items():
            if name in cls.__dataclass_fields__:
                values[name] = value
            else:
                _warn_unknown(name, name, cls.__dataclass_fields__)
        return cls(**values)

    @classmethod
    def from_env(cls) -> TritonConfig:
        """Create settings from the environment variables `PYTRITON_TRITON_CONFIG_*`. Empty variables are ignored.

        Unknown names are logged as a warning and ignored.

        Raises:
            PyTritonValidationError: a value has the wrong type; the message names the variable
        """
        values = {}
        for name, (variable, value) in read_environment(_types()).items():
            if name in cls.__dataclass_fields__:
                values[name] = cast(name, _types()[name], value, variable)
            else:
                _warn_unknown(variable, name, cls.__dataclass_fields__)
        return cls(**values)

    def over(self, other: TritonConfig) -> TritonConfig:
        """Return a copy of these settings in which `other` supplies the values of fields that are None."""
        values = {}
        for field in dataclasses.fields(self):
            own = getattr(self, field.name)
            values[field.name] = getattr(other, field.name) if own is None else own
        return TritonConfig(**values)


def _types() -> dict[str, str]:
    """Return the type of each field: "bool", "int", "str", "Path" or "list[str]"."""
    return {
        field.name: str(field.type).partition(" |")[0] for field in dataclasses.fields(TritonConfig)
    }


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def _warn_unknown(shown: str, name: str, known: Iterable[str]) -> None:
    logger.warning(
        "%s is ignored: TritonConfig has no field %s%s. Its fields: %s",
        shown, name, _nearest(name, known), ", ".join(known),
    )  # fmt: skip
