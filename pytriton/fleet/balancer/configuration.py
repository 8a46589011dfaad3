"""Generates HAProxy's configuration from the nodes and their models. The same nodes always yield the same text.

    http, grpc          frontends: the model's name is in the path, or in the first message (field 1 in all of KServe's)
      ▼ models.map      path of a typed function ▶ model ▶ backend
    NAME                a backend for each model, if there are few: health is that model's own readiness
                          (also while it is provisional on some of its nodes, which get their share of requests only)
    set-N               otherwise one for each set of nodes with the same models: health is that of the nodes in `all`
    set-N-seq           the same nodes for requests with a sequence header: its hash selects the node consistently
    packed              gRPC calls whose model HAProxy cannot find, because they are compressed or the name comes late:
                          the nodes that have all models. Without such nodes, these calls are rejected
    none                models that no node serves at the moment. It has no servers, so HAProxy answers 503
    all                 everything else: health, server metadata, unknown models. Checks each node

A check costs a request per second for each model and node, so many models share one: that of the node. With three
nodes there are at most seven sets, however many models; with many nodes there may be as many sets as models.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.balancer import grpc_calls
from pytriton.fleet.balancer.dns import is_ip
from pytriton.fleet.balancer.layout import Node, NodeEndpoint

#: HTTP paths for changes and status of a single node. The balancer must not send them to an arbitrary node.
_OF_ONE_NODE = (
    "/v2/repository/", "/v2/systemsharedmemory/", "/v2/cudasharedmemory/", "/v2/logging", "/v2/trace/"
)  # fmt: skip
_OF_ONE_NODE_BY_MODEL = "^/v2/models/[^/]*/trace/"
_REFUSAL = "this call affects only a single node: send it to the node itself"
#: Identifies a sequence, so that its requests reach the same node.
_SEQUENCE_HEADER = "x-sequence-id"
_ALL = "all"
_NONE = "none"
#: HAProxy's answer if no node can get the request. HAProxy checks the nodes once a second.
_UNAVAILABLE = (
    "    http-error status 503 content-type application/json string "
    """'{"error": "no node can serve this request at the moment"}' hdr Retry-After 1"""
)
#: Idle timeout of client connections. Old HAProxy workers may get requests for this long.
KEEP_ALIVE_S = 10
#: File with the servers that were down before a reload, in HAProxy's format. Otherwise HAProxy would consider all servers
#: healthy until their second check.
STATE_FILE = "servers.state"
_TOO_MANY = 65535
#: HAProxy accepts 1 to 256.
_FULL_WEIGHT = 200


@dataclass(frozen=True)
class BalancerSettings:
    """The settings of a balancer.

    Attributes:
        http: HTTP listening address, HOST:PORT; empty: none
        grpc: gRPC listening address
        certificate: file with the certificate and key (PEM) that clients see; empty: no TLS
        node_ca: file with the CA certificates of nodes with TLS
        request_timeout_s: maximum wait for a response, and between two messages of a stream, in seconds
        max_connections: maximum number of client connections; additional connections wait in the kernel. 0: HAProxy's
            default, which depends on the limit of open files
        own_backends: maximum number of models with separate backends. With more models, those on the same nodes share
            a backend
        node_name: name in the certificates of all nodes; empty: the host name of each node
    """

    http: str = "127.0.0.1:8000"
    grpc: str = "127.0.0.1:8001"
    certificate: str = ""
    node_ca: str = ""
    request_timeout_s: float = 600.0
    max_connections: int = 0
    own_backends: int = 200
    node_name: str = ""


class Files(NamedTuple):
    """The contents of haproxy.cfg and models.map."""

    configuration: str
    models: str


class _Backend(NamedTuple):
    """An HAProxy backend.

    If `check` is empty, its servers have the health of those in `all`. `hashed`: requests are distributed by the
    sequence header.
    """

    name: str
    nodes: list[Node]
    check: str = ""
    weights: Mapping[str, int] = {}
    hashed: bool = False


def render(nodes: Sequence[Node], settings: BalancerSettings, folder: str) -> Files:
    """Generate HAProxy's files for these nodes.

    Args:
        nodes: nodes with distinct names
        settings: the balancer's settings
        folder: folder of the files and of HAProxy's socket

    Raises:
        PyTritonBadParameterError: a setting contains invalid characters, or a setting for nodes with TLS is missing
    """
    _check(settings, folder)
    there = sorted((one for one in nodes if not one.leaves), key=lambda one: one.name)
    backends, table = _backends(there, settings)
    packed = _packed(there)
    lines = _head(settings, folder)
    for protocol in ("http", "grpc"):
        if getattr(settings, protocol):
            lines += _frontend(protocol, settings, folder, packed if there else None)
            for one in [*backends, packed] if protocol == "grpc" else backends:
                lines += _backend(protocol, one, settings)
    text = "".join(f"{key} {value}\n" for key, value in table)
    return Files("\n".join(lines) + "\n", text)


def check_node(node: Node, settings: BalancerSettings) -> None:
    """Check that the settings for connections to this node are complete.

    Raises:
        PyTritonBadParameterError: the node uses TLS, but a setting for that is missing
    """
    for protocol in ("http", "grpc"):
        endpoint: Optional[NodeEndpoint] = getattr(node, protocol)
        if endpoint is not None and getattr(settings, protocol):
            _towards(endpoint, protocol, settings)


def server_name(node: Node) -> str:
    """Return HAProxy's name for a node: its address without invalid characters.

    If a character had to be replaced, a hash is appended, so that different addresses have different names.
    """
    text = node.name[len("tcp://") :] if node.name.startswith("tcp://") else node.name
    usual = re.fullmatch(r"[A-Za-z0-9._:\[\]-]+(/[0-9a-f]+)?", text) is not None
    name = re.sub(r"[^A-Za-z0-9._:-]", "_", text).strip("_") or "node"
    return name if usual else f"{name[:100]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _backends(
    nodes: Sequence[Node], settings: BalancerSettings
) -> tuple[list[_Backend], list[tuple[str, str]]]:
    there: dict[str, list[str]] = {}
    for one in nodes:
        for model in one.models:
            there.setdefault(model, []).append(one.name)
    models = sorted(there)
    on = {model: tuple(names) for model, names in there.items()}
    by_name = {one.name: one for one in nodes}
    sets = {names: _set_name(names) for names in sorted(set(on.values()))}
    own = len(models) <= settings.own_backends
    tried = {model for one in nodes for model in one.shares}
    backends = [_Backend(_ALL, list(nodes), "/v2/health/ready"), _Backend(_NONE, [])]
    for names, name in sets.items():
        members = [by_name[one] for one in names]
        backends += [] if own else [_Backend(name, members)]
        backends.append(_Backend(f"{name}-seq", members, hashed=True))
    for model in models:
        if own or model in tried:
            members = [by_name[one] for one in on[model]]
            ready = f"/v2/models/{model}/ready"
            backends.append(_Backend(f"model-{model}", members, ready, _weights(members, model)))
    table = [
        (model, f"model-{model}" if own or model in tried else sets[on[model]]) for model in models
    ]
    # Requests of sequences always use the backends for sets of nodes.
    table += [(f"seq:{model}", f"{sets[on[model]]}-seq") for model in models]
    unready = frozenset[str]().union(*(one.unready for one in nodes))
    table += [(model, _NONE) for model in sorted(unready.difference(models))]
    routes: dict[str, str] = {}
    for one in nodes:
        for path, model in one.routes.items():
            # Of several models with this path, one that is served.
            routes[path] = min(model, routes.get(path, model), key=lambda it: (it not in on, it))
    table += sorted(routes.items())
    return backends, table


def _packed(nodes: Sequence[Node]) -> _Backend:
    """Return the backend of the nodes that serve all models, so that each of these nodes can answer any call."""
    models = frozenset[str]().union(*(one.models for one in nodes))
    having = [one for one in nodes if one.grpc is not None and one.models == models]
    # Without weights, nodes with a provisional model would get more than its share of requests.
    return _Backend("packed", [one for one in having if not one.shares] or having)


def _weights(nodes: Sequence[Node], model: str) -> dict[str, int]:
    """Return each node's weight for a model that some nodes serve provisionally; otherwise an empty mapping."""
    tried = [one.name for one in nodes if model in one.shares]
    others = [one.name for one in nodes if model not in one.shares]
    if not tried or not others:
        return {}
    share = min(one.shares[model] for one in nodes if model in one.shares)
    # Weight of such a node relative to each of the others.
    ratio = share * len(others) / ((1 - share) * len(tried))
    light, heavy = (ratio, 1.0) if ratio < 1 else (1.0, 1 / ratio)
    return {
        **dict.fromkeys(tried, max(1, round(light * _FULL_WEIGHT))),
        **dict.fromkeys(others, max(1, round(heavy * _FULL_WEIGHT))),
    }


