"""Requests that are refused because a browser sent them for another site's page."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict
from support.cross_site_requests import CASES, Sent

from pytriton.dispatcher.http_server.browsers import Foreign, foreign_request

_PORT = 9090
_REBOUND = CIMultiDict({"host": "page.example.com:9090"})


@pytest.mark.parametrize("sent", CASES.values(), ids=CASES)
def test_requests_to_a_loopback_address(sent: Sent) -> None:
    headers = CIMultiDict(sent.headers_for(_PORT))
    found = foreign_request(sent.method, headers, ("127.0.0.1", _PORT))
    assert (found is not None) == sent.refused


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        (("127.5.0.1", 9090), True),
        (("::1", 9090, 0, 0), True),
        (("::ffff:127.0.0.1", 9090, 0, 0), True),
        (("192.0.2.7", 9090), False),
        (("fe80::1%eth0", 9090, 0, 2), False),
        ("/run/pytriton-daemon/management.sock", False),
        (None, False),
    ],
)
def test_a_public_name_is_refused_only_at_a_loopback_address(
    address: object, *, refused: bool
) -> None:
    """At other addresses clients use such names, and attackers who reach the address need no browser."""
    found = foreign_request("GET", _REBOUND, address)
    assert found is (Foreign.REBOUND if refused else None)


def test_a_host_without_a_port_means_the_default_port() -> None:
    headers = CIMultiDict({"host": "page.example.com"})
    assert foreign_request("GET", headers, ("127.0.0.1", 80)) is Foreign.REBOUND
    assert foreign_request("GET", headers, ("127.0.0.1", 443)) is Foreign.REBOUND
    assert foreign_request("GET", headers, ("127.0.0.1", 8080)) is None


def test_a_client_without_a_host_header_is_not_a_browser() -> None:
    assert foreign_request("POST", CIMultiDict(), ("127.0.0.1", 80)) is None
