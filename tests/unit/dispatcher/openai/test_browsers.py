"""The OpenAI frontend and browsers: pages of other sites, and HTTP semantics of its answers."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.openai_harness import BEARER, HELLO, KEY, USAGE, Client, OpenAIHarness, key_file, post
from multidict import CIMultiDict

from pytriton.dispatcher.openai.server import cors_headers, refuse_foreign
from pytriton.openai.errors import APIError

ROUTE = "/v1/chat/completions"
PAGE = {"Origin": "https://a", "Sec-Fetch-Site": "cross-site"}
LIBRARY = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"


def request(method: str = "POST", **headers: str) -> Any:
    """A request to a loopback address; `sec_fetch_site` sets Sec-Fetch-Site."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    address = {"sockname": ("127.0.0.1", 8003)}
    return SimpleNamespace(
        method=method,
        headers=CIMultiDict({"Host": "gpu:8003", **named}),
        get_extra_info=address.get,
    )


@pytest.mark.parametrize(
    ("asked", "allowed", "is_refused"),
    [
        ({}, (), False),  # no browser
        ({"origin": "http://gpu:8003"}, (), False),
        ({"origin": "http://GPU:8003"}, (), False),
        # Over HTTP to another machine, browsers send no Sec-Fetch-Site.
        ({"origin": "http://evil"}, (), True),
        ({"origin": "http://gpu:8004"}, (), True),
        ({"origin": "null"}, (), True),  # a file, or a frame without rights
        ({"origin": ""}, (), True),
        ({"origin": "http://evil"}, ("http://evil",), False),
        ({"origin": "http://evil"}, ("http://evil:80",), True),
        ({"origin": "http://evil"}, ("*",), False),
        ({"origin": "http://gpu:8003", "sec_fetch_site": "cross-site"}, (), True),
        ({"origin": "https://chat", "sec_fetch_site": "same-origin"}, (), False),  # a proxy's Host
        ({"sec_fetch_site": "cross-site"}, ("*",), True),
        ({"sec_fetch_site": "same-site"}, (), True),
        ({"sec_fetch_site": "none"}, (), False),
        ({"sec_fetch_site": "odd"}, (), True),
    ],
)
def test_which_pages_may_run_models(
    asked: dict[str, str], allowed: tuple[str, ...], is_refused: bool
) -> None:
    refused = pytest.raises(APIError, match="are not allowed") if is_refused else nullcontext()
    with refused:
        refuse_foreign(request(**asked), allowed)
    refuse_foreign(request("GET", **asked), allowed)  # the browser hides the answer from the page


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_dns_rebinding_is_refused(method: str) -> None:
    """The page would read the answers; if the setting allows every page, only those answers are readable."""
    rebound = request(method, Host="page.example.com:8003")
    with pytest.raises(APIError, match="public name"):
        refuse_foreign(rebound, ())
    refuse_foreign(rebound, ("*",))


@pytest.mark.parametrize(
    ("asks", "may"),
    [
        ("authorization, x-stainless-os", True),
        ("a" * 65, False),
        (",".join(["a"] * 65), False),
        ("authorization\r\nSet-Cookie: a=b", False),
        ("é", False),
        ("", False),
    ],
)
def test_only_header_names_are_echoed(asks: str, may: bool) -> None:
    asked = request("OPTIONS", origin="https://a", access_control_request_headers=asks)
    reported = cors_headers(asked, ("https://a",))["Access-Control-Allow-Headers"]
    assert (reported == asks) is may
    assert may or reported.startswith("authorization")


def test_caches_separate_answers_by_origin() -> None:
    assert cors_headers(request(origin="https://b"), ()) == {}
    assert cors_headers(request(origin="https://b"), ("https://a",)) == {"Vary": "Origin"}
    assert cors_headers(request(), ("https://a",)) == {"Vary": "Origin"}


