"""Which URLs the clients accept, and what they mean."""

from __future__ import annotations

import pytest

from pytriton.client import ModelClient
from pytriton.client._transport.url import parse_urls
from pytriton.client.exceptions import PyTritonClientInvalidUrlError, PyTritonClientValueError
from pytriton.client.utils import TritonUrl, create_client_from_url


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("localhost", "http://localhost:8000"),
        ("localhost:9", "http://localhost:9"),
        ("192.0.2.7", "http://192.0.2.7:8000"),
        ("http://host", "http://host:8000"),
        ("HTTP://host", "http://host:8000"),
        ("grpc://host", "grpc://host:8001"),
        ("grpcs://host", "grpcs://host:8001"),
        ("https://host", "https://host:443"),
        ("https://host/triton/", "https://host:443/triton"),
        ("grpc://[::1]:7", "grpc://[::1]:7"),
        (" localhost:9 ", "http://localhost:9"),
        ("my_host:9", "http://my_host:9"),
    ],
)
def test_urls_are_parsed(url: str, meaning: str) -> None:
    parsed = TritonUrl.from_url(url)
    assert parsed.with_scheme == meaning
    assert parsed.with_scheme == f"{parsed.scheme}://{parsed.without_scheme}"
    assert parsed.is_grpc == parsed.scheme.startswith("grpc") != parsed.is_http
    assert parsed.is_secure == parsed.scheme.endswith("s")


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://user@host",
        "http://host?x=1",
        "http://a b",
        "grpc://host/path",
        None,
        8000,
    ],
)
def test_an_invalid_url(url: object) -> None:
    with pytest.raises(PyTritonClientInvalidUrlError, match=r"Invalid url .*Use host, host:port"):
        ModelClient(url, "m")  # type: ignore[arg-type]


def test_several_urls() -> None:
    assert [url.port for url in parse_urls(["a", "b:1"])] == [8000, 1]
    with pytest.raises(PyTritonClientValueError, match="At least one url"):
        parse_urls([])
    with pytest.raises(PyTritonClientValueError, match="same scheme; got grpc, http"):
        parse_urls(["a", "grpc://b"])


def test_tritonclients_own_client() -> None:
    with create_client_from_url("grpc://localhost:1") as client:
        assert type(client).__module__.startswith("tritonclient.grpc")
    with create_client_from_url("localhost:1", network_timeout_s=2) as client:
        assert type(client).__module__.startswith("tritonclient.http")


def test_model_urls_are_distinguished_from_server_urls() -> None:
    """`register` prints model URLs; a client would wait for such a server in vain."""
    with pytest.raises(
        PyTritonClientInvalidUrlError,
        match=r"address of a model.*server's address, http://h:1/base, and",
    ):
        parse_urls("http://h:1/base/v2/models/linear")
