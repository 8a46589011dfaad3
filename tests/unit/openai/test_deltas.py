"""What callables yield: values that no client could read are refused, all others reach the client unchanged."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from unit.openai.test_serving import HELLO, asked, body_of, events_of, texts_of

from pytriton.openai import APIError, Delta, ToolCall, Usage
from pytriton.openai.deltas import deltas_of
from pytriton.openai.errors import WireError

CALLS: Any = [{"function": {"name": "f"}}]
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Delta(content=b"x"), "Delta.content must be a string, not bytes"),  # type: ignore[arg-type]
    (lambda: Delta(content=5), "Delta.content"),  # type: ignore[arg-type]
    (lambda: Delta(finish_reason=1), "Delta.finish_reason"),  # type: ignore[arg-type]
    (lambda: Delta(index="0"), "Delta.index must be an integer, not str"),  # type: ignore[arg-type]
    (lambda: Delta(index=True), "Delta.index"),
    (lambda: Delta(tool_calls=CALLS), r"tuple of pytriton\.openai\.ToolCall"),
    (lambda: Delta(logprobs=[]), "Delta.logprobs"),  # type: ignore[arg-type]
    (lambda: Delta(usage={"prompt_tokens": 1}), "Delta.usage"),  # type: ignore[arg-type]
    (lambda: ToolCall(arguments={"a": 1}), r"json\.dumps"),  # type: ignore[arg-type]
    (lambda: ToolCall(index=None), "ToolCall.index"),  # type: ignore[arg-type]
    (lambda: Usage(prompt_tokens=None), "Usage.prompt_tokens"),  # type: ignore[arg-type]
    (lambda: Usage(prompt_tokens=1.5), "Usage.prompt_tokens"),  # type: ignore[arg-type]
    (lambda: Usage(completion_tokens=-1), "between 0"),
    (lambda: Usage(completion_tokens=2**60), "between 0"),
]


@pytest.mark.parametrize(("make", "text"), WRONG, ids=[text for _, text in WRONG])
def test_unreadable_values_are_refused_at_the_source(make: Callable[[], Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make()


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), None, 1, {"content": "a"}], ids=repr)
@pytest.mark.parametrize("yields", [False, True])
def test_invalid_pieces_are_reported_by_type(value: Any, yields: bool) -> None:
    def give(request: Any) -> Any:
        return iter([value]) if yields else value

    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        texts_of(give, asked("chat", HELLO))


class Word(str, enum.Enum):
    A = "a"


def test_subclasses_of_numbers_and_strings_are_accepted() -> None:
    def give(request: Any) -> Iterator[Any]:
        yield np.str_("a")
        yield Word.A
        yield Delta(content=np.str_("b"), index=np.int64(0))
        yield Delta(usage=Usage(prompt_tokens=np.int64(3), completion_tokens=np.uint8(2)))

    for api in ("chat", "completions", "responses"):
        body = {**HELLO, "prompt": "x", "input": "x"}
        for stream in (False, True):
            texts = texts_of(give, asked(api, {**body, "stream": stream}))
            assert '"prompt_tokens":3,"completion_tokens":2' in texts[-1]
    whole = body_of(texts_of(give, asked("chat", HELLO)))
    assert whole["choices"][0]["message"]["content"] == "aab"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_event_is_one_line_for_clients_that_split_by_unicode_line_breaks(api: str) -> None:
    text = "a\u2028b\u2029c\x85d\r\n\n\x00\x0b\x0c\x1c\x1d\x1ee\U0001f600"
    stream = {**HELLO, "input": "x", "stream": True}
    texts = texts_of(lambda request: iter([text, text]), asked(api, stream))
    sent = "".join(one[1:] if one[0] == "s" else one.partition("\n")[2] for one in texts)
    lines = list(httpx.Response(200, content=sent.encode()).iter_lines())
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert events == events_of(texts)
    assert sum(one.startswith("data: ") or one.startswith("event: ") for one in lines) == sum(
        map(bool, lines)
    )
    said = (
        [one["choices"][0]["delta"].get("content", "") for one in events]
        if api == "chat"
        else [one["delta"] for one in events if "delta" in one]
    )
    assert "".join(said) == 2 * text


def test_unusual_chunks_of_other_servers_are_passed_on() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, {"text": "b"}]
    usage = {"prompt_tokens": -3, "completion_tokens": 2.0, "prompt_tokens_details": None}
    chunk = {
        "choices": [{"delta": {"content": parts, "tool_calls": [call]}, "index": None}],
        "usage": {**usage, "completion_tokens_details": {"reasoning_tokens": float("nan")}},
    }
    said, counted = deltas_of(chunk)
    assert said.content == "ab"
    assert said.tool_calls[0].arguments == '{"a":1}'
    assert counted.usage == Usage(completion_tokens=2)


@pytest.mark.parametrize(
    "error",
    [
        APIError(ValueError("long"), code=400),  # type: ignore[arg-type]
        APIError("x", retry_after_s=float("inf")),
        APIError("x", retry_after_s="soon"),  # type: ignore[arg-type]
        APIError("x", retry_after_s=-1, param=["a"]),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_errors_of_any_form_are_passed_on(error: APIError) -> None:
    """Other servers' codes are numbers, and an exception is sent as its text."""
    read = msgspec.json.decode(msgspec.json.encode(error.wire()), type=WireError).error()
    assert read.body() == error.body()
    assert read.message in ("long", "x")
    assert read.code in ("400", None)
    assert read.retry_after_s is None