def test_a_page_may_send_the_headers_of_openai_libraries() -> None:
    async def test(client: Client) -> None:
        asks = {**PAGE, "Access-Control-Request-Headers": LIBRARY}
        async with client.options(ROUTE, headers=asks) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == "https://a"
            assert answer.headers["Access-Control-Allow-Headers"] == LIBRARY
            assert answer.headers["Access-Control-Max-Age"] == "600"
        asks["Access-Control-Request-Headers"] = "a" * 100
        async with client.options(ROUTE, headers=asks) as answer:
            assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
        status, headers, _ = await post(client, HELLO, headers=PAGE)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://a")
        assert "retry-after" in headers["Access-Control-Expose-Headers"]
        _, headers, _ = await post(client, HELLO)
        assert headers["Vary"] == "Origin"

    OpenAIHarness([f"u{USAGE}\n{{}}"], cors_origins=("https://a",)).run(test)


@pytest.mark.parametrize("allowed", [(), ("https://other",)])
def test_pages_of_other_sites_cannot_run_models(allowed: tuple[str, ...]) -> None:
    """Browsers send plain text without a preflight request."""
    rig = OpenAIHarness([f"u{USAGE}\n{{}}"], cors_origins=allowed)

    async def test(client: Client) -> None:
        for site in ("cross-site", "same-site"):
            plain = {**PAGE, "Sec-Fetch-Site": site, "Content-Type": "text/plain"}
            status, headers, text = await post(client, HELLO, headers=plain)
            assert (status, "origin_not_allowed" in text) == (403, True)
            assert "Access-Control-Allow-Origin" not in headers
        assert rig.asked == []
        for mine in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
            assert (await post(client, HELLO, headers=mine))[0] == 200

    rig.run(test)


def test_responses_follow_http(tmp_path: Path) -> None:
    keys = key_file(tmp_path, requests_per_minute=1)
    rig = OpenAIHarness([f"u{USAGE}\n{{}}"], keys_file=keys)

    async def test(client: Client) -> None:
        async with client.get(ROUTE) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        async with client.head("/v1/models") as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with client.head("/health") as answer:
            assert (answer.status, await answer.read()) == (503, b"")
        for status, left in ((200, "0"), (429, "0")):
            found, headers, _ = await post(client, HELLO, headers=BEARER)
            assert (found, headers["x-ratelimit-remaining-requests"]) == (status, left)
            assert 59 < float(headers["x-ratelimit-reset-requests"].rstrip("s")) <= 60
            assert "aiohttp" not in headers["Server"]
        for given in ("\u00e9", "\u0661", "a b", "a" * 129, ""):
            async with client.get(
                "/v1/models", headers={**BEARER, "x-request-id": given}
            ) as answer:
                assert answer.headers["x-request-id"].startswith("req_")

    rig.run(test)


@pytest.mark.parametrize(("key", "said"), [(KEY, b"100 Continue"), ("wrong", b"401 ")])
def test_a_body_is_requested_only_after_the_key_was_accepted(
    key: str, said: bytes, tmp_path: Path
) -> None:
    async def test(client: Client) -> None:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(
            f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert said in await reader.readline()
        writer.write(b"{}")
        if key == KEY:
            await reader.readline()
            assert b" 400 " in await reader.readline()
        writer.close()

    OpenAIHarness([], keys_file=key_file(tmp_path)).run(test)


def test_a_server_that_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton.dispatcher.openai.server._HEALTH_S", 0.05)
    asked = []

    async def test(client: Client) -> None:
        async def hang() -> bool:
            asked.append(1)
            return bool(await asyncio.Event().wait())

        monkeypatch.setattr(rig.frontend.triton, "is_ready", hang)
        answers = await asyncio.gather(*(client.get("/health") for _ in range(20)))
        assert {one.status for one in answers} == {503}
        assert len(asked) < 20  # they wait for the same

    rig = OpenAIHarness([])
    rig.run(test)
