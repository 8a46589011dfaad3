"""Token quotas: requests in flight reserve what they may use, and return what they did not use."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_harness import BEARER, HELLO, USAGE, Client, OpenAIHarness, key_file, post

from pytriton.dispatcher.openai.keys import KeyFile, KeyOwner, estimate_tokens
from pytriton.openai.bodies import BODIES, TensorsBody, read_body
from pytriton.openai.errors import APIError

REMAINING = "x-ratelimit-remaining-tokens"


def test_requests_at_the_same_time_do_not_overdraw_a_quota(tmp_path: Path) -> None:
    rig = OpenAIHarness([], keys_file=key_file(tmp_path, tokens_per_minute=100))

    async def test(client: Client) -> None:
        answers = asyncio.Event()
        rig.script[:] = [answers, f"u{USAGE}\n{{}}"]
        body = {**HELLO, "max_tokens": 60}
        first = [asyncio.ensure_future(post(client, body, headers=BEARER)) for _ in range(2)]
        while len(rig.asked) < 2:
            await asyncio.sleep(0)
        status, headers, text = await post(client, body, headers=BEARER)
        assert (status, headers[REMAINING]) == (429, "0")
        said = json.loads(text)["error"]
        assert said["code"] == "rate_limit_exceeded"
        assert (
            "100 tokens per minute, of which 122 are reserved for requests in progress"
            in said["message"]
        )
        answers.set()
        for status, _, _ in await asyncio.gather(*first):
            assert status == 200
        status, headers, _ = await post(client, body, headers=BEARER)
        assert (status, headers[REMAINING]) == (200, str(100 - 3 * 3))

    rig.run(test)


def test_refused_requests_use_no_quota(tmp_path: Path) -> None:
    rig = OpenAIHarness([], keys_file=key_file(tmp_path, tokens_per_minute=100), max_requests=0)
    remote = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}
    message = {"role": "user", "content": [remote]}

    async def test(client: Client) -> None:
        for body, expected in (
            ({**HELLO, "messages": [message]}, 400),
            ({**HELLO, "max_tokens": 1000}, 429),  # not among the requests
        ):
            status, headers, _ = await post(client, body, headers=BEARER)
            assert (status, headers[REMAINING]) == (expected, "100")

    rig.run(test)


def a_caller(folder: Path, tokens: int) -> KeyOwner:
    keys = KeyFile(Path(key_file(folder, tokens_per_minute=tokens)), print, lambda: 100.0)
    found = keys.authenticate(BEARER["Authorization"])
    assert found is not None
    return found


def test_a_request_larger_than_the_quota_is_admitted_alone(tmp_path: Path) -> None:
    caller = a_caller(tmp_path, 60)
    large = caller.admit(lambda usual: 1 << 40)
    with pytest.raises(APIError, match="Rate limit"):
        caller.admit(lambda usual: 1)
    large.settle(10)
    large.settle(10)  # only once
    assert caller.headers()[REMAINING] == "50"


def test_requests_without_a_limit_reserve_the_default(tmp_path: Path) -> None:
    caller = a_caller(tmp_path, 100_000)
    for _ in range(50):
        caller.admit(lambda usual: usual).settle(10)
    left = int(caller.headers()[REMAINING])
    caller.admit(lambda usual: usual)
    assert int(caller.headers()[REMAINING]) == left - 10


def said(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": one} for one in contents]


@pytest.mark.parametrize(
    ("kind", "body", "tokens"),
    [
        ("chat", {"messages": said("x" * 40)}, 100),
        ("chat", {"messages": said("x" * 4000)}, 1000),
        ("chat", {"messages": said("x" * 40, "y" * 8), "max_tokens": 5}, 17),
        ("chat", {"messages": said("x"), "max_tokens": 5, "max_completion_tokens": 7, "n": 3}, 22),
        ("chat", {"messages": said([{"type": "text", "text": "x" * 30}]), "max_tokens": 1}, 10),
        (
            "chat",
            {
                "messages": said(
                    [
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64," + "A" * 999},
                        },
                        {
                            "type": "input_audio",
                            "input_audio": {"data": "A" * 999, "format": "wav"},
                        },
                    ]
                ),
                "max_tokens": 1,
            },
            7,
        ),
        ("completions", {"prompt": ["x" * 4] * 3, "n": 2, "max_tokens": 10}, 63),
        ("completions", {"prompt": [1, 2, 3], "best_of": 4}, 400),
        ("completions", {"prompt": [[1, 2], [3]], "max_tokens": 0}, 3),
        ("responses", {"input": "x" * 8, "instructions": "y" * 8, "max_output_tokens": 6}, 10),
        ("embeddings", {"input": ["x" * 8, "y" * 8]}, 4),
    ],
)
def test_estimated_tokens_of_a_request(kind: str, body: dict[str, Any], tokens: int) -> None:
    read = read_body(json.dumps({"model": "m", **body}).encode(), BODIES[kind])
    assert estimate_tokens(read, 100) == tokens


def test_estimated_tokens_of_string_tensors() -> None:
    body = {"inputs": [{"name": "input_text", "data": ["x" * 8, "y" * 8]}]}
    assert estimate_tokens(read_body(json.dumps(body).encode(), TensorsBody), 100) == 4
