"""Pieces that are available at the same time are sent together; none waits for a piece that is not available."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from unit.openai.test_serving import HELLO, asked

from pytriton.openai import ChatRequest
from pytriton.openai.model import served
from pytriton.openai.serving import ChunkCoalescer
from pytriton.proxy.results import sending
from pytriton.proxy.types import Request


@pytest.fixture(autouse=True)
def _each_piece_is_quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every piece count as immediate, even if the machine stalls between two of them."""
    if request.function is not test_slow_pieces_are_not_held_back:
        monkeypatch.setattr("pytriton.openai.serving._QUICK_S", 60.0)


def request(*, stream: bool = True) -> Request:
    return asked("chat", {**HELLO, "stream": stream})


async def answer(
    target: Callable[..., Any],
    sent: list[str],
    send: Callable[[str, str], bool] | None = None,
    yields: list[int] | None = None,
) -> None:
    """Answer a stream with a callable; `sent` gets what the worker's loop would send. `yields` gets the number of texts sent
    by the end of each `yield`, where the worker's loop waits for room.
    """

    def put_text(output: str, text: str) -> bool:
        assert output == "text_output"
        sent.append(text)
        return True

    sending.set(send or put_text)
    produced = served(target, ["chat"])([request()])
    try:
        async for results in produced:
            if results[0] is not None:
                sent.append(results[0]["text_output"][0].decode())
            if yields is not None:
                yields.append(len(sent))
    finally:
        await produced.aclose()


def run(target: Callable[..., Any], *how: Any) -> None:
    asyncio.run(answer(target, *how))


def contents(texts: list[str]) -> list[str]:
    """Return the pieces in the sent texts."""
    found: list[str] = []
    for text in texts:
        rest = text[1:] if text[0] == "s" else text.partition("\n")[2]
        events = [json.loads(line[6:]) for line in rest.split("\n") if line.startswith("data: ")]
        found += [one["choices"][0]["delta"].get("content", "") for one in events]
    return found


def test_a_burst_is_sent_in_few_parts() -> None:
    async def burst(request: ChatRequest) -> AsyncIterator[str]:
        for number in range(200):
            yield str(number)

    sent: list[str] = []
    run(burst, sent)
    assert contents(sent[:1]) == ["0"]
    assert len(sent) < 100
    assert contents(sent) == [*map(str, range(200)), ""]
    assert '"completion_tokens":200' in sent[-1].partition("\n")[0]


def test_text_is_not_held_back_during_an_await() -> None:
    sent: list[str] = []
    seen: list[int] = []

    async def pauses(request: ChatRequest) -> AsyncIterator[str]:
        for _ in range(20):
            yield "a"
            yield "b"
            yield "c"
            await asyncio.sleep(0)
            seen.append(len("".join(contents(sent))))

    run(pauses, sent)
    assert seen == [3 * number for number in range(1, 21)]


def test_text_before_an_error_is_sent_first() -> None:
    async def fails(request: ChatRequest) -> AsyncIterator[str]:
        yield "a"
        yield "b"
        yield "c"
        raise RuntimeError("broken")

    sent: list[str] = []
    with pytest.raises(RuntimeError, match="broken"):
        run(fails, sent)
    assert contents(sent) == ["a", "b", "c"]


def test_buffered_text_of_a_closed_stream_is_dropped() -> None:
    """Its end has been sent: for the proxy, a later part would be a protocol violation of the whole lane."""

    async def gives_up(request: ChatRequest) -> AsyncIterator[str]:
        yield "a"
        yield "b"
        raise asyncio.CancelledError

    sent: list[str] = []

    def put_text(output: str, text: str) -> bool:
        sent.append(text)
        return True

    async def first_piece() -> None:
        sending.set(put_text)
        produced = served(gives_up, ["chat"])([request()])
        await produced.__anext__()

    async def outlived() -> None:
        task = asyncio.ensure_future(first_piece())
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)  # the loop's next turn

    asyncio.run(outlived())
    assert contents(sent) == ["a"]


def test_slow_pieces_are_not_held_back() -> None:
    now = [0.0]
    due: list[Callable[[], None]] = []
    sent: list[str] = []

    def send(text: str) -> bool:
        sent.append(text)
        return True

    held = ChunkCoalescer(send, due.append, lambda: now[0])
    for after_s, expected in ((0, ["x"]), (0.0002, []), (0.0002, []), (0.0004, ["xxx"])):
        now[0] += after_s
        assert held.put("x")
        assert sent == expected
        sent.clear()
    assert held.put("y")
    assert len(due) == 1  # one for all that is held
    due.pop()()
    assert sent == ["y"]
    assert held.put("z")
    assert len(due) == 1


def test_without_room_the_callable_waits_at_a_yield() -> None:
    async def pauses(request: ChatRequest) -> AsyncIterator[str]:
        for number in range(4):
            yield str(number)
            await asyncio.sleep(0)

    sent: list[str] = []
    yields: list[int] = []

    def full(output: str, text: str) -> bool:
        sent.append(text)
        return False

    run(pauses, sent, full, yields)
    assert contents(sent) == ["0", "1", "2", "3", ""]
    # "1" is sent in the loop's next turn, so the callable waits when it has produced "2". The last yield is the end.
    assert yields == [1, 3, 5]


def test_a_failure_to_send_ends_the_stream_and_closes_the_generator() -> None:
    closed: list[bool] = []

    async def goes_on(request: ChatRequest) -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
                yield "b"
                await asyncio.sleep(0)
        finally:
            closed.append(True)

    def full(output: str, text: str) -> bool:
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        run(goes_on, [], full)
    assert closed == [True]


def test_timeouts_and_cancellation_reach_the_callable() -> None:
    closed: list[str] = []

    async def limited(request: ChatRequest) -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
            except asyncio.TimeoutError:
                yield "late"
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    async def cancelled() -> None:
        sent: list[str] = []
        task = asyncio.ensure_future(answer(limited, sent))
        while "late" not in "".join(sent):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert contents(sent) == ["a", "b", "late"]

    asyncio.run(cancelled())
    assert closed == ["closed"]


def test_single_answers_and_tritons_clients_are_unaffected() -> None:
    async def burst(request: ChatRequest) -> AsyncIterator[str]:
        for number in range(9):
            yield str(number)

    def texts(asked: Request) -> list[str]:
        async def collected() -> list[Any]:
            sending.set(lambda output, text: True)
            return [one async for one in served(burst, ["chat"])([asked])]

        return [one[0]["text_output"][0].decode() for one in asyncio.run(collected()) if one[0]]

    (whole,) = texts(request(stream=False))
    body = json.loads(whole.partition("\n")[2])
    assert body["choices"][0]["message"]["content"] == "012345678"
    plain = Request(
        {"text_input": np.array([b"x"], object), "stream": np.array([True])}, parameters={}
    )
    assert texts(plain) == [*map(str, range(9))]
