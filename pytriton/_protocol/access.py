"""The headers in which a request carries the access token, over HTTP and over gRPC.

Source: tritonserver's options `http-restricted-api` and `grpc-restricted-protocol`, whose values
are `ENDPOINT,ENDPOINT:KEY=VALUE`. Over HTTP the header is KEY, over gRPC the metadata's key is
`triton-grpc-protocol-KEY` (Triton 2.51, tried).
"""

from __future__ import annotations

#: KEY: the HTTP header that carries the token.
ACCESS_HEADER = "triton-access-token"
_GRPC_PREFIX = "triton-grpc-protocol-"


def access_headers(token: str | None, *, grpc: bool = False) -> dict[str, str]:
    """Return the HTTP headers or gRPC metadata that authorize a request.

    Args:
        token: the token, or None when no endpoint is restricted; the result is then empty
        grpc: return gRPC metadata instead of HTTP headers

    Example:
        >>> access_headers("secret", grpc=True)
        {'triton-grpc-protocol-triton-access-token': 'secret'}
    """
    if token is None:
        return {}
    return {f"{_GRPC_PREFIX if grpc else ''}{ACCESS_HEADER}": token}
