"""What a balancer knows about the nodes: where each one accepts requests, and for which models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Optional
from urllib.parse import urlsplit

from pytriton._protocol import messages, routes
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.placement_status import ABSENT, NodeStatus

#: Addresses that a daemon reports for any or the local interface. They are replaced by the node's host.
_OF_THE_MACHINE = ("127.0.0.1", "localhost", "::1")
#: States in which a model does not answer requests, and is not resumed by one.
_SILENT = (ABSENT, "starting", "restoring", "loading", "not_ready", "failed")
#: Characters allowed in HAProxy's files, so that a node's values cannot become directives of the configuration.
_MODEL = re.compile(r"[A-Za-z0-9._-]{1,255}")
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")


class NodeEndpoint(NamedTuple):
    """An address at which a node accepts requests. If `host` is a name, `address` is its IP address once resolved."""

    host: str
    port: int
    tls: bool = False
    address: str = ""

    def __str__(self) -> str:
        where = self.address or self.host
        return f"[{where}]:{self.port}" if ":" in where else f"{where}:{self.port}"


@dataclass(frozen=True)
class Node:
    """What a balancer knows about a node of the fleet.

    Attributes:
        name: address of the node's daemon
        http, grpc: where the node accepts requests
        models: names of the models whose requests it gets
        unready: names of models that it does not serve yet. Their requests fail with 503 while no other node serves them
        leaves: whether the node is being removed, so that it gets no new requests
        shares: model -> share of its requests that go to the nodes on which it is provisional, all together
        routes: path of a typed function -> its model, which is in `models` or `unready`
    """

    name: str
    http: Optional[NodeEndpoint] = None
    grpc: Optional[NodeEndpoint] = None
    models: frozenset[str] = field(default_factory=frozenset)
    unready: frozenset[str] = field(default_factory=frozenset)
    leaves: bool = False
    shares: Mapping[str, float] = field(default_factory=dict, hash=False)
    routes: Mapping[str, str] = field(default_factory=dict, hash=False)


def node_of(
    address: str, status: messages.Status, report: Callable[[str], None] = lambda _: None
) -> Node:
    """Create a node from its daemon's status. A wildcard or loopback address is replaced by the host in `address`.

    Args:
        address: address of the daemon
        status: the daemon's status
        report: function called for each model that is left out because HAProxy's files cannot contain its name

    Raises:
        PyTritonBadParameterError: the daemon reports an invalid address
    """
    host = _host(address)
    names = {one.name for one in status.models}
    models = {name for name in names if _MODEL.fullmatch(name)}
    for name in sorted(names - models):
        report(
            f"{address}: model {name!r} has no separate route: names in HAProxy's files may contain only "
            f"letters, digits, '.', '_' and '-'"
        )
    return Node(
        address,
        _endpoint(status.server.http_url, host),
        _endpoint(status.server.grpc_url, host),
        frozenset(models),
        shares={
            one.name: one.lease.share
            for one in status.models
            if one.name in models and one.lease is not None and 0 < one.lease.share < 1
        },
        routes={
            one.route: one.name
            for one in status.models
            if one.name in models and one.route and _is_route(one.route)
        },
    )


def update_nodes(
    before: Sequence[Node],
    now: Iterable[NodeStatus],
    report: Callable[[str], None] = lambda _: None,
) -> list[Node]:
    """Return the current nodes. A node that does not answer is kept unchanged, because HAProxy checks its health.

    A node with an invalid status is left out and reported with `report`, so that it does not block the others. A
    model that has just been added to a node, or whose node has a new address, gets requests there once it is ready:
    HAProxy considers new servers healthy until their second check, and until then the node could answer 404.
    """
    former = {one.name: one for one in before}
    found = []
    for one in now:
        if one.status is not None:
            try:
                node = node_of(one.node, one.status, report)
            except PyTritonBadParameterError as error:
                report(f"{one.node} is left out: {error}")
                continue
            new = _new_models(node, former)
            found.append(
                _without(
                    node,
                    {
                        model.name
                        for model in one.status.models
                        if model.state in _SILENT and (model.name in new or model.state == ABSENT)
                    },
                )
            )
        elif one.node in former:
            found.append(former[one.node])
    return found


def _new_models(node: Node, former: Mapping[str, Node]) -> frozenset[str]:
    """Return the models that are new on a node, or that it serves at a new address."""
    was = former.get(node.name)
    if was is None or (was.http, was.grpc) != (node.http, node.grpc):
        return node.models
    return node.models - was.models


def _without(node: Node, models: Set[str]) -> Node:
    shares = {name: share for name, share in node.shares.items() if name not in models}
    return replace(node, models=node.models - models, unready=node.models & models, shares=shares)


def _is_route(path: str) -> bool:
    """Return whether a node may serve a typed function at this path. If not, HAProxy's files cannot contain it either."""
    try:
        routes.check(path)
    except ValueError:
        return False
    return True


def _host(address: str) -> Optional[str]:
    return urlsplit(address).hostname if address.startswith("tcp://") else None


def _endpoint(url: str, host: Optional[str]) -> Optional[NodeEndpoint]:
    if not url:
        return None
    wrong = f"a node reports the address {url[:300]!r}, which is not a URL with a host and a port"
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError as error:
        raise PyTritonBadParameterError(f"{wrong}: {error}") from error
    if not port or name is None or not _HOST.fullmatch(name):
        raise PyTritonBadParameterError(wrong)
    own = name if name not in _OF_THE_MACHINE or host is None else host
    return NodeEndpoint(own, port, parts.scheme in ("https", "grpcs"))
