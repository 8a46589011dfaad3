"""Refuses cross-site requests from browsers, on every HTTP port.

The native frontend has the same rule for its ports (`proxy_backend/frontend/http1/browsers.c`). Other clients are not
affected: only browsers send `Origin` and `Sec-Fetch-Site`, and pages cannot change them.
"""

from __future__ import annotations

import enum
import functools
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Foreign", "foreign_request", "has_allowed_origin"]

#: Methods that change nothing and run no model. Browsers do not let a page read another site's responses.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Top-level domains that contain no public names.
_PRIVATE_DOMAINS = (".localhost", ".local", ".internal", ".svc", ".home.arpa")
_DEFAULT_PORTS = (80, 443)


class Foreign(enum.Enum):
    """Reason for refusing a request; the value is the message for the client."""

    OTHER_SITE = (
        "this request comes from a page of another site; only this server's own pages may send it"
    )
    REBOUND = (
        "the header Host has a public name, but the connection came to a loopback address: use 127.0.0.1, localhost, "
        "or the machine's name"
    )


def foreign_request(
    method: str,
    headers: Mapping[str, str],
    local_address: object,
    allowed_origins: Sequence[str] = (),
) -> Foreign | None:
    """Return the reason to refuse a request, or None if it is allowed.

    Without this check, any web page could run models: if a page declares JSON as plain text, browsers send it to other
    sites without a preflight request.

    Args:
        method: HTTP method
        headers: headers with case-insensitive names
        local_address: local address of the connection, as returned by `socket.getsockname`
        allowed_origins: origins of other sites whose pages may send requests; "*" means any
    """
    if has_allowed_origin(headers, allowed_origins):
        return None
    if method not in _SAFE_METHODS and _is_cross_site(headers):
        return Foreign.OTHER_SITE
    if "*" not in allowed_origins and _is_rebound(headers.get("Host", ""), local_address):
        return Foreign.REBOUND
    return None


def has_allowed_origin(headers: Mapping[str, str], allowed_origins: Sequence[str]) -> bool:
    """Return whether the request was sent by a page from one of these origins; "*" means any origin."""
    origin = headers.get("Origin")
    return origin is not None and ("*" in allowed_origins or origin in allowed_origins)


def _is_cross_site(headers: Mapping[str, str]) -> bool:
    """Return whether the request was sent by a page from another site.

    Browsers send Sec-Fetch-Site. If the connection is neither TLS nor local, they send only Origin.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None or origin is None:
        return site not in (None, "none", "same-origin")
    return origin.partition("://")[2].lower() != headers.get("Host", "").lower()


def _is_rebound(host: str, local_address: Any) -> bool:
    """Return whether the request is an attempt at DNS rebinding, in which a page's host name resolves to this machine.

    In such an attempt, the browser sends that name in Host, with the port that it connected to. (A reverse proxy that
    forwards its clients' Host listens on another port.) IP addresses, names without a dot, names in private domains and
    this machine's own name are safe, because an attacker cannot register them.
    """
    if not isinstance(local_address, tuple) or not _is_loopback(local_address[0]):
        return False
    name, port = _split(host)
    if port != local_address[1] and not (port is None and local_address[1] in _DEFAULT_PORTS):
        return False
    return not (
        "." not in name
        or name.startswith("[")
        or not name.strip("0123456789.")
        or name.endswith(_PRIVATE_DOMAINS)
        or name == socket.gethostname().lower()
    )


def _split(host: str) -> tuple[str, int | None]:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    return name.rstrip(".").lower(), int(port) if port.isascii() and port.isdigit() else None


@functools.lru_cache(maxsize=64)  # of this machine's own addresses
def _is_loopback(address: str) -> bool:
    one = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(one, "ipv4_mapped", None)
    return (mapped or one).is_loopback
