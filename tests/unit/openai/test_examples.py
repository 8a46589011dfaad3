"""The callables of examples/openai, run as by a worker; those that need a big package are at least compiled."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.models.tiny_llms import EXAMPLES, example
from unit.openai.test_serving import asked

from pytriton.openai.model import served
from pytriton.proxy.types import Request


def request(text: str, **fields: Any) -> Request:
    return asked("chat", {"messages": [{"role": "user", "content": text}], **fields})


async def answered(target: Any, asked: Request) -> Any:
    """Return the body of a non-streamed answer, or the error."""
    results = served(target, ["chat"])([asked])
    if not hasattr(results, "__aiter__"):
        results = _each(results)
    texts = [one[0]["text_output"][0].decode() async for one in results if one[0] is not None]
    return json.loads(texts[-1][1:] if texts[-1][0] == "e" else texts[-1].partition("\n")[2])


async def _each(results: Iterator[Any]) -> AsyncIterator[Any]:
    for one in results:
        yield one


def said(body: Any) -> str:
    text: str = body["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_compiles(path: Path) -> None:
    compile(path.read_text(), str(path), "exec")


def test_new_requests_join_a_running_batch() -> None:
    async def test() -> None:
        chat = example("continuous_batching").Chat()
        first = served(chat, ["chat"])([request("long", max_tokens=10_000)])
        await first.__anext__()  # the engine is in the middle of it
        bodies = await asyncio.gather(
            *(answered(chat, request(f"we {n}", max_tokens=n)) for n in range(1, 9))
        )
        for number, body in enumerate(bodies, 1):
            assert len(said(body).split()) == number
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"]["completion_tokens"] == number
        assert chat.engine.batches[0] == 1
        assert max(chat.engine.batches) == 9
        await first.aclose()  # its client has gone
        await asyncio.wait_for(chat.engine._stepping, 30)
        assert sum(chat.engine.batches) < 10_000

    asyncio.run(test())


def test_a_failing_engine_ends_all_its_requests() -> None:
    async def test() -> None:
        chat = example("continuous_batching").Chat()

        def fail(states: Any) -> Any:
            raise RuntimeError("out of memory")

        chat.engine._model.step = fail
        both = await asyncio.gather(
            *(answered(chat, request("we")) for _ in range(2)), return_exceptions=True
        )
        assert [str(one) for one in both] == ["out of memory"] * 2

    asyncio.run(test())


def with_upstream(
    answer: Callable[[Any], web.StreamResponse], test: Callable[[Any], Any]
) -> list[Any]:
    """Run a test with the example's callable and a server behind it; return the requests to that server."""
    asked: list[Any] = []

    async def handle(asking: web.Request) -> web.StreamResponse:
        asked.append(await asking.json())
        return answer(asking)

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handle)
        async with TestServer(app) as server:
            upstream = example("upstream").Upstream(str(server.make_url("/v1")), "theirs", "none")
            upstream._client.max_retries = 0
            await test(upstream)
            await upstream._client.close()

    asyncio.run(run())
    return asked


def test_an_upstream_servers_answer_is_passed_on() -> None:
    choice = {"index": 0, "delta": {"content": "hel"}, "finish_reason": None}
    chunks: list[dict[str, Any]] = [
        {"choices": [choice]},
        {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    ]
    head: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "theirs",
    }
    sent = (
        "".join(f"data: {json.dumps({**head, **one})}\n\n" for one in chunks) + "data: [DONE]\n\n"
    )

    async def test(upstream: Any) -> None:
        body = await answered(upstream, request("hi", temperature=0.5, top_k=3))
        assert (said(body), body["choices"][0]["finish_reason"]) == ("hello", "length")
        assert body["usage"]["prompt_tokens"] == 3

    asked = with_upstream(lambda _: web.Response(text=sent, content_type="text/event-stream"), test)
    assert (asked[0]["model"], asked[0]["temperature"], asked[0]["top_k"]) == ("theirs", 0.5, 3)
    assert asked[0]["stream"] is True


def test_the_error_of_an_upstream_server_is_passed_on() -> None:
    async def test(upstream: Any) -> None:
        error = await answered(upstream, request("hi"))
        assert (error["status"], error["code"]) == (400, "context_length_exceeded")

    error = {"message": "too long", "code": "context_length_exceeded"}
    with_upstream(lambda _: web.json_response({"error": error}, status=400), test)


def test_an_error_in_the_middle_of_an_upstream_stream_is_passed_on() -> None:
    choice = {"index": 0, "delta": {"content": "hel"}, "finish_reason": None}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs"}
    failed = {"error": {"message": "out of memory", "type": "server_error", "code": 500}}
    sent = [json.dumps(one) for one in ({**head, "choices": [choice]}, failed)]
    text = "".join(f"data: {one}\n\n" for one in sent)

    async def test(upstream: Any) -> None:
        error = await answered(upstream, request("hi"))
        assert (error["status"], error["code"]) == (502, "500")
        assert error["message"] == "out of memory"

    with_upstream(lambda _: web.Response(text=text, content_type="text/event-stream"), test)


def test_embeddings_of_similar_texts_are_close() -> None:
    made = example("embeddings").make("")(["A cat sees a dog", "a dog sees a cat", "other words"])
    near = made.vectors @ made.vectors.T
    assert near[0, 1] == pytest.approx(1)
    assert abs(near[0, 2]) < 0.5
    assert list(made.prompt_tokens) == [5, 5, 2]


def test_structured_output_matches_the_schema() -> None:
    pytest.importorskip("outlines_core")
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    target = example("structured").Structured()

    async def test() -> None:
        for seed in range(5):
            found = json.loads(
                said(await answered(target, request("x", response_format=form, seed=seed)))
            )
            assert isinstance(found["name"], str)
            assert isinstance(found["age"], int)
            assert set(found) == {"name", "age"}
        refused = await answered(target, request("x"))
        assert (refused["status"], refused["param"]) == (400, "response_format")

    asyncio.run(test())


def test_a_model_of_transformers_streams() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    body = asyncio.run(answered(example("transformers_chat").Chat(""), request("hi", max_tokens=5)))
    assert 1 <= body["usage"]["completion_tokens"] <= 6
    assert re.fullmatch(r".*", said(body), re.DOTALL)
