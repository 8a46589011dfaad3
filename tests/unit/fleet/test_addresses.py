"""Names of nodes, and the addresses that they resolve to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pytriton.exceptions import DaemonNotRunningError, PyTritonBadParameterError
from pytriton.fleet.addresses import addresses_of


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a", ["tcp://a:9440"]),
        ("a:1, b", ["tcp://a:1", "tcp://b:9440"]),
        (["tcp://10.0.0.1:5", "10.0.0.1:5"], ["tcp://10.0.0.1:5"]),
        (["[::1]:7", "fe80::2"], ["tcp://[::1]:7", "tcp://[fe80::2]:9440"]),
        ("/run/one", ["/run/one"]),
    ],
)
def test_addresses(nodes: Any, expected: list[str]) -> None:
    assert addresses_of(nodes) == expected


@pytest.mark.parametrize("nodes", ["", [], "a:", "a:0", "a:65536", ":9", "tcp://a/b", "dns:"])
def test_addresses_without_a_node_are_refused(nodes: Any) -> None:
    with pytest.raises(PyTritonBadParameterError):
        addresses_of(nodes)


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(V4, "10.0.0.2"), (V4, "10.0.0.1"), (V4, "10.0.0.2")], ["10.0.0.1", "10.0.0.2"]),
        ([(V6, "fd00::1"), (V4, "10.0.0.1")], ["10.0.0.1"]),  # one node, not two
        ([(V6, "fd00::1")], ["[fd00::1]"]),
    ],
)
def test_a_name_resolves_to_each_of_its_addresses_once(
    answers: list[tuple[Any, str]], expected: list[str]
) -> None:
    def resolve(host: str, port: int, proto: int) -> list[Any]:
        assert (host, port, proto) == ("models", 9440, socket.IPPROTO_TCP)
        return [(family, None, proto, "", (address, port)) for family, address in answers]

    assert addresses_of("dns:models", resolve) == [f"tcp://{one}:9440" for one in expected]


def test_a_name_that_does_not_resolve() -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(DaemonNotRunningError, match=r"'models' does not resolve.*headless"):
        addresses_of("dns:models:1", resolve)
