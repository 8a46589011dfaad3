"""The OpenAI frontend with a fake tritonserver: what is refused, what is forwarded, keys and quotas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_harness import (
    BEARER,
    HELLO,
    KEY,
    USAGE,
    Client,
    OpenAIHarness,
    Script,
    key_file,
    post,
)
from yarl import URL

from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.openai.keys import KeyFile, KeysError
from pytriton.openai import APIError


def test_an_answer_in_one_piece_and_a_stream() -> None:
    rig = OpenAIHarness(["s", f'u{USAGE}\n{{"whole":1}}'])

    async def whole(client: Client) -> None:
        status, headers, text = await post(
            client, {**HELLO, "top_k": 4}, headers={"x-request-id": "mine"}
        )
        assert (status, json.loads(text), headers["x-request-id"]) == (200, {"whole": 1}, "mine")
        assert rig.asked[0]["body"]["top_k"] == 4
        assert (rig.asked[0]["api"], rig.asked[0]["model"]) == ("chat", "m")
        assert 'gen_ai_token_type="output",le="+Inf"} 1' in rig.frontend.meters.text()

    rig.run(whole)

    async def stream(client: Client) -> None:
        status, headers, text = await post(client, {**HELLO, "stream": True})
        assert status == 200
        assert headers["Content-Type"].startswith("text/event-stream")
        assert text == "data: a\n\ndata: b\n\ndata: [DONE]\n\n"

    OpenAIHarness(["sdata: a\n\n", f"u{USAGE}\ndata: b\n\n"]).run(stream)


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ([{"error": "it broke"}], 500, "model_error"),
        ([{"error": "exceeds maximum queue size"}], 429, "overloaded"),
        (['e{"message":"long","status":400,"type":"t","code":"c"}'], 400, "c"),
        ([], 500, "model_error"),
    ],
    ids=str,
)
def test_errors_before_and_within_a_stream(script: Script, status: int, code: str) -> None:
    async def before(client: Client) -> None:
        for stream in (False, True):
            got, headers, text = await post(client, {**HELLO, "stream": stream})
            assert (got, json.loads(text)["error"]["code"]) == (status, code)
            assert ("Retry-After" in headers) == (status == 429)

    OpenAIHarness(script).run(before)

    async def within(client: Client) -> None:
        got, _, text = await post(client, {**HELLO, "stream": True})
        events = text.strip().split("\n\n")
        assert (got, events[0], events[-1]) == (200, "data: a", "data: [DONE]")
        assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == code

    OpenAIHarness(["sdata: a\n\n", *script]).run(within)


WRONG: list[tuple[Any, int, str]] = [
    (b"", 400, "invalid_json"),
    (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', 400, "invalid_json"),
    (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"other":"\xff"}',
        400,
        "invalid_json",
    ),
    (b'{"a":' + b"[" * 200_000, 400, "invalid_json"),
    ({**HELLO, "temperature": 3}, 400, "invalid_value"),
    ({**HELLO, "model": "nobody"}, 404, "model_not_found"),
    ({**HELLO, "model": ""}, 400, "missing_required_parameter"),
    ({"messages": HELLO["messages"]}, 400, "missing_required_parameter"),
    ({"model": "m", "messages": [{"role": "user"}]}, 400, "missing_required_parameter"),
    (b" " * 2_000, 413, "request_too_large"),
]


@pytest.mark.parametrize(("body", "status", "code"), WRONG, ids=lambda one: str(one)[:40])
def test_invalid_requests_never_reach_a_model(body: Any, status: int, code: str) -> None:
    rig = OpenAIHarness([], max_body_size=1_000 if status == 413 else 1 << 20)

    async def test(client: Client) -> None:
        got, _, text = await post(client, body)
        assert (got, json.loads(text)["error"]["code"]) == (status, code)
        assert rig.asked == []

    rig.run(test)


def test_remote_urls_are_refused_unless_allowed() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}

    async def refused(client: Client) -> None:
        status, _, text = await post(client, body)
        assert (status, json.loads(text)["error"]["code"]) == (400, "remote_url_not_allowed")
        output = {
            "type": "function_call_output",
            "output": [{"type": "input_image", "image_url": "file:///x"}],
        }
        status, _, _ = await post(client, {"model": "m", "input": [output]}, "/v1/responses")
        assert status == 400

    OpenAIHarness([]).run(refused)

    async def passed(client: Client) -> None:
        assert (await post(client, body))[0] == 200

    OpenAIHarness([f"u{USAGE}\n{{}}"], remote_urls=True).run(passed)


@pytest.mark.parametrize("kind", ["message", "function_call_output"])
@pytest.mark.parametrize("read", ["content", "output"])
def test_other_fields_do_not_hide_a_remote_url(kind: str, read: str) -> None:
    """The item's type determines the field that the worker reads, whatever other fields the item has."""
    hidden = [{"type": "input_image", "image_url": "http://169.254.169.254/"}]
    item = {"type": kind, "role": "user", "content": [], "output": [], read: hidden}
    rig = OpenAIHarness([f"u{USAGE}\n{{}}"])

    async def refused(client: Client) -> None:
        status, _, text = await post(client, {"model": "m", "input": [item]}, "/v1/responses")
        error = json.loads(text)["error"]
        assert (status, error["code"], error["param"]) == (
            400,
            "remote_url_not_allowed",
            "input[0]",
        )
        assert rig.asked == []

    rig.run(refused)


