"""Ports: free ones, taken ones, and who has them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from pytriton.dispatcher.ports import PortError, check_port_free, free_port, port_holder


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_taken_port_is_refused_and_its_holder_named(taken: int) -> None:
    with pytest.raises(PortError) as error:
        check_port_free("127.0.0.1", taken, "http_port")
    assert f"port {taken} (http_port) on 127.0.0.1 is in use by pid {os.getpid()} (" in str(
        error.value
    )


def test_a_wildcard_address_meets_every_other(taken: int) -> None:
    with pytest.raises(PortError, match=f"pid {os.getpid()}"):
        check_port_free("0.0.0.0", taken)
    assert port_holder("localhost", taken) is not None


def test_the_same_port_of_another_address_is_free(taken: int) -> None:
    check_port_free("127.0.0.2", taken)
    assert port_holder("127.0.0.2", taken) is None


def test_a_port_shared_by_so_reuseport_counts_as_taken() -> None:
    """tritonserver's gRPC port has that option: two servers would split the calls."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(PortError, match="in use"):
            check_port_free("127.0.0.1", listener.getsockname()[1])


def test_free_ports() -> None:
    port = free_port("127.0.0.1")
    assert 1024 <= port <= 65535
    check_port_free("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", 65536, "not between 0 and 65535"),
        ("192.0.2.1", 0, "no address of this machine"),  # RFC 5737: nobody's
        ("not a host", 0, "not known"),
    ],
)
def test_what_cannot_be_listened_on_is_said(host: str, port: int, text: str) -> None:
    with pytest.raises(PortError, match=text):
        check_port_free(host, port)
