"""Callables behind the OpenAI API, run as by a worker: what they are given, and what is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from unit.openai import client_types

from pytriton.openai import APIError, ChatRequest, Delta, ToolCall, Usage, invocation
from pytriton.openai.model import served
from pytriton.proxy.types import Request

TEXTS = ["chat", "completions", "responses"]
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def asked(api: str, body: dict[str, Any]) -> Request:
    envelope = {"api": api, "id": "chatcmpl_123", "model": "m", "body": body}
    return Request({"request": np.array([json.dumps(envelope).encode()], object)})


def texts_of(target: Callable[..., Any], request: Request, kinds: list[str] = TEXTS) -> list[str]:
    """Return the sent texts except keep-alives (`s`), which depend on the machine's speed."""
    model = served(target, kinds)
    results = model([request])
    if hasattr(results, "__aiter__"):

        async def collected() -> list[Any]:
            return [one async for one in results]

        results = asyncio.run(collected())
    texts = [one[0]["text_output"][0].decode() for one in results if one[0] is not None]
    return [text for text in texts if text != "s"]


def body_of(texts: list[str]) -> Any:
    usage, _, rest = texts[-1].partition("\n")
    assert usage[0] == "u"
    return json.loads(rest)


def events_of(texts: list[str]) -> list[Any]:
    sent = "".join(text[1:] if text[0] == "s" else text.partition("\n")[2] for text in texts)
    lines = [line for line in sent.split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines]


def generator(request: ChatRequest) -> Iterator[str]:
    yield "a"
    yield "b"


async def async_generator(request: ChatRequest) -> AsyncIterator[str]:
    yield "a"
    yield "b"


def function(request: ChatRequest) -> str:
    return "ab"


def pieces(request: ChatRequest) -> list[Any]:
    return ["a", Delta(content="b")]


async def coroutine(request: ChatRequest) -> str:
    return "ab"


async def coroutine_of_pieces(request: ChatRequest) -> AsyncIterator[str]:
    return async_generator(request)


def chunks(request: ChatRequest) -> Iterator[dict[str, Any]]:
    yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}
    yield {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}


class Called:
    def __call__(self, request: ChatRequest) -> Iterator[str]:
        return generator(request)


KINDS = [
    generator, async_generator, function, pieces, coroutine, coroutine_of_pieces, chunks, Called(),
]  # fmt: skip


@pytest.mark.parametrize("target", KINDS, ids=lambda one: getattr(one, "__name__", "Called"))
def test_any_kind_of_callable_gives_a_body_and_a_stream(target: Callable[..., Any]) -> None:
    body = client_types.chat(body_of(texts_of(target, asked("chat", HELLO))))
    assert body.choices[0].message.content == "ab"
    assert body.choices[0].finish_reason == "stop"
    assert body.model == "m"
    texts = texts_of(target, asked("chat", {**HELLO, "stream": True}))
    said = [client_types.chat_chunk(one) for one in events_of(texts)]
    assert "".join(one.choices[0].delta.content or "" for one in said) == "ab"
    assert said[0].choices[0].delta.role == "assistant"
    assert [one.choices[0].finish_reason for one in said][-1] == "stop"


def test_it_can_be_pickled() -> None:
    model = cloudpickle.loads(cloudpickle.dumps(served(generator, TEXTS)))
    assert next(iter(model([asked("chat", HELLO)]))) == [None]


def test_tool_calls_are_assembled_from_pieces() -> None:
    def calling(request: ChatRequest) -> Iterator[Delta]:
        yield Delta(tool_calls=(ToolCall(name="look", arguments='{"at":'),))
        yield Delta(tool_calls=(ToolCall(arguments="1}"), ToolCall(name="go", index=1, id="mine")))

    body = client_types.chat(body_of(texts_of(calling, asked("chat", HELLO))))
    calls: Any = body.choices[0].message.tool_calls
    assert calls is not None
    assert [(one.function.name, one.function.arguments) for one in calls] == [
        ("look", '{"at":1}'),
        ("go", ""),
    ]
    assert calls[1].id == "mine"
    assert body.choices[0].finish_reason == "tool_calls"
    assert body.choices[0].message.content is None
    streamed = events_of(texts_of(calling, asked("chat", {**HELLO, "stream": True})))
    sent = [call for one in streamed for call in one["choices"][0]["delta"].get("tool_calls", ())]
    assert [one["index"] for one in sent] == [0, 0, 1]
    assert sent[0]["id"]
    assert "id" not in sent[1]


