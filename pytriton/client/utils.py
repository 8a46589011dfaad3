"""What a URL means, and the client of tritonclient that fits it."""

from __future__ import annotations

import importlib
from typing import Any

from pytriton.client.url import TritonUrl

__all__ = ["TritonUrl", "create_client_from_url"]


def create_client_from_url(url: str, network_timeout_s: float | None = None) -> Any:
    """Return tritonclient's own client for a URL: of its module http or grpc.

    Args:
        url: see `TritonUrl.from_url`; without TLS, whose options tritonclient takes itself
        network_timeout_s: longest wait for a connection and for each answer, in seconds (HTTP only: gRPC
            takes it with each call); None is tritonclient's default

    Raises:
        PyTritonClientInvalidUrlError: the URL cannot be read
    """
    parsed = TritonUrl.from_url(url)
    module = importlib.import_module(f"tritonclient.{'grpc' if parsed.is_grpc else 'http'}")
    options = {}
    if network_timeout_s is not None and parsed.is_http:
        options = {"connection_timeout": network_timeout_s, "network_timeout": network_timeout_s}
    return module.InferenceServerClient(parsed.without_scheme, ssl=parsed.is_secure, **options)