def _set_name(names: Sequence[str]) -> str:
    """Return a name for a set of nodes. It must not depend on other sets, because old HAProxy workers keep using it."""
    return f"set-{hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:10]}"


def _head(settings: BalancerSettings, folder: str) -> list[str]:
    wait = _milliseconds(settings.request_timeout_s)
    return [
        "# Generated by pytriton-daemon: changes are overwritten.",
        "global",
        *([f"    maxconn {settings.max_connections}"] if settings.max_connections else []),
        f"    stats socket {folder}/worker.sock mode 600 level admin expose-fd listeners",
        f"    server-state-file {folder}/{STATE_FILE}",
        f"    hard-stop-after {wait}",
        "    log stderr format raw local0 notice",
        "defaults",
        "    mode http",
        "    log global",
        "    option dontlognull",
        "    timeout connect 2s",
        "    timeout http-request 60s",
        f"    timeout http-keep-alive {KEEP_ALIVE_S}s",
        "    timeout queue 30s",
        f"    timeout client {wait}",
        f"    timeout server {wait}",
        # Only retry requests that were never sent, and on another server.
        "    retries 3",
        "    retry-on conn-failure",
        "    option redispatch 1",
        # A reload must not close a connection with a request in transit; the old worker answers it, knowing
        # only the old nodes.
        "    option idle-close-on-response",
        "    load-server-state-from-file global",
        _UNAVAILABLE,
        "    default-server check inter 1s fall 2 rise 1 observe layer4 error-limit 3 on-error mark-down",
    ]  # fmt: skip