def test_too_many_requests_at_once() -> None:
    async def test(client: Client) -> None:
        hold = asyncio.Event()
        rig.script[:] = [hold, f"u{USAGE}\n{{}}"]
        first = asyncio.ensure_future(post(client, HELLO))
        while not rig.asked:
            await asyncio.sleep(0)
        status, headers, _ = await post(client, HELLO)
        assert (status, headers["Retry-After"]) == (429, "2")
        hold.set()
        assert (await first)[0] == 200

    rig = OpenAIHarness([], max_requests=1)
    rig.run(test)


def test_slow_requests_time_out() -> None:
    async def test() -> None:
        waits = asyncio.ensure_future(asyncio.Event().wait())
        with pytest.raises(asyncio.TimeoutError):
            await within(waits, 0.01)
        assert waits.cancelled()

    asyncio.run(test())


class Limit:
    """The time limit of an answer, which expires when the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = False
        patch.setattr("pytriton.dispatcher.openai.completions.within", self._within)

    def ends(self) -> None:
        self._is_over = True

    async def _within(self, awaitable: Coroutine[Any, Any, None], timeout_s: float) -> None:
        if timeout_s != self._limit_s:  # of the end of a stream
            return await within(awaitable, timeout_s)
        task = asyncio.ensure_future(awaitable)
        try:
            while not self._is_over and not task.done():
                await asyncio.wait([task], timeout=0.01)
        finally:
            is_done = task.done()
            task.cancel()
            await asyncio.wait([task])
        if not is_done:
            raise asyncio.TimeoutError
        task.result()


def test_a_silent_stream_gets_comments_and_an_overdue_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = Limit(monkeypatch, 77.0)

    async def test(client: Client) -> None:
        rig.script[:] = [asyncio.Event()]
        body = json.dumps({**HELLO, "stream": True})
        async with client.post("/v1/chat/completions", data=body) as answer:
            assert answer.status == 200
            assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            limit.ends()
            text = await answer.text()
        assert '"code":"timeout"' in text
        assert text.endswith("data: [DONE]\n\n")
        while not rig.given_up:
            await asyncio.sleep(0)

    rig = OpenAIHarness([], keepalive_s=0.02, timeout_s=77.0)
    rig.run(test)


def test_routes_without_a_model() -> None:
    async def test(client: Client) -> None:
        async with client.get("/v1/models/m") as answer:
            assert (await answer.json())["created"] == 5
        async with client.get("/v1/models/nobody") as answer:
            assert answer.status == 404
        async with client.get("/v1/nothing") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_url")
        async with client.get("/v1/chat/completions") as answer:
            code = (await answer.json())["error"]["code"]
            assert (answer.status, code) == (405, "method_not_supported")

    OpenAIHarness([]).run(test)


def test_keys_are_required_and_never_revealed(tmp_path: Path) -> None:
    rig = OpenAIHarness([], keys_file=key_file(tmp_path, models=["other"]))

    async def test(client: Client) -> None:
        for header in ("", "Bearer ", "Bearer wrong-secret", f"Basic {KEY}", "Bearer \udcff"):
            shown = {"Authorization": header} if header.isascii() else {}
            status, _, text = await post(client, HELLO, headers=shown)
            assert status == 401
            assert "wrong-secret" not in text
        async with client.get("/v1/models", headers=BEARER) as answer:
            assert (await answer.json())["data"] == []
        said_of = {}  # of a model that this key may not use, and of an unknown one
        for name in ("m", "n"):
            status, _, text = await post(client, {**HELLO, "model": name}, headers=BEARER)
            async with client.get(f"/v1/models/{name}", headers=BEARER) as answer:
                assert (status, answer.status, await answer.text()) == (404, 404, text)
            said_of[name] = text.replace(f"'{name}'", "'NAME'")
        assert said_of["m"] == said_of["n"]
        async with client.get("/metrics") as answer:
            assert answer.status == 401
        said = "".join(rig.said)
        assert said.count("requests without a valid key") == 1
        assert "secret" not in said
        assert KEY not in said

    rig.run(test)


def test_a_key_sees_the_metrics_of_its_own_models(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[key]]\nname = "a"\nkey = "{KEY}"\nmodels = ["other"]\n'
        '[[key]]\nname = "b"\nkey = "sk-0123456789-all"\n'
    )
    rig = OpenAIHarness(["s", f'u{USAGE}\n{{"whole":1}}'], keys_file=str(path))

    async def test(client: Client) -> None:
        every = {"Authorization": "Bearer sk-0123456789-all"}
        assert (await post(client, HELLO, headers=every))[0] == 200
        seen = []
        for key in ("sk-0123456789-all", KEY):
            headers = {"Authorization": f"Bearer {key}"}
            async with client.get("/metrics", headers=headers) as answer:
                text = await answer.text()
                assert "pytriton_openai_active_requests 0" in text
                seen.append('gen_ai_request_model="m"' in text)
        assert seen == [True, False]

    rig.run(test)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_quotas_refill(tmp_path: Path) -> None:
    clock = Clock()
    path = key_file(tmp_path, requests_per_minute=2, tokens_per_minute=60)
    caller = KeyFile(Path(path), print, clock).authenticate(BEARER["Authorization"])
    assert caller is not None
    for _ in range(2):
        caller.admit(lambda usual: 1).settle(None)
    with pytest.raises(APIError, match="2 requests per minute"):
        caller.admit(lambda usual: 1)
    clock.now += 30
    caller.admit(lambda usual: 1).settle(90)
    clock.now += 30
    with pytest.raises(APIError, match=r"60 tokens per minute\. Try") as caught:
        caller.admit(lambda usual: 1)
    assert caught.value.retry_after_s == pytest.approx(1)
    assert caller.headers()["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize("end", ["whole", "timeout", "gone"])
def test_aborted_streams_count_the_events_sent(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = OpenAIHarness([], keys_file=key_file(tmp_path, tokens_per_minute=60), timeout_s=77.0)
    limit = Limit(monkeypatch, 77.0)

    async def test(client: Client) -> None:
        last = f"u{USAGE}\ndata: e\n\n" if end == "whole" else asyncio.Event()
        rig.script[:] = ["sdata: a\n\ndata: b\n\n", "sdata: c\n\n", "sdata: d\n\n", last]
        caller = rig.frontend.keys.authenticate(BEARER["Authorization"])
        assert caller is not None
        used: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(caller, "record_usage", used.set_result)
        body = json.dumps({**HELLO, "stream": True})
        async with client.post("/v1/chat/completions", data=body, headers=BEARER) as answer:
            assert await answer.content.readuntil(b"d\n\n")
            if end == "timeout":
                limit.ends()
            if end != "gone":
                await answer.read()
        assert await used == (3 if end == "whole" else 4)

    rig.run(test)


def test_a_changed_key_file_is_reloaded(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("")
    said: list[str] = []
    clock = Clock()
    keys = KeyFile(path, said.append, clock)
    with pytest.raises(APIError):
        keys.authenticate(f"Bearer {KEY}")
    path.write_text(f'[[key]]\nname = "a"\nkey = "{KEY}"\n')
    clock.now += 2
    known = keys.authenticate(f"Bearer {KEY}")
    assert known is not None
    path.write_text(f'[[key]]\nname = "a"\nkey = "{KEY}"\n[[key]]\nname = "b"\nkey = "{KEY}0"\n')
    clock.now += 2
    assert keys.authenticate(f"Bearer {KEY}") is known  # with the rest of its quotas
    path.write_text("[[key]")
    clock.now += 2
    assert keys.authenticate(f"Bearer {KEY}0") is not None
    assert len(said) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[[key]]",
        '[[key]]\nname="a"',
        '[[key]]\nname="a"\nkey="short"',
        '[[key]]\nname="a"\nsha256="x"',
        "x = 1",
        "[",
    ],
)
def test_unusable_key_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(KeysError):
        KeyFile(path, print)


_ALIASES = ["meta-llama/Llama-3.1-8B-Instruct", "llama3:8b"]


def test_a_model_is_reachable_by_its_aliases() -> None:
    """The answer has the requested id, and the list contains all of them."""
    rig = OpenAIHarness([f"u{USAGE}\n{{}}"])
    rig.aliases = _ALIASES

    async def test(client: Client) -> None:
        for name in ("m", *_ALIASES):
            assert (await post(client, {**HELLO, "model": name}))[0] == 200
        assert [one["model"] for one in rig.asked] == ["m", *_ALIASES]
        assert (await post(client, {**HELLO, "model": "llama3"}))[0] == 404
        async with client.get("/v1/models") as answer:
            listed = (await answer.json())["data"]
        assert [(one["id"], one.get("root")) for one in listed] == [
            ("m", None), (_ALIASES[0], "m"), (_ALIASES[1], "m"),
        ]  # fmt: skip
        for path in (_ALIASES[0], _ALIASES[0].replace("/", "%2F"), "llama3%3A8b"):
            async with client.get(URL(f"/v1/models/{path}", encoded=True)) as answer:
                assert (await answer.json())["root"] == "m"

    rig.run(test)


def test_a_key_may_name_a_model_or_an_alias(tmp_path: Path) -> None:
    keys = key_file(tmp_path, models=[_ALIASES[1]])
    rig = OpenAIHarness([f"u{USAGE}\n{{}}"], keys_file=keys)
    rig.aliases = _ALIASES

    async def test(client: Client) -> None:
        for name, status in (("m", 404), (_ALIASES[0], 404), (_ALIASES[1], 200)):
            assert (await post(client, {**HELLO, "model": name}, headers=BEARER))[0] == status

    rig.run(test)


def test_the_access_token_allows_loading_and_unloading() -> None:
    """As with Triton's own OpenAI frontend; the frontend does not lend its own token to clients."""
    rig = OpenAIHarness([])
    rig.aliases = _ALIASES

    async def test(client: Client) -> None:
        token = {"triton-access-token": "right"}
        for name, verb in ((_ALIASES[0], "load"), ("m", "unload"), ("other", "load")):
            status, _, text = await post(client, b"", f"/v1/models/{name}/{verb}", headers=token)
            assert (status, json.loads(text)["status"]) == (200, f"{verb}ed")
        assert rig.controlled == [("m", "load"), ("m", "unload"), ("other", "load")]
        status, _, text = await post(client, b"", "/v1/models/none/load", headers=token)
        assert (status, "failed to load 'none'" in text) == (400, True)
        for wrong in ({}, {"triton-access-token": "wrong"}):
            status, _, text = await post(client, b"", "/v1/models/m/unload", headers=wrong)
            assert (status, json.loads(text)["error"]["code"]) == (403, "access_token_required")
        assert len(rig.controlled) == 4

    rig.run(test)
