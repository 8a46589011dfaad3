"""TritonSecurityConfig: what asks for the token, and which token it is."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.triton import (
    DEFAULT_PROTECTED_ENDPOINTS,
    TRITON_ACCESS_HEADER,
    VALID_TRITON_ENDPOINTS,
    Triton,
    TritonConfig,
    TritonSecurityConfig,
)
from pytriton.triton.settings import secured


def test_the_names() -> None:
    assert TRITON_ACCESS_HEADER == "triton-access-token"
    assert set(DEFAULT_PROTECTED_ENDPOINTS) == {
        "shared-memory", "model-repository", "statistics", "trace", "logging",
    }  # fmt: skip
    assert set(VALID_TRITON_ENDPOINTS) == {
        *DEFAULT_PROTECTED_ENDPOINTS, "health", "metadata", "inference", "model-config",
    }  # fmt: skip


def test_by_default_a_token_is_made() -> None:
    token = Triton().get_access_token()
    assert token is not None
    assert len(token) == 43  # 256 bits
    assert Triton().get_access_token() != token


def test_nothing_restricted_needs_no_token() -> None:
    assert (
        Triton(security_config=TritonSecurityConfig(restricted_endpoints=[])).get_access_token()
        is None
    )


@pytest.mark.parametrize("endpoints", [None, [], ["inference"]])
def test_a_given_token_is_used(endpoints: list[str] | None) -> None:
    security = TritonSecurityConfig(access_token="short+/=", restricted_endpoints=endpoints)
    assert Triton(security_config=security).get_access_token() == "short+/="


def test_an_unknown_endpoint_is_named() -> None:
    with pytest.raises(
        PyTritonValidationError,
        match=r"Invalid endpoint names: stats\. Valid endpoints are: health,",
    ):
        TritonSecurityConfig(restricted_endpoints=["stats"])


@pytest.mark.parametrize("token", ["with space", "", "comma,", "line\nbreak", "colon:"])
def test_a_token_that_cannot_travel_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(PyTritonValidationError, match=r"access token \(not shown\)") as caught:
        TritonSecurityConfig(access_token=token)
    assert not token or token not in str(caught.value)


def test_the_token_is_not_in_the_repr() -> None:
    assert "secret-token" not in repr(TritonSecurityConfig(access_token="secret-token"))


def test_restrictions_in_the_servers_own_words() -> None:
    word = "inference,shm:triton-access-token=abc=def"
    security = secured(TritonConfig(http_restricted_api=[word]), None)
    assert security.endpoints == ["inference", "shared-memory"]
    assert security.access_token == "abc=def"
    with pytest.raises(PyTritonValidationError, match="Rather use TritonSecurityConfig") as caught:
        secured(TritonConfig(grpc_restricted_protocol=["health:admin=hidden"]), None)
    assert "hidden" not in str(caught.value)