def _frontend(
    protocol: str, settings: BalancerSettings, folder: str, packed: Optional[_Backend]
) -> list[str]:
    address = getattr(settings, protocol)
    table = f"map({folder}/models.map)"
    sequence = f"{{ req.hdr({_SEQUENCE_HEADER}) -m found }}"
    routes: list[str] = []
    tls = f" ssl crt {settings.certificate} alpn " if settings.certificate else ""
    if protocol == "grpc":
        how = f"{tls}h2" if tls else " proto h2"
        model = grpc_calls.reject_single_node_calls(_REFUSAL)
        model += grpc_calls.find_model(_milliseconds(settings.request_timeout_s))
        if packed is not None:
            model += grpc_calls.reject_hidden(sequence, served=bool(packed.nodes))
            routes += grpc_calls.use_packed(f"grpc:{packed.name}")
    else:
        how = f"{tls}h2,http/1.1" if tls else ""
        body = json.dumps({"error": _REFUSAL})
        refusal = (
            f"    http-request return status 403 content-type application/json string '{body}'"
        )
        # Decode the path, because nodes decode each %XX.
        model = [
            "    http-request set-var(txn.path) path,url_dec",
            f"{refusal} if {{ var(txn.path) -m beg {' '.join(_OF_ONE_NODE)} }}",
            f"{refusal} if {{ var(txn.path) -m reg {_OF_ONE_NODE_BY_MODEL} }}",
            "    http-request set-var(txn.model) var(txn.path),field(4,/) if { var(txn.path) -m beg /v2/models/ }",
            f"    http-request set-var(txn.model) var(txn.path),{table} if !{{ var(txn.model) -m found }}",
        ]
    return [
        f"frontend {protocol}",
        f"    bind {address}{how}",
        *model,
        "    http-request set-var-fmt(txn.key) seq:%[var(txn.model)] if { var(txn.model) -m found } "
        + sequence,
        f"    http-request set-var(txn.to) var(txn.key),{table} if {{ var(txn.key) -m found }}",
        f"    http-request set-var(txn.to) var(txn.model),{table} "
        "if { var(txn.model) -m found } !{ var(txn.to) -m found }",
        *routes,
        f"    use_backend {protocol}:%[var(txn.to)] if {{ var(txn.to) -m found }}",
        f"    default_backend {protocol}:{_ALL}",
    ]


