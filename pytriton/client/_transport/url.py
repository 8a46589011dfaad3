"""The URL of a server: scheme, host and port."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union
from urllib.parse import SplitResult, urlsplit

from pytriton.client.exceptions import PyTritonClientInvalidUrlError, PyTritonClientValueError

__all__ = ["TritonUrl", "Urls", "parse_urls"]

#: A URL, or a list of URLs of servers that serve the same model.
Urls = Union[str, Sequence[str]]

#: Scheme -> default port. Triton itself does not serve https, but a reverse proxy in front of it may.
_DEFAULT_PORTS = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 8001}
_HINT = "Use host, host:port, http://…, https://…, grpc://… or grpcs://…"


@dataclass(frozen=True)
class TritonUrl:
    """A parsed URL.

    Args:
        scheme: "http", "https", "grpc" or "grpcs"
        hostname: name or address, without the brackets of IPv6
        port: port number
        path: base path in front of Triton's paths (HTTP only), without leading and trailing slashes

    Example:
        >>> TritonUrl.from_url("grpc://localhost").with_scheme
        'grpc://localhost:8001'
    """

    scheme: str
    hostname: str
    port: int
    path: str = ""

    @classmethod
    def from_url(cls, url: str) -> TritonUrl:
        """Parse a URL.

        Args:
            url: ``host`` or ``host:port`` (with http), or a URL with one of the four schemes. Default ports: 8000
                (http), 443 (https), 8001 (grpc, grpcs)

        Raises:
            PyTritonClientInvalidUrlError: the URL cannot be parsed
        """
        if not isinstance(url, str) or not url.strip():
            raise PyTritonClientInvalidUrlError(f"Invalid url {url!r}. {_HINT}")
        text = url.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port
        except ValueError as error:
            raise PyTritonClientInvalidUrlError(f"Invalid url {url!r}: {error}. {_HINT}") from None
        _check(url, parts)
        if port is None:
            port = _DEFAULT_PORTS[parts.scheme]
        return cls(parts.scheme, parts.hostname or "", port, parts.path.strip("/"))

    @property
    def is_grpc(self) -> bool:
        return self.scheme in ("grpc", "grpcs")

    @property
    def is_http(self) -> bool:
        return not self.is_grpc

    @property
    def is_secure(self) -> bool:
        """True if the connection uses TLS."""
        return self.scheme in ("https", "grpcs")

    @property
    def is_loopback(self) -> bool:
        """True if the host is a loopback address or `localhost`."""
        name = self.hostname.rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:  # a name
            return False

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """Options for gRPC channels: messages of any size, and no proxy for hosts on this machine.

        By default, gRPC uses $http_proxy for every address that is not in $no_proxy. Triton's HTTP clients use
        neither variable.
        """
        sizes = ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)
        return [*sizes, *([("grpc.enable_http_proxy", 0)] if self.is_loopback else [])]

    @property
    def without_scheme(self) -> str:
        """``host:port``, the form that tritonclient expects."""
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{host}:{self.port}/{self.path}" if self.path else f"{host}:{self.port}"

    @property
    def with_scheme(self) -> str:
        """The complete URL: ``scheme://host:port``."""
        return f"{self.scheme}://{self.without_scheme}"


def _check(url: str, parts: SplitResult) -> None:
    if parts.scheme not in _DEFAULT_PORTS:
        raise PyTritonClientInvalidUrlError(
            f"Invalid url {url!r}: unknown scheme {parts.scheme!r}. {_HINT}"
        )
    if not parts.hostname or any(letter.isspace() for letter in parts.netloc):
        raise PyTritonClientInvalidUrlError(f"Invalid url {url!r}: it has no host. {_HINT}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise PyTritonClientInvalidUrlError(
            f"Invalid url {url!r}: user names, queries and fragments are not supported. {_HINT}"
        )
    base, of_model, _ = parts.path.partition("/v2/models")
    if of_model:  # a common mistake: `register` and `status` return such a URL
        raise PyTritonClientInvalidUrlError(
            f"Invalid url {url!r}: it is the address of a model. Pass the server's address, "
            f"{parts.scheme}://{parts.netloc}{base}, and the model's name separately."
        )
    if parts.path.strip("/") and parts.scheme in ("grpc", "grpcs"):
        raise PyTritonClientInvalidUrlError(f"Invalid url {url!r}: gRPC URLs have no path. {_HINT}")


def parse_urls(urls: Urls) -> tuple[TritonUrl, ...]:
    """Parse a URL or a list of URLs.

    Raises:
        PyTritonClientInvalidUrlError: a URL cannot be parsed
        PyTritonClientValueError: the list is empty, or the schemes differ
    """
    # Treat anything but a list as a single URL, so that its error describes the problem.
    given: Any = urls if isinstance(urls, (list, tuple)) else [urls]
    parsed = tuple(TritonUrl.from_url(url) for url in given)
    if not parsed:
        raise PyTritonClientValueError("At least one url is required, got an empty list.")
    schemes = sorted({url.scheme for url in parsed})
    if len(schemes) > 1:
        raise PyTritonClientValueError(
            f"All urls of one client must have the same scheme; got {', '.join(schemes)}."
        )
    return parsed
