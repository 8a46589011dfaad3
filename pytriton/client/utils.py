"""Helpers for server URLs: parse a URL, create a tritonclient for it, and wait for the server."""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace
from typing import Any

from pytriton.client._inference.core import DEFAULT_INIT_TIMEOUT_S, require_timeout
from pytriton.client._transport.connections import fail
from pytriton.client._transport.servers import (
    Servers,
    TritonEndpoint,
    wait_for_model,
    wait_for_server,
)
from pytriton.client._transport.steps import run
from pytriton.client._transport.url import TritonUrl

__all__ = [
    "TritonUrl",
    "create_client_from_url",
    "wait_for_model_ready",
    "wait_for_server_ready",
]


def create_client_from_url(url: str, network_timeout_s: float | None = None) -> Any:
    """Create tritonclient's own client for a URL: `tritonclient.http` or `tritonclient.grpc.InferenceServerClient`.

    Args:
        url: URL of the server; see `TritonUrl.from_url`. For TLS, create tritonclient's client yourself, with its
            options.
        network_timeout_s: timeout of the connection and of each response, in seconds; None: tritonclient's default.
            HTTP only: with gRPC, each call has its own timeout.

    Raises:
        PyTritonClientInvalidUrlError: the URL cannot be parsed
    """
    parsed = TritonUrl.from_url(url)
    module = importlib.import_module(f"tritonclient.{'grpc' if parsed.is_grpc else 'http'}")
    options: dict[str, Any] = {}
    if parsed.is_grpc:
        options = {"channel_args": parsed.channel_options}
    if network_timeout_s is not None and parsed.is_http:
        options = {"connection_timeout": network_timeout_s, "network_timeout": network_timeout_s}
    return module.InferenceServerClient(parsed.without_scheme, ssl=parsed.is_secure, **options)


def wait_for_server_ready(
    client: Any, timeout_s: float | None = None, headers: dict[str, str] | None = None
) -> None:
    """Wait until a server is ready.

    Args:
        client: tritonclient's client, see `create_client_from_url`. Over HTTP, its own timeouts limit each check.
        timeout_s: maximum wait, in seconds; None is 300 s
        headers: headers of every request, such as those of `create_auth_headers`

    Raises:
        PyTritonClientTimeoutError: the server did not become ready in time
    """
    timeout_s = _limit(timeout_s)
    run(wait_for_server(_servers(client, "", "", headers), timeout_s), time.sleep)


def wait_for_model_ready(
    client: Any,
    model_name: str,
    model_version: str | int | None = None,
    timeout_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """Wait until a model is ready on a server.

    Args:
        client: see `wait_for_server_ready`
        model_name: name of the model
        model_version: version of the model; None: the latest
        timeout_s: maximum wait, in seconds; None is 300 s
        headers: headers of every request

    Raises:
        PyTritonClientModelUnavailableError: the server responds, but the model did not become ready in time
        PyTritonClientTimeoutError: the server did not respond
    """
    timeout_s = _limit(timeout_s)
    version = "" if model_version is None else str(model_version)
    servers = _servers(client, model_name, version, headers)
    run(wait_for_model(servers, timeout_s, None), time.sleep)


def _limit(timeout_s: float | None) -> float:
    require_timeout("timeout_s", timeout_s)
    return DEFAULT_INIT_TIMEOUT_S if timeout_s is None else timeout_s


def _servers(client: Any, name: str, version: str, headers: dict[str, str] | None) -> Servers:
    return Servers([TritonEndpoint(_UserClient(client))], name, version, dict(headers or {}))


class _UserClient:
    """Adapter with the interface of `ServerConnection`, for a tritonclient client that the user created."""

    def __init__(self, client: Any) -> None:
        self.client = client
        # tritonclient does not expose its URL.
        self.url: Any = SimpleNamespace(with_scheme="the server")

    @property
    def module(self) -> Any:
        return importlib.import_module(type(self.client).__module__.rpartition(".")[0])

    def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        if "grpc" in type(self.client).__module__:
            arguments = {**arguments, "client_timeout": timeout_s}
        try:
            return getattr(self.client, method)(**arguments, headers=headers)
        except Exception as error:
            fail(error)

    def close(self) -> None:
        """Do nothing: the user closes the client."""