def _backend(protocol: str, backend: _Backend, settings: BalancerSettings) -> list[str]:
    """Return the lines of a backend. A gRPC backend uses the health of the HTTP backend of the same name, if any."""
    lines = [f"backend {protocol}:{backend.name}"]
    if backend.hashed:
        lines += [f"    balance hash req.hdr({_SEQUENCE_HEADER})", "    hash-type consistent"]
    else:
        # A version that fails immediately has the fewest connections, and would attract all requests.
        lines.append(f"    balance {'roundrobin' if backend.weights else 'leastconn'}")
    if backend.check:
        lines += [
            "    option httpchk",
            f"    http-check send meth GET uri {backend.check} ver HTTP/1.1 hdr Host node",
            "    http-check expect status 200",
        ]
    return lines + _servers(protocol, backend, settings)


def _servers(protocol: str, backend: _Backend, settings: BalancerSettings) -> list[str]:
    lines = []
    for node in backend.nodes:
        endpoint: Optional[NodeEndpoint] = getattr(node, protocol)
        if endpoint is None:
            continue
        how = _towards(endpoint, protocol, settings)
        if node.name in backend.weights:
            how += f" weight {backend.weights[node.name]}"
        server = server_name(node)
        checking = "http" if settings.http and node.http is not None else protocol
        if not backend.check or checking != protocol:
            # `no-check` overrides default-server: this server's health is that of the other one.
            of = backend.name if backend.check else _ALL
            how += f" no-check track {checking}:{of}/{server}"
        elif protocol == "grpc" and node.http is not None:
            how += f" check-proto h1 port {node.http.port}"
        lines.append(f"    server {server} {endpoint}{how}")
    return lines


def _towards(endpoint: NodeEndpoint, protocol: str, settings: BalancerSettings) -> str:
    h2 = protocol == "grpc"
    if not endpoint.tls:
        return " proto h2" if h2 else ""
    if not settings.node_ca:
        raise PyTritonBadParameterError(
            f"The node at {endpoint} accepts only TLS. Set --node-ca to the CA certificates of the nodes."
        )
    name = settings.node_name or endpoint.host
    if is_ip(name):
        raise PyTritonBadParameterError(
            f"The node at {endpoint} uses TLS, but HAProxy does not verify IP addresses in certificates. Set "
            f"--node-name to the name in the nodes' certificates, or use host names as addresses of the nodes."
        )
    # Requests verify the name that they request; a health check requests the same one.
    checked = f" sni str({name}) check-sni {name} verifyhost {name}"
    return f" ssl verify required ca-file {settings.node_ca}{checked}" + (" alpn h2" if h2 else "")


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _check(settings: BalancerSettings, folder: str) -> None:
    texts: Iterable[tuple[str, str]] = (
        ("http", settings.http), ("grpc", settings.grpc), ("certificate", settings.certificate),
        ("node_ca", settings.node_ca), ("node_name", settings.node_name), ("folder", folder),
    )  # fmt: skip
    for name, text in texts:
        if any(char.isspace() or char in "\"'#\\%$(),{}" for char in text):
            raise PyTritonBadParameterError(
                f"{name}={text!r} cannot be used in HAProxy's configuration, because it contains white space, a "
                f"quote or a bracket."
            )
    for name in ("http", "grpc"):
        text = getattr(settings, name)
        port = text.rpartition(":")[2]
        if text and not (":" in text and port.isdecimal() and 0 < int(port) <= _TOO_MANY):
            raise PyTritonBadParameterError(f"{name}={text!r} must have the form HOST:PORT")
    if not settings.http and not settings.grpc:
        raise PyTritonBadParameterError("a balancer requires a listening address for HTTP or gRPC")
