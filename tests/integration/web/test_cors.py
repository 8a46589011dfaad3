"""Typed functions called by pages of other origins: those of the setting cors_origins, and others."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.real_daemon import FRONT, RunningDaemon

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")

ALLOWED, OTHER = "https://app.example", "https://other.example"
#: What a browser asks before it sends JSON.
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type,x-any",
    "Sec-Fetch-Site": "cross-site",
}


def double(x: int) -> int:
    return 2 * x


@pytest.fixture(scope="module")
def web() -> Iterator[RunningDaemon]:
    """A daemon that pages of one origin may use."""
    with RunningDaemon.start(cors_origins=(ALLOWED, "http://localhost:3000")) as daemon:
        daemon.client.register(double)
        yield daemon


def ask(
    daemon: RunningDaemon, method: str, path: str = "/double", body: Any = b"", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    client = http.client.HTTPConnection(daemon.http, timeout=60)
    client.request(method, path, body, headers)
    response = client.getresponse()
    answer = response.status, response.headers, response.read()
    client.close()
    return answer


@pytest.mark.parametrize("origin", [ALLOWED, "http://localhost:3000"])
def test_a_page_of_an_allowed_origin_may_call(web: RunningDaemon, origin: str) -> None:
    status, headers, body = ask(web, "OPTIONS", Origin=origin, **PREFLIGHT)
    assert (status, body) == (204, b"")
    assert headers["Access-Control-Allow-Origin"] == origin
    assert headers["Access-Control-Allow-Methods"] == "POST"
    assert headers["Access-Control-Allow-Headers"] == "content-type,x-any"
    assert headers["Access-Control-Allow-Credentials"] is None
    assert int(headers["Access-Control-Max-Age"]) > 0
    assert headers["Vary"] == "Origin"
    cross = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
    for body, status in ((b'{"x":4}', 200), (b'{"x":"a"}', 422)):  # it may read errors, too
        answer = ask(web, "POST", body=body, **cross, **{"Content-Type": "text/plain"})
        assert answer[0] in (status, 415)
        answer = ask(web, "POST", body=body, **cross, **{"Content-Type": "application/json"})
        assert answer[0] == status
        assert answer[1]["Access-Control-Allow-Origin"] == origin
        assert answer[1]["Vary"] == "Origin"


@pytest.mark.parametrize(
    "origin", [OTHER, "null", ALLOWED + ".evil.example", "http://app.example", ALLOWED + ":8443", "*", ""]
)  # fmt: skip
def test_a_page_of_another_origin_may_not(web: RunningDaemon, origin: str) -> None:
    preflight, request = ("OPTIONS", 405, PREFLIGHT), ("POST", 403, {"Content-Type": "text/plain"})
    for method, wanted, more in (preflight, request):
        status, headers, body = ask(web, method, body=b'{"x":4}', Origin=origin, **more)
        assert (status, json.loads(body)["status"]) == (wanted, wanted)
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_only_typed_routes_have_cors(web: RunningDaemon) -> None:
    cross = {"Origin": ALLOWED, "Sec-Fetch-Site": "cross-site"}
    for path in ("/v2/models/double/infer", "/v2/repository/index", "/nothing"):
        status, headers, _ = ask(web, "POST", path, b"{}", **cross)
        assert (status, headers["Access-Control-Allow-Origin"]) == (403, None)
    for method, headers_sent in (("OPTIONS", PREFLIGHT), ("PUT", {})):
        assert ask(web, method, "/nothing", Origin=ALLOWED, **headers_sent)[0] in (403, 404, 405)


def test_an_allowed_page_reads_the_description(web: RunningDaemon) -> None:
    status, headers, _ = ask(web, "GET", "/openapi.json", Origin=ALLOWED)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, ALLOWED)
    status, headers, _ = ask(web, "GET", "/openapi.json", Origin=OTHER)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, None)  # it cannot read it


def test_headers_of_a_preflight_cannot_fill_the_response(web: RunningDaemon) -> None:
    asked = {**PREFLIGHT, "Access-Control-Request-Headers": "x-" + "a" * 6000}
    status, headers, _ = ask(web, "OPTIONS", Origin=ALLOWED, **asked)
    assert status == 204
    assert headers["Access-Control-Allow-Headers"] is None
    assert headers["Access-Control-Allow-Origin"] == ALLOWED


def test_a_page_of_this_server_needs_no_setting(daemon: RunningDaemon) -> None:
    daemon.client.register(double)
    own = {"Origin": f"http://{daemon.http}", "Sec-Fetch-Site": "same-origin"}
    answer = ask(daemon, "POST", body=b'{"x":4}', **own, **{"Content-Type": "application/json"})
    assert (answer[0], answer[2]) == (200, b"8")
    status, headers, _ = ask(daemon, "OPTIONS", **{**PREFLIGHT, **own})
    assert (status, headers["Access-Control-Allow-Origin"]) == (405, None)


def test_every_origin_may_be_allowed() -> None:
    with RunningDaemon.start(cors_origins=("*",)) as daemon:
        daemon.client.register(double)
        status, headers, body = ask(
            daemon, "POST", body=b'{"x":4}', Origin=OTHER, **{"Content-Type": "application/json"}
        )
    assert (status, body, headers["Access-Control-Allow-Origin"]) == (200, b"8", OTHER)
