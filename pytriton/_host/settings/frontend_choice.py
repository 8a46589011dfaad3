"""Chooses the frontend: the configured one, else the native frontend if it supports all options in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton._host.settings.triton_options import KNOWN

if TYPE_CHECKING:
    from pytriton._host.settings.declarations import DaemonConfig

#: Prefixes of the options of NVIDIA's frontends, as opposed to those of Triton's core.
FRONTENDS = (
    "http-",
    "grpc-",
    "reuse-",
    "sagemaker-",
    "vertex-ai-",
    "allow-sagemaker",
    "allow-vertex-ai",
)
#: Options that the native frontend supports as well.
_SHARED = frozenset(
    {
        "http-header-forward-pattern",
        "grpc-header-forward-pattern",
        "grpc-use-ssl",
        "grpc-use-ssl-mutual",
        "grpc-server-cert",
        "grpc-server-key",
        "grpc-root-cert",
        "http-max-input-size",
        "allow-sagemaker",
        "sagemaker-port",
        "allow-vertex-ai",
        "vertex-ai-port",
        "vertex-ai-default-model",
    }
)
#: Thread counts and pool sizes inside NVIDIA's frontends. The native frontend ignores them; clients see no difference.
INWARD = frozenset(
    {
        "http-thread-count",
        "grpc-infer-allocation-pool-size",
        "grpc-infer-thread-count",
        "grpc-max-response-pool-size",
        "sagemaker-thread-count",
        "vertex-ai-thread-count",
    }
)
#: Settings that only the native frontend has; http_key and http_client_authorities need http_certificate.
_NATIVE = (
    "frontend_limit",
    "http_unix_socket",
    "grpc_unix_socket",
    "http_certificate",
)


def only_native(config: DaemonConfig) -> list[str]:
    """Return the settings in use that only the native frontend supports."""
    return [name for name in _NATIVE if getattr(config, name)]


def only_triton(config: DaemonConfig) -> list[str]:
    """Return the tritonserver_options in use that the native frontend does not support, or that are unknown."""
    return [
        name
        for name in config.tritonserver_options
        if name not in _SHARED | INWARD and (name.startswith(FRONTENDS) or name not in KNOWN)
    ]


def chosen(config: DaemonConfig) -> str:
    """Return the frontend to use: "native", "triton" (NVIDIA's executable), or "auto".

    With "auto", the native frontend is used if it is available, else NVIDIA's executable.
    """
    if config.frontend != "auto":
        return config.frontend
    if only_native(config):
        return "native"
    return "triton" if only_triton(config) else "auto"


def problems(config: DaemonConfig) -> list[str]:
    """Return the contradictions in the frontend's settings."""
    found = []
    native, triton = only_native(config), only_triton(config)
    if native and config.frontend == "triton":
        found.append(
            f"{', '.join(native)}: not supported by NVIDIA's executable; set frontend to native"
        )
    if triton and chosen(config) == "native":
        asked = "frontend = native" if config.frontend == "native" else ", ".join(native)
        found.append(
            f"{', '.join(triton)} in tritonserver_options: not supported by the native frontend, but {asked} "
            "requires it; remove one or the other"
        )
    if (config.http_certificate is None) != (config.http_key is None):
        found.append("http_certificate and http_key go together: set both or neither")
    if config.http_client_authorities is not None and config.http_certificate is None:
        found.append(
            "http_client_authorities needs http_certificate: without it, HTTP is served without TLS"
        )
    found += [
        f"{name}_unix_socket is set, but allow_{name} is false"
        for name in ("http", "grpc")
        if getattr(config, f"{name}_unix_socket") and not getattr(config, f"allow_{name}")
    ]
    return found
