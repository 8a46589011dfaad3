"""Resolves the names of nodes, because HAProxy's configuration contains only IP addresses.

HAProxy rejects a configuration with an unresolvable name, so a single node could block all others. A temporary DNS
failure must not remove a node.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Optional

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.balancer.layout import Node, NodeEndpoint

#: Interval between lookups of a name. A lookup takes seconds if DNS does not answer.
_AGAIN_S = 30.0

Resolve = Callable[..., Sequence[Any]]


class _Found(NamedTuple):
    """The time and result of a lookup: the address, or the reason why the lookup failed."""

    address: str
    why: str
    at: float


class Names:
    """Cache of the last known IP address of each name.

    Args:
        resolve: function like socket.getaddrinfo
        clock: function like time.monotonic
    """

    def __init__(
        self,
        resolve: Resolve = socket.getaddrinfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._found: dict[str, _Found] = {}

    def resolved(self, node: Node) -> Node:
        """Return a copy of the node with the host names of its endpoints resolved to IP addresses.

        Raises:
            PyTritonBadParameterError: a name could not be resolved, and has never been resolved before
        """
        return replace(node, http=self._with_address(node.http), grpc=self._with_address(node.grpc))

    def _with_address(self, endpoint: Optional[NodeEndpoint]) -> Optional[NodeEndpoint]:
        if endpoint is None or is_ip(endpoint.host):
            return endpoint
        found = self._found.get(endpoint.host)
        if found is None or self._clock() - found.at >= _AGAIN_S:
            found = self._found[endpoint.host] = self._look_up(endpoint.host, found)
        if not found.address:
            raise PyTritonBadParameterError(
                f"the name {endpoint.host!r} does not resolve on this machine: {found.why}"
            )
        return endpoint._replace(address=found.address)

    def _look_up(self, name: str, before: Optional[_Found]) -> _Found:
        known = "" if before is None else before.address
        try:
            answers = self._resolve(name, None, proto=socket.IPPROTO_TCP)
        except (OSError, UnicodeError) as error:
            return _Found(known, str(error), self._clock())
        addresses = sorted({str(one[4][0]) for one in answers}, key=lambda one: (":" in one, one))
        if known not in addresses:
            # Otherwise a name with several addresses would make HAProxy reload constantly.
            known = addresses[0]
        return _Found(known, "", self._clock())


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
