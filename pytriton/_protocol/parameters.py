"""Names that tritonserver passes on for us: parameters of model configurations and of requests, and the token's header.

The dispatcher writes the parameters, the proxies read them; proxy_backend/backend/wire/protocol.h is generated from here.

The names of the header come from tritonserver's options `http-restricted-api` and `grpc-restricted-protocol`, whose values
are `ENDPOINT,ENDPOINT:KEY=VALUE`. Over HTTP the header is KEY, over gRPC the metadata's key is
`triton-grpc-protocol-KEY` (Triton 2.51, tried).
"""

from __future__ import annotations

# ── of a model's configuration ───────────────────────────────────────────────────────────────────

#: The dispatcher's endpoint.
CONTROL_PARAMETER = "pytriton_control"
#: The registration that the model belongs to.
REGISTRATION_PARAMETER = "pytriton_registration"
#: Set for a Triton Python model: "details", or "streams" if it may answer at any time.
PYTHON_MODEL_PARAMETER = "pytriton_python_model"
#: Set for a model with several versions: its requests name the version for the worker.
VERSIONS_PARAMETER = "pytriton_versions"
#: The error returned for each request, for a placeholder model without workers.
STAND_IN_PARAMETER = "pytriton_stand_in"
#: Not read: makes one configuration differ from another.
MENDED_PARAMETER = "pytriton_mended"

# ── of a request ─────────────────────────────────────────────────────────────────────────────────

#: Set on each request to a model served in several versions: the requested version.
VERSION_PARAMETER = "pytriton_version"
#: The chain of models that wait for a call, sealed: see calls/call_messages.py.
CHAIN_PARAMETER = "pytriton_calls"
#: New name of a client's parameter that has one of our names, as passed to the callable.
NO_CHAIN_PARAMETER = "pytriton_not_calls"
#: Lets the called model's proxy see whether the caller is still waiting.
HANDLE_PARAMETER = "pytriton_waiting"


#: The HTTP header that carries the access token.
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
