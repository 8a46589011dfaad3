"""Access control for Triton's endpoints: their names, the default restrictions, the access token."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from pytriton._protocol.arguments import closest_keywords
from pytriton._protocol.parameters import ACCESS_HEADER
from pytriton.exceptions import PyTritonValidationError

__all__ = [
    "DEFAULT_PROTECTED_ENDPOINTS",
    "TRITON_ACCESS_HEADER",
    "VALID_TRITON_ENDPOINTS",
    "TritonSecurityConfig",
]

#: The HTTP header that carries the token; gRPC prefixes it with `triton-grpc-protocol-`.
TRITON_ACCESS_HEADER = ACCESS_HEADER
#: Every endpoint that can be restricted.
VALID_TRITON_ENDPOINTS = {
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository",
    "statistics", "trace", "logging",
}  # fmt: skip
#: Restricted by default: endpoints that change the server or reveal data about its users.
DEFAULT_PROTECTED_ENDPOINTS = [
    "shared-memory", "model-repository", "statistics", "trace", "logging",
]  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")


@closest_keywords
@dataclass
class TritonSecurityConfig:
    """The endpoints that require an access token, and the token itself.

    After construction, both fields contain the effective values, such as the generated token. All `Triton` objects
    created with this object require the same token.

    Args:
        access_token: token of letters, digits and `-._~+/=`; None: a random 256-bit token, if any endpoint is
            restricted
        restricted_endpoints: names of the endpoints; None: DEFAULT_PROTECTED_ENDPOINTS; an empty list: no endpoint

    Raises:
        PyTritonValidationError: an endpoint is unknown, or the token cannot be sent in a header

    Example:
        >>> TritonSecurityConfig(restricted_endpoints=["statistics"]).restricted_endpoints
        ['statistics']
        >>> len(TritonSecurityConfig().access_token)
        43
    """

    access_token: str | None = None
    restricted_endpoints: Collection[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.restricted_endpoints, str):
            raise PyTritonValidationError(
                f"restricted_endpoints must be a list: write [{self.restricted_endpoints!r}]."
            )
        if self.restricted_endpoints is None:
            self.restricted_endpoints = list(DEFAULT_PROTECTED_ENDPOINTS)
        unknown = unknown_endpoints(self.endpoints)
        if unknown:
            raise PyTritonValidationError(unknown)
        if self.access_token is not None and not _TOKEN.fullmatch(str(self.access_token)):
            raise PyTritonValidationError(
                "The access token (not shown) must consist of 1 to 512 letters, digits, or `-._~+/=`."
            )

        if self.access_token is None and self.endpoints:
            self.access_token = secrets.token_urlsafe(32)

    @property
    def endpoints(self) -> list[str]:
        """The names of the restricted endpoints, in order."""
        return list(self.restricted_endpoints or ())

    def __repr__(self) -> str:
        token = None if self.access_token is None else "***"
        return f"TritonSecurityConfig(access_token={token}, restricted_endpoints={self.restricted_endpoints!r})"


def unknown_endpoints(names: Collection[str]) -> str:
    """Return an error message that lists the unknown endpoints and the valid ones; empty if all are valid."""
    known = sorted(VALID_TRITON_ENDPOINTS)
    unknown = [str(name) for name in names if name not in known]
    if not unknown:
        return ""
    return f"Invalid endpoint names: {', '.join(unknown)}. Valid endpoints are: {', '.join(known)}."
