"""Addresses of a fleet's nodes, listed explicitly or resolved from a DNS name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Union

from pytriton.exceptions import DaemonNotRunningError, PyTritonBadParameterError

#: Default port of `control_tcp`, which the Helm chart and the documentation use.
CONTROL_PORT = 9440
#: Prefix of a name that resolves to several nodes.
DNS = "dns:"

Nodes = Union[str, Sequence[str]]
Resolve = Callable[..., Sequence[Any]]


def addresses_of(nodes: Nodes, resolve: Resolve = socket.getaddrinfo) -> list[str]:
    """Return the address of each node, in the form that `connect` accepts, in order and without duplicates.

    Args:
        nodes: `dns:NAME[:PORT]`, or addresses: `[tcp://]HOST[:PORT]`, or the path of a runtime directory of this
            machine. A string may contain several, separated by commas.
        resolve: like socket.getaddrinfo

    Raises:
        PyTritonBadParameterError: `nodes` contains no valid address
        DaemonNotRunningError: a name does not resolve
    """
    words = nodes.split(",") if isinstance(nodes, str) else [str(one) for one in nodes]
    words = [word.strip() for word in words if word.strip()]
    found: list[str] = []
    for word in words:
        found += _resolved(word, resolve) if word.startswith(DNS) else [_address(word)]
    if not found:
        raise PyTritonBadParameterError(
            f"nodes={nodes!r} contains no nodes. Pass dns:NAME[:PORT], or a list of HOST[:PORT]."
        )
    return list(dict.fromkeys(found))


def _address(word: str) -> str:
    if os.sep in word and not word.startswith("tcp://"):
        return os.path.abspath(os.path.expanduser(word))
    host, port = _host_and_port(word[len("tcp://") :] if word.startswith("tcp://") else word)
    return f"tcp://{host}:{port}"


def _resolved(word: str, resolve: Resolve) -> list[str]:
    host, port = _host_and_port(word[len(DNS) :])
    try:
        answers = resolve(host, port, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise DaemonNotRunningError(
            f"nodes={word!r}: the name {host!r} does not resolve: {error}. In Kubernetes, use the name of the "
            f"headless Service, which resolves once a pod is ready."
        ) from error
    # A node with addresses of both families would count as two nodes.
    families = {one[0] for one in answers}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    hosts = sorted({str(one[4][0]) for one in answers if one[0] == family})
    return [f"tcp://{_bracketed(one)}:{port}" for one in hosts]


def _host_and_port(text: str) -> tuple[str, int]:
    host, port = text, str(CONTROL_PORT)
    if text.startswith("["):
        host, _, after = text[1:].partition("]")
        port = after[1:] if after.startswith(":") else port
        host = f"[{host}]"
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    elif ":" in text:
        host = f"[{text}]"  # an IPv6 address
    if host in ("", "[]") or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise PyTritonBadParameterError(
            f"{text!r} is not the address of a node. Pass HOST, HOST:PORT, [IPV6]:PORT, dns:NAME[:PORT], or the "
            f"path of a runtime "
            "directory."
        )
    return host, int(port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
