"""Headers that carry the access token for Triton's restricted endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton._protocol.parameters import ACCESS_HEADER, access_headers

__all__ = ["create_auth_headers", "extract_access_token_from_headers"]

_PROTOCOLS = ("http", "grpc")
_GRPC_HEADER = next(iter(access_headers("", grpc=True)))


def create_auth_headers(access_token: str, protocol: str) -> dict[str, str]:
    """Return the headers (HTTP) or metadata (gRPC) that carry an access token.

    Args:
        access_token: the token; see `DaemonClient.access_token` or `pytriton-daemon access-token`
        protocol: "http" or "grpc", in upper or lower case

    Raises:
        ValueError: the token is empty, or the protocol is unknown

    Example:
        >>> create_auth_headers("secret", "HTTP")
        {'triton-access-token': 'secret'}
    """
    if not access_token:
        raise ValueError("The access token cannot be empty.")
    word = protocol.lower() if isinstance(protocol, str) else protocol
    if word not in _PROTOCOLS:
        raise ValueError(f"Unsupported protocol: {protocol!r}. Use 'http' or 'grpc'.")
    return access_headers(access_token, grpc=word == "grpc")


def extract_access_token_from_headers(headers: Mapping[str, Any] | None) -> str | None:
    """Return the access token in HTTP headers or gRPC metadata; None if there is none.

    Raises:
        ValueError: both header names are present, with different tokens
    """
    known = {str(key).lower(): value for key, value in (headers or {}).items()}
    tokens = [str(known[key]) for key in (ACCESS_HEADER, _GRPC_HEADER) if known.get(key)]
    if len(set(tokens)) > 1:
        raise ValueError(
            f"The headers {ACCESS_HEADER} and {_GRPC_HEADER} contain different access tokens. Send only one of "
            f"them, or the same token in both."
        )
    return tokens[0] if tokens else None