def test_usage_is_reported_or_counted_and_streamed_on_request() -> None:
    def saying(request: ChatRequest) -> Iterator[Any]:
        yield "a"
        yield Delta(usage=Usage(prompt_tokens=7, completion_tokens=2), finish_reason="length")

    body = body_of(texts_of(saying, asked("chat", HELLO)))
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (7, 9)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body_of(texts_of(generator, asked("chat", HELLO)))["usage"]["completion_tokens"] == 2
    options = {"stream": True, "stream_options": {"include_usage": True}}
    said = events_of(texts_of(saying, asked("chat", {**HELLO, **options})))
    assert [one["usage"] and one["usage"]["total_tokens"] for one in said] == [None, None, 9]
    assert said[-1]["choices"] == []
    plain = events_of(texts_of(saying, asked("chat", {**HELLO, "stream": True})))
    assert all("usage" not in one for one in plain)


def test_several_answers_are_distinguished() -> None:
    def two(request: ChatRequest) -> Iterator[Delta]:
        for index in range(request.n):
            yield Delta(content=f"{index}!", index=index)

    body = body_of(texts_of(two, asked("chat", {**HELLO, "n": 2})))
    assert [one["message"]["content"] for one in body["choices"]] == ["0!", "1!"]
    with pytest.raises(IndexError, match="the request has 1 choices"):
        texts_of(lambda request: Delta(content="", index=1), asked("chat", HELLO))


def test_completions() -> None:
    def echo(request: Any) -> Iterator[Delta]:
        for index, prompt in enumerate(request.prompts):
            yield Delta(content=f"<{prompt}>", index=index)

    body = body_of(texts_of(echo, asked("completions", {"prompt": ["a", "b"], "stop": "."})))
    answer = client_types.completion(body)
    assert [one.text for one in answer.choices] == ["<a>", "<b>"]
    said = events_of(texts_of(echo, asked("completions", {"prompt": [1, 2], "stream": True})))
    assert [one["choices"][0]["text"] for one in said] == ["<[1, 2]>", ""]


def _first_only(request: Any) -> Iterator[Any]:
    """Answer like a callable that expects one prompt and gives one answer."""
    assert (request.n, len(request.prompts)) == (request.body["n"], 1) or request.body["n"] == 2
    yield f"<{request.prompt}>"
    yield Delta(
        content="!", finish_reason="length", usage=Usage(prompt_tokens=3, completion_tokens=2)
    )


async def _first_only_async(request: Any) -> AsyncIterator[Any]:
    for piece in _first_only(request):
        yield piece


@pytest.mark.parametrize("target", [_first_only, _first_only_async])
def test_a_callable_that_answers_once_is_called_for_each_prompt_and_choice(target: Any) -> None:
    several = {"prompt": ["a", "b"], "n": 2}
    body = body_of(texts_of(target, asked("completions", several)))
    assert [(one["index"], one["text"], one["finish_reason"]) for one in body["choices"]] == [
        (0, "<a>!", "length"), (1, "<a>!", "length"), (2, "<b>!", "length"), (3, "<b>!", "length"),
    ]  # fmt: skip
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (12, 8)
    said = events_of(texts_of(target, asked("completions", {**several, "stream": True})))
    texts: dict[int, str] = {}
    for (choice,) in (one["choices"] for one in said):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "<a>!", 1: "<a>!", 2: "<b>!", 3: "<b>!"}


def test_several_answers_from_a_callable_that_gives_one() -> None:
    calls: list[int] = []

    def once(request: ChatRequest) -> Any:
        calls.append(request.n)
        return "an answer" if request.n == 1 else Delta(content="the first", index=0)

    body = body_of(texts_of(once, asked("chat", {**HELLO, "n": 3})))
    contents = [one["message"]["content"] for one in body["choices"]]
    assert (contents, calls) == (["the first", "an answer", "an answer"], [3, 1, 1])
    body_of(texts_of(once, asked("responses", {"input": "hello"})))
    assert calls == [3, 1, 1, 1]


def test_a_call_for_one_answer_must_not_give_another() -> None:
    def odd(request: ChatRequest) -> Any:
        return Delta(content="x", index=2 - request.n)

    with pytest.raises(IndexError, match="the request has a single choice"):
        texts_of(odd, asked("chat", {**HELLO, "n": 2}))


