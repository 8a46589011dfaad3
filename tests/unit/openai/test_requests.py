"""How a request is parsed: typed fields, parts of messages, and what is refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pytriton.openai import APIError
from pytriton.openai.bodies import BODIES, MAX_VALUES, read_body
from pytriton.openai.parts import part_of, remote_urls
from pytriton.openai.requests import chat_request, completion_request

USER = {"role": "user", "content": "x"}


def test_fields_of_a_chat_request() -> None:
    body = {
        "model": "m", "messages": [{**USER, "name": "me"}], "stop": ["a", "b"], "max_tokens": 5, "top_k": 3,
        "max_completion_tokens": 7, "seed": 1, "tools": [{"type": "custom", "x": 1}], "temperature": 1, "n": None,
        "response_format": {"type": "json_object"}, "user": "u", "stream": None,
    }  # fmt: skip
    request = chat_request("chat", body)
    assert request.stop == ("a", "b")
    assert (request.max_tokens, request.seed, request.n, request.user) == (7, 1, 1, "u")
    assert request.extra == {"top_k": 3}
    assert request.body is body
    assert request.messages[0].name == "me"
    assert request.messages[0].text == "x"
    assert request.response_format == {"type": "json_object"}
    assert request.tools == ({"type": "custom", "x": 1},)
    assert chat_request("chat", {"messages": [USER], "stop": ["", "a"]}).stop == ("a",)


WRONG: list[tuple[str, Any, str | None]] = [
    ("chat", {"messages": [{**USER, "role": "pirate"}]}, "messages[0].role"),
    ("chat", {"messages": [USER], "temperature": 2.1}, "temperature"),
    ("chat", {"messages": [USER], "temperature": "hot"}, "temperature"),
    ("chat", {"messages": [USER], "n": 0}, "n"),
    ("chat", {"messages": [USER], "n": 10**30}, "n"),
    ("chat", {"messages": [USER], "stop": [1]}, "stop[0]"),
    ("chat", {"messages": [USER], "max_tokens": -1}, "max_tokens"),
    ("chat", {"messages": "x"}, "messages"),
    ("chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
    ("chat", {"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ("chat", {"messages": [{"role": "tool", "content": None}]}, "messages[0].content"),
    ("chat", {"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
    ("chat", {"messages": [USER], "tools": [{"function": {"name": 1}}]}, "tools[0].function.name"),
    ("chat", {"messages": [USER], "response_format": {"type": 1}}, "response_format.type"),
    (
        "chat",
        {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": None}},
        "response_format.json_schema",
    ),
    (
        "chat",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]},
        "messages[0].tool_calls[0].function",
    ),
    ("responses", {"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
    ("responses", {"input": "x", "text": {"format": 1}}, "text.format"),
    ("responses", {"input": "x", "reasoning": {"effort": 1}}, "reasoning.effort"),
    ("completions", {}, "prompt"),
    ("completions", {"prompt": [[1], -1]}, "prompt[1]"),
    ("embeddings", {"input": []}, "input"),
    ("embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
    ("responses", {"input": 1}, "input"),
    ("responses", {"input": "x", "temperature": -1}, "temperature"),
]


@pytest.mark.parametrize(("kind", "body", "param"), WRONG, ids=str)
def test_invalid_fields_are_named(kind: str, body: Any, param: str | None) -> None:
    with pytest.raises(APIError) as caught:
        read_body(body, BODIES[kind])
    assert caught.value.status == 400
    assert caught.value.param == param


def test_an_assistants_message_may_be_empty() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    said: list[Any] = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "function", "name": "f", "content": None},
    ]
    messages = chat_request("chat", {"messages": said}).messages
    assert [len(one.tool_calls) for one in messages] == [1, 1, 0]
    assert not any(one.parts for one in messages)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b'{"messages": "\xff"}',
        b'{"a":' + b"[" * 100_000,
        b"nan",
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"metadata":{"x":' + b"1" * 5000 + b"}}",
        b'{"messages":[{"role":"user","content":"x"}],"metadata":{"x":1e999}}',
        b'{"messages":[]} x',
    ],
    ids=lambda data: repr(data)[:60],
)
def test_bodies_other_than_json_objects_are_refused(data: bytes) -> None:
    with pytest.raises(APIError) as caught:
        read_body(data, BODIES["chat"])
    assert caught.value.status == 400


MANY = MAX_VALUES + 1


@pytest.mark.parametrize(
    "values",
    [b"{}," * MANY + b"{}", b'"",' * MANY + b'""', b"[" * MANY, rb'"\\",' * MANY + b"1"],
    ids=["objects", "texts", "deep", "escaped"],
)
def test_bodies_of_many_values_are_refused_before_they_take_memory(values: bytes) -> None:
    data = b'{"messages":[{"role":"user","content":[' + values + b"]}]}"
    tracemalloc.start()
    try:
        with pytest.raises(APIError) as caught:
            read_body(data, BODIES["chat"])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")
    assert most < 4 * len(data)


def test_a_long_text_is_one_value() -> None:
    text = rb'a,[{"'.replace(b'"', rb"\"") * MANY + rb"\\"
    data = b'{"messages":[{"role":"user","content":"' + text + b'"}]}'
    (message,) = read_body(data, BODIES["chat"]).messages  # type: ignore[attr-defined]
    assert message.content == 'a,[{"' * MANY + "\\"


def test_parts_are_decoded_and_nothing_is_fetched() -> None:
    image = part_of({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}, "p")
    assert (image.data, image.media_type, image.url) == (b"hi", "image/png", None)
    plain = part_of({"type": "input_image", "image_url": "DATA:,a%20b"}, "p")
    assert (plain.data, plain.media_type) == (b"a b", "text/plain")
    sound = part_of({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}}, "p")
    assert (sound.data, sound.media_type) == (b"hi", "audio/mp3")
    document = part_of(
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}}, "p"
    )
    assert (document.data, document.media_type) == (b"hi", "application/pdf")
    bare = part_of({"type": "file", "file": {"file_data": "aGk="}}, "p")
    assert (bare.data, bare.media_type, bare.url) == (b"hi", "", None)
    far = part_of({"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, "p")
    assert (far.data, far.url) == (None, "http://169.254.169.254/")
    assert part_of({"type": "new", "x": 1}, "p").raw == {"type": "new", "x": 1}


def escaped(url: str) -> bytes:
    part = part_of({"type": "image_url", "image_url": {"url": f"data:,{url}"}}, "p")
    assert part.data is not None
    return part.data


def test_escapes_are_decoded_anywhere() -> None:
    for shift in range(3):
        data = b"x" * shift + b"A%" * 50_000 + b"%4%"
        assert escaped("x" * shift + "%41%25" * 50_000 + "%4%") == data


def test_escaped_data_takes_little_memory() -> None:
    url = "%41" * 500_000
    tracemalloc.start()
    try:
        assert len(escaped(url)) == 500_000
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,\u00e9\u00e9"}},
        {"type": "image_url", "image_url": {"url": "data:nonsense"}},
        {"type": "input_audio", "input_audio": {"data": "%%%"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": {"a": 1}}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3\r\nX: y"}},
        {"type": "file", "file": {"file_data": "no base64"}},
        {"type": "text"},
        {"text": "x"},
    ],
    ids=str,
)
def test_invalid_parts_are_refused(part: dict[str, Any]) -> None:
    with pytest.raises(APIError) as caught:
        chat_request("chat", {"messages": [{"role": "user", "content": [part]}]})
    assert caught.value.status == 400
    assert str(caught.value.param).startswith("messages[0].content[0]")


def test_remote_urls_are_found_anywhere() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": "http://a"}},
        {"type": "input_image", "image_url": "ftp://b"},
        {"type": "input_file", "file_url": "file:///c"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "text", "text": "http://not.one"},
    ]
    found = [list(dict.fromkeys(remote_urls(part))) for part in parts]
    assert found == [["http://a"], ["ftp://b"], ["file:///c"], [], []]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "http://a"},
        {"type": "video", "video": ["data:,", "FILE:/etc/passwd"]},
        {"type": "image_url", "image_url": {"url": ["https://a"]}},
        {"type": "image", "source": {"of": {"type": "url", "at": " \tht\ntps://a"}}},
        {"type": "text", "text": "", "image": "\u00a0http://a"},
        {"type": "input_file", "file_data": "gopher://a"},
        {"type": "input_image", "image_url": "//a/b"},
    ],
    ids=str,
)
def test_remote_urls_of_any_shape_are_found(part: dict[str, Any]) -> None:
    """Fields that models' libraries treat as URLs count, such as `image` and `video`."""
    assert list(remote_urls(part))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "http://a"},
        {
            "type": "output_text",
            "text": "x",
            "annotations": [{"type": "url_citation", "url": "http://a"}],
        },
        {"type": "input_audio", "input_audio": {"data": "//uQxAAA", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "aGk=", "filename": "http://a"}},
        {"type": "image", "image": "data:image/png;base64,aGk=", "detail": "low: 1/2"},
        "http://a",
    ],
    ids=str,
)
def test_texts_and_data_are_not_remote_urls(part: Any) -> None:
    assert list(remote_urls(part)) == []


