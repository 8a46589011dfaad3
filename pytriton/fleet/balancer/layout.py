"""The nodes as a balancer sees them: where each takes requests, and for which models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional
from urllib.parse import urlsplit

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.served import NodeStatus
from pytriton.ipc import messages

#: Addresses that a daemon tells because it listens on all: the node's own name says where it is.
_OF_THE_MACHINE = ("127.0.0.1", "localhost", "::1")


class Endpoint(NamedTuple):
    """An address at which a node takes requests."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Node:
    """One node. A node that leaves gets no new requests."""

    name: str
    http: Optional[Endpoint] = None
    grpc: Optional[Endpoint] = None
    models: frozenset[str] = field(default_factory=frozenset)
    leaves: bool = False


def node_of(address: str, status: messages.Status) -> Node:
    """Return a node of the status of its daemon; its host is the one at which the daemon was asked."""
    host = _host(address)
    return Node(
        address,
        _endpoint(status.server.http_url, host),
        _endpoint(status.server.grpc_url, host),
        frozenset(one.name for one in status.models),
    )


def seen(before: Sequence[Node], now: Iterable[NodeStatus]) -> list[Node]:
    """Return the nodes as they are now; one that does not answer is as it was, for its health is HAProxy's to judge."""
    former = {one.name: one for one in before}
    found = []
    for one in now:
        if one.status is not None:
            found.append(node_of(one.node, one.status))
        elif one.node in former:
            found.append(former[one.node])
    return found


def _host(address: str) -> Optional[str]:
    return urlsplit(address).hostname if address.startswith("tcp://") else None


def _endpoint(url: str, host: Optional[str]) -> Optional[Endpoint]:
    if not url:
        return None
    parts = urlsplit(url)
    if parts.port is None or parts.hostname is None:
        raise PyTritonBadParameterError(f"a node says that it takes requests at {url!r}")
    own = parts.hostname if parts.hostname not in _OF_THE_MACHINE or host is None else host
    return Endpoint(own, parts.port, parts.scheme in ("https", "grpcs"))