def test_responses() -> None:
    def calling(request: ChatRequest) -> Iterator[Any]:
        assert [one.role for one in request.messages] == ["system", "user", "assistant", "tool"]
        assert request.messages[3].text == "4"
        assert request.tools[0]["function"]["name"] == "add"
        assert request.response_format == {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {}},
        }
        yield Delta(reasoning="hm")
        yield "It"
        yield " is"
        yield Delta(tool_calls=(ToolCall(name="add", arguments="{}"),))

    body = {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
            {"type": "reasoning", "id": "r", "summary": []},
        ],
        "instructions": "Add.",
        "tools": [{"type": "function", "name": "add", "parameters": {}}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    }
    whole = client_types.response(body_of(texts_of(calling, asked("responses", body))))
    assert whole.output_text == "It is"
    assert [one.type for one in whole.output] == ["reasoning", "message", "function_call"]
    events = events_of(texts_of(calling, asked("responses", {**body, "stream": True})))
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert [one["delta"] for one in events if one["type"] == "response.output_text.delta"] == [
        "It",
        " is",
    ]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert [one["type"] for one in events[-1]["response"]["output"]] == [
        one.type for one in whole.output
    ]


def test_interleaved_tool_calls_are_reassembled() -> None:
    """Agents run a tool when its item is done, and need its name and all arguments."""

    def mixing(request: ChatRequest) -> Iterator[Any]:
        yield Delta(tool_calls=(ToolCall(name="f"), ToolCall(index=1)))
        yield Delta(tool_calls=(ToolCall(arguments='{"a":'),))
        yield "I "
        yield Delta(tool_calls=(ToolCall(name="g", arguments='{"b":2}', index=1),))
        yield "look"
        yield Delta(tool_calls=(ToolCall(arguments="1}"),))

    body = {"input": "x"}
    whole = client_types.response(body_of(texts_of(mixing, asked("responses", body))))
    expected = [("f", '{"a":1}'), ("g", '{"b":2}')]
    calls: list[Any] = [one for one in whole.output if one.type == "function_call"]
    assert [(one.name, one.arguments) for one in calls] == expected
    assert whole.output_text == "I look"
    events = events_of(texts_of(mixing, asked("responses", {**body, "stream": True})))
    client_types.check_response_events(events)
    for index, (name, arguments) in enumerate(expected):
        mine = [one for one in events if one.get("output_index") == index]
        assert "".join(one["delta"] for one in mine if "delta" in one) == arguments
        reported, done = mine[-2:]
        assert reported["type"] == "response.function_call_arguments.done"
        assert (reported["name"], reported["arguments"]) == (name, arguments)
        assert done["type"] == "response.output_item.done"
        assert (done["item"]["name"], done["item"]["arguments"]) == (name, arguments)
        assert [one["type"] for one in mine].count(done["type"]) == 1
    said = [one["type"] for one in events if one.get("output_index") == 2]
    assert said.count("response.output_item.added") == said.count("response.output_item.done") == 1
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    streamed = events_of(texts_of(mixing, asked("chat", {**HELLO, "stream": True})))
    sent = [call for one in streamed for call in one["choices"][0]["delta"].get("tool_calls", ())]
    assert [one["function"].get("name") for one in sent if one["index"] == 1] == [None, "g"]


def test_errors_of_the_callable_and_of_the_request() -> None:
    def refusing(request: ChatRequest) -> Iterator[str]:
        yield "a"
        raise APIError("too long", code="context_length_exceeded")

    said = texts_of(refusing, asked("chat", {**HELLO, "stream": True}))
    assert said[-1][0] == "e"
    assert json.loads(said[-1][1:])["code"] == "context_length_exceeded"
    wrong = json.loads(texts_of(generator, asked("chat", {"messages": []}))[0][1:])
    assert (wrong["status"], wrong["param"]) == (400, "messages")
    other = json.loads(texts_of(generator, asked("completions", {}), ["chat"])[0][1:])
    assert other["status"] == 404
    with pytest.raises(TypeError, match="not int"):
        texts_of(lambda request: 1, asked("chat", HELLO))


def test_clients_of_triton_get_texts() -> None:
    inputs = {"text_input": np.array([b"hello"], object)}
    seen = []

    def see(request: ChatRequest) -> Iterator[str]:
        seen.append(request)
        yield from "ab"

    assert texts_of(see, Request(inputs, {"temperature": 0.5, "triton_x": 1})) == ["ab"]
    assert seen[0].temperature == 0.5
    assert seen[0].messages[0].text == "hello"
    stream = {**inputs, "stream": np.array([True])}
    assert texts_of(see, Request(stream, {})) == ["a", "b"]
    with pytest.raises(ValueError, match="temperature"):
        texts_of(see, Request(inputs, {"temperature": 9}))


