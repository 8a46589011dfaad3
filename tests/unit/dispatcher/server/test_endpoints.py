"""tritonserver's endpoints: ports chosen once, and the addresses for clients on this machine."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from support.ports import lasting_port

from pytriton._host.ports import PortError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.endpoints import Endpoint, Endpoints, reachable

_BACKLOG = 5
_TLS = {"grpc-use-ssl": "true", "grpc-server-cert": "/c.pem", "grpc-server-key": "/k.pem"}


def test_free_ports_replace_only_zeros() -> None:
    named = lasting_port()
    endpoints = Endpoints(DaemonConfig(http_port=named, grpc_port=0, metrics_port=0))
    assert endpoints.served[1] == Endpoint("grpc", "127.0.0.1", 0)
    endpoints.choose_ports()
    http, grpc, metrics = endpoints.served
    assert http == Endpoint("http", "127.0.0.1", named)
    assert len({named, grpc.port, metrics.port, 0}) == 4
    assert [endpoints.port(one.name) for one in endpoints.served] == [
        named,
        grpc.port,
        metrics.port,
    ]
    assert endpoints.urls()["grpc_url"] == f"grpc://127.0.0.1:{grpc.port}"


def test_a_used_port_is_reported_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        endpoints = Endpoints(DaemonConfig(http_port=0, grpc_port=port, metrics_port=0))
        with pytest.raises(PortError, match=rf"port {port} \(grpc_port\).* is in use"):
            endpoints.choose_ports()


def test_chosen_ports_are_chosen_again_by_the_next_call() -> None:
    """Somebody may have taken a chosen port before tritonserver listens on it."""
    endpoints = Endpoints(DaemonConfig(http_port=0, allow_grpc=False, allow_metrics=False))
    endpoints.choose_ports()
    first = endpoints.port("http")
    with socket.create_server(("127.0.0.1", first)):
        endpoints.choose_ports()
        assert endpoints.port("http") not in (0, first)


@pytest.mark.parametrize(
    ("settings", "urls"),
    [
        ({}, ("http://127.0.0.1:8000", "grpc://127.0.0.1:8001", "http://127.0.0.1:8002/metrics")),
        (
            {"http_address": "0.0.0.0", "grpc_address": "::1", "allow_metrics": False},
            ("http://127.0.0.1:8000", "grpc://[::1]:8001", ""),
        ),
        (
            {"allow_http": False, "tritonserver_options": _TLS},
            ("", "grpcs://127.0.0.1:8001", "http://127.0.0.1:8002/metrics"),
        ),
    ],
)
def test_addresses_for_clients(settings: dict[str, Any], urls: tuple[str, ...]) -> None:
    endpoints = Endpoints(DaemonConfig(**settings))
    assert tuple(endpoints.urls().values()) == urls
    assert tuple(endpoints.urls()) == ("http_url", "grpc_url", "metrics_url")
    assert endpoints.port("metrics") == (0 if settings.get("allow_metrics") is False else 8002)


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "[::1]"),
        ("fe80::1", "[fe80::1]"),
        ("10.0.0.7", "10.0.0.7"),
        ("host.example", "host.example"),
    ],
)
def test_addresses_that_reach_a_listener(address: str, reached: str) -> None:
    assert reachable(address) == reached


def test_all_endpoints_are_bound_and_can_be_bound_again() -> None:
    named = lasting_port()
    endpoints = Endpoints(DaemonConfig(http_port=0, grpc_port=named, allow_metrics=False))
    for _ in range(2):
        found = endpoints.listen(_BACKLOG)
        assert endpoints.port("grpc") == named
        assert sorted(found) == ["grpc", "http"]
        for name, listener in found.items():
            assert listener.getsockname() == ("127.0.0.1", endpoints.port(name))
            socket.create_connection(listener.getsockname()).close()
            listener.close()


def test_no_endpoint_stays_open_when_one_cannot_be_bound() -> None:
    free = lasting_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        endpoints = Endpoints(DaemonConfig(http_port=free, grpc_port=port, metrics_port=0))
        with pytest.raises(PortError, match=rf"port {port} \(grpc_port\).* is in use"):
            endpoints.listen(_BACKLOG)
    socket.create_server(("127.0.0.1", free)).close()
