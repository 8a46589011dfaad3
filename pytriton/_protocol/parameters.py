"""Names of the daemon's own parameters in model configurations and requests, and of the access token's header.

tritonserver passes them on. The dispatcher writes the parameters and the proxies read them;
proxy_backend/backend/wire/protocol.h is generated from this module.

The names of the header follow from tritonserver's options `http-restricted-api` and `grpc-restricted-protocol`, whose
values are `ENDPOINT,ENDPOINT:KEY=VALUE`. Over HTTP, the header is KEY; over gRPC, the key of the metadata is
`triton-grpc-protocol-KEY` (tried with Triton 2.51).
"""

from __future__ import annotations

# ── of a model's configuration ───────────────────────────────────────────────────────────────────

#: The dispatcher's endpoint.
CONTROL_PARAMETER = "pytriton_control"
#: The registration that the model belongs to.
REGISTRATION_PARAMETER = "pytriton_registration"
#: Set for a Triton Python model: "details", or "streams" if it may answer at any time.
PYTHON_MODEL_PARAMETER = "pytriton_python_model"
#: Set for a model with several versions: each request then carries VERSION_PARAMETER.
VERSIONS_PARAMETER = "pytriton_versions"
#: The error returned for each request, for a placeholder model without workers.
STAND_IN_PARAMETER = "pytriton_stand_in"
#: Never read: makes a configuration differ from the previous one, so that tritonserver loads it again.
MENDED_PARAMETER = "pytriton_mended"

# ── of a request ─────────────────────────────────────────────────────────────────────────────────

#: Set on each request to a model served in several versions: the requested version.
VERSION_PARAMETER = "pytriton_version"
#: The signed chain of models that wait for a call: see calls/call_messages.py.
CHAIN_PARAMETER = "pytriton_calls"
#: Name under which a callable gets a client's parameter that is called like CHAIN_PARAMETER.
NO_CHAIN_PARAMETER = "pytriton_not_calls"
#: Lets the proxy of the called model check whether the caller is still waiting.
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
