"""The headers that carry the access token."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.client.auth import create_auth_headers, extract_access_token_from_headers

HTTP = "triton-access-token"
GRPC = "triton-grpc-protocol-triton-access-token"


@pytest.mark.parametrize(
    ("protocol", "header"), [("http", HTTP), ("HTTP", HTTP), ("grpc", GRPC), ("gRPC", GRPC)]
)
def test_headers_of_a_protocol(protocol: str, header: str) -> None:
    assert create_auth_headers("secret", protocol) == {header: "secret"}


@pytest.mark.parametrize(
    ("token", "protocol", "said"),
    [
        ("", "http", "cannot be empty"),
        (None, "http", "cannot be empty"),
        ("t", "ftp", "Unsupported protocol: 'ftp'"),
        ("t", None, "Unsupported protocol: None"),
    ],
)
def test_invalid_headers(token: Any, protocol: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        create_auth_headers(token, protocol)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        (None, None),
        ({}, None),
        ({"other": "x"}, None),
        ({HTTP: ""}, None),
        ({HTTP: "t"}, "t"),
        ({"Triton-Access-Token": "t"}, "t"),
        ({GRPC: "t"}, "t"),
        ({HTTP: "t", GRPC: "t"}, "t"),
    ],
)
def test_reading_the_token(headers: dict[str, str] | None, token: str | None) -> None:
    assert extract_access_token_from_headers(headers) == token


def test_conflicting_tokens() -> None:
    with pytest.raises(ValueError, match="different access tokens"):
        extract_access_token_from_headers({HTTP: "a", GRPC: "b"})