def test_prompts() -> None:
    assert completion_request({"prompt": "a"}).prompts == ("a",)
    assert completion_request({"prompt": [1, 2]}).prompts == ([1, 2],)
    assert completion_request({"prompt": ["a", [1]]}).prompts == ("a", [1])
    with pytest.raises(APIError):
        completion_request({"prompt": ["a", 1]})
    with pytest.raises(APIError):
        completion_request({"prompt": []})
    with pytest.raises(APIError):
        completion_request({"prompt": ["a", []]})
    assert completion_request({"prompt": "a", "max_tokens": 0, "echo": True}).max_tokens == 0
    assert len(completion_request({"prompt": ["a"] * 16, "n": 128}).prompts) == 16
    with pytest.raises(APIError, match="2176 choices") as caught:
        completion_request({"prompt": ["a"] * 17, "n": 128})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        {"input": "x", "previous_response_id": "r"},
        {"input": "x", "background": True},
        {"input": "x", "conversation": "conv_1"},
        {"input": "x", "prompt": {"id": "pmpt_1"}},
        {"input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "x"}]},
        {"input": []},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
        {"input": [{"type": "function_call", "call_id": 1, "name": "f", "arguments": "{}"}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": {}}]},
        {"input": [{"type": "computer_call"}]},
        {"input": [{"type": "x" * 100_000}]},
        {"input": [{"type": "message", "role": "nobody", "content": "x"}]},
        {"input": [{"role": "user"}]},
    ],
    ids=lambda body: str(body)[:80],
)
def test_unavailable_responses(body: dict[str, Any]) -> None:
    with pytest.raises(APIError) as caught:
        chat_request("responses", body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 500