def test_generators_are_closed_when_the_request_is_cancelled() -> None:
    closed = []

    def endless(request: ChatRequest) -> Iterator[str]:
        try:
            while True:
                yield "a"
        finally:
            closed.append("sync")

    results = served(endless, TEXTS)([asked("chat", HELLO)])
    next(results)
    results.close()

    async def endless_async(request: ChatRequest) -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
        finally:
            closed.append("async")

    async def give_up() -> None:
        answers = served(endless_async, TEXTS)([asked("chat", HELLO)])
        await answers.__anext__()
        await answers.aclose()

    asyncio.run(give_up())
    assert closed == ["sync", "async"]


@pytest.mark.parametrize("api", TEXTS)
def test_json_of_any_depth_is_answered_or_refused(api: str) -> None:
    content = '"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x"'
    for depth in (*range(1, 1100, 37), *range(940, 1010), 100_000):
        nested = f'{{"a":{"[" * depth}{"]" * depth}}}'
        body = f'{{{content},"metadata":{nested},"tools":[{nested}]}}'
        envelope = f'{{"api":"{api}","id":"c_1","model":"m","body":{body}}}'
        (text,) = texts_of(generator, Request({"request": np.array([envelope.encode()], object)}))
        assert text[0] in "ue", depth
        if text[0] == "e":
            assert json.loads(text[1:])["status"] == 400, depth


def test_probabilities_of_all_pieces_are_kept() -> None:
    one: dict[str, Any] = {"token": "a", "logprob": -1.0, "top_logprobs": []}

    def give(request: Any) -> Iterator[Any]:
        yield Delta(content="a", logprobs={"content": [one], "refusal": None})
        yield Delta(content="a", logprobs={"content": [one]})
        yield Delta(content="", logprobs={"content": []}, finish_reason="stop")
        yield Delta(logprobs={"content": None})

    answer = client_types.chat(body_of(texts_of(give, asked("chat", HELLO))))
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 2


def test_a_refusal_becomes_a_refusal_of_the_responses_api() -> None:
    def give(request: Any) -> Iterator[Any]:
        yield "Well. "
        yield Delta(refusal="I will ")
        yield Delta(refusal="not.")

    whole = client_types.response(body_of(texts_of(give, asked("responses", {"input": "x"}))))
    assert whole.output_text == "Well. "
    refusal: Any = whole.output[1]
    assert (refusal.type, refusal.content[0].type) == ("message", "refusal")
    assert refusal.content[0].refusal == "I will not."
    events = events_of(texts_of(give, asked("responses", {"input": "x", "stream": True})))
    client_types.check_response_events(events)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert [one["type"] for one in events if one.get("output_index") == 1] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


URLS = [
    "data:",
    "data:image/png;base64",
    "data:image/png;base64,é",
    "data:image/png;base64,A",
    "data:,;base64" + ",=" * 1_000_000,
    "data:" + "a" * 1_000_000,
    "data:a/b" + ";c=d" * 1_000_000,
    "data:text/plain," + "%" * 1_000_000,
    "data:text/plain,%zz%",
    "data:image/png;base64," + "=" * 1_000_000,
]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url[:32])
def test_invalid_data_urls_are_refused_early(url: str) -> None:
    given: list[Any] = []

    def look(request: ChatRequest) -> str:
        given.append(request.messages[0].parts[0].data)
        return "seen"

    part = {"type": "image_url", "image_url": {"url": url}}
    texts = texts_of(look, asked("chat", {"messages": [{"role": "user", "content": [part]}]}))
    if texts[-1][0] == "e":
        refused = json.loads(texts[-1][1:])
        assert refused["code"] in ("invalid_data_url", "invalid_base64")
        assert len(texts[-1]) < 500
        assert not given
    else:
        assert isinstance(given[0], bytes)


@pytest.mark.parametrize(("every_s", "signs"), [(0.0, 2), (1e9, 0)])
def test_a_non_streamed_answer_sends_keepalives(
    monkeypatch: pytest.MonkeyPatch, every_s: float, signs: int
) -> None:
    """By which the server notices that its client is gone."""
    monkeypatch.setattr(invocation, "_KEEPALIVE_INTERVAL_S", every_s)
    results = served(generator, ["chat"])([asked("chat", HELLO)])
    texts = [one[0]["text_output"][0].decode() for one in results if one[0] is not None]
    assert texts[:-1] == ["s"] * signs
    assert body_of(texts)["choices"][0]["message"]["content"] == "ab"
