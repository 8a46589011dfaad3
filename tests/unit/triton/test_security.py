"""TritonSecurityConfig: which endpoints require the token, and which token it is."""

from __future__ import annotations

from typing import Any

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
from pytriton.triton.settings import effective_security


def test_the_names() -> None:
    assert TRITON_ACCESS_HEADER == "triton-access-token"
    assert set(DEFAULT_PROTECTED_ENDPOINTS) == {
        "shared-memory", "model-repository", "statistics", "trace", "logging",
    }  # fmt: skip
    assert {
        *DEFAULT_PROTECTED_ENDPOINTS, "health", "metadata", "inference", "model-config",
    } == VALID_TRITON_ENDPOINTS  # fmt: skip


def test_a_token_is_created_by_default() -> None:
    token = Triton().get_access_token()
    assert token is not None
    assert len(token) == 43  # 256 bits
    assert Triton().get_access_token() != token


def test_both_fields_show_the_effective_values() -> None:
    security = TritonSecurityConfig()
    assert security.access_token is not None
    assert len(security.access_token) == 43
    assert security.restricted_endpoints == DEFAULT_PROTECTED_ENDPOINTS
    assert security.restricted_endpoints is not DEFAULT_PROTECTED_ENDPOINTS
    assert TritonSecurityConfig().access_token != security.access_token
    some = TritonSecurityConfig(restricted_endpoints=["inference"])
    assert some.restricted_endpoints == ["inference"]
    assert some.access_token is not None
    none = TritonSecurityConfig(restricted_endpoints=[])
    assert (none.access_token, none.restricted_endpoints) == (None, [])


def test_one_configuration_of_two_servers_has_one_token() -> None:
    security = TritonSecurityConfig()
    tokens = {Triton(security_config=security).get_access_token() for _ in range(2)}
    assert tokens == {security.access_token}


def test_a_server_keeps_its_original_configuration() -> None:
    security = TritonSecurityConfig(access_token="first")
    triton = Triton(security_config=security)
    security.access_token = "second"
    assert triton.get_access_token() == "first"


def test_no_token_is_needed_without_restrictions() -> None:
    assert (
        Triton(security_config=TritonSecurityConfig(restricted_endpoints=[])).get_access_token()
        is None
    )


@pytest.mark.parametrize("endpoints", [None, [], ["inference"]])
def test_a_given_token_is_used(endpoints: list[str] | None) -> None:
    security = TritonSecurityConfig(access_token="short+/=", restricted_endpoints=endpoints)
    assert Triton(security_config=security).get_access_token() == "short+/="


@pytest.mark.parametrize(
    ("named", "said"), [(["stats"], "stats"), ({"stats"}, "stats"), (["health", []], r"\[\]")]
)
def test_an_unknown_endpoint_is_named(named: Any, said: str) -> None:
    with pytest.raises(
        PyTritonValidationError,
        match=rf"Invalid endpoint names: {said}\. Valid endpoints are: health, inference,",
    ):
        TritonSecurityConfig(restricted_endpoints=named)


@pytest.mark.parametrize("token", ["with space", "", "comma,", "line\nbreak", "colon:"])
def test_an_unsendable_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(PyTritonValidationError, match=r"access token \(not shown\)") as caught:
        TritonSecurityConfig(access_token=token)
    assert not token or token not in str(caught.value)


def test_the_token_is_not_in_the_repr() -> None:
    assert "secret-token" not in repr(TritonSecurityConfig(access_token="secret-token"))


def test_restrictions_in_the_servers_own_format() -> None:
    word = "inference,shm:triton-access-token=abc=def"
    security = effective_security(TritonConfig(http_restricted_api=[word]), None)
    assert security.endpoints == ["inference", "shared-memory"]
    assert security.access_token == "abc=def"
    with pytest.raises(PyTritonValidationError, match="Prefer TritonSecurityConfig") as caught:
        effective_security(TritonConfig(grpc_restricted_protocol=["health:admin=hidden"]), None)
    assert "hidden" not in str(caught.value)
