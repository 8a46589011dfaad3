"""Conversion of a callable behind the OpenAI API to an inference callable of a decoupled model."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pytriton.openai.coalesce import ChunkCoalescer
from pytriton.openai.deltas import Delta, deltas_of
from pytriton.openai.errors import APIError
from pytriton.openai.request import Invocation, read, refusal
from pytriton.openai.requests import ChatRequest, CompletionRequest, only_answer
from pytriton.proxy.one_text import OneText
from pytriton.proxy.sending import sending

__all__ = ["OUTPUT", "AsyncTexts", "Texts"]

OUTPUT = "text_output"
#: No response this time: between two of these the worker checks whether its client has disconnected.
_NOTHING: list[Any] = [None]

Results = Sequence[Any]


class Texts:
    """Inference callable around a function or generator. Pickled together with it."""

    def __init__(self, target: Callable[..., Any], kinds: list[str]) -> None:
        self.target = target
        self.kinds = kinds

    def __call__(self, requests: list[Any]) -> Iterator[Results]:
        """Answer one request: such models are not batched."""
        try:
            yield from self._answering(read(requests[0], self.kinds))
        except APIError as error:
            yield _said(refusal(requests[0], error))

    def _answering(self, asked: Invocation) -> Iterator[Results]:
        if asked.begun:
            yield _said(asked.begun)
        for request, index in _calls(asked):
            produced = self.target(request)
            pieces = iter([produced]) if _is_whole(produced) else iter(produced)
            try:
                for piece in pieces:
                    yield _results(asked, _text(asked, piece, index))
            finally:
                if hasattr(pieces, "close"):
                    pieces.close()
        yield _end(asked)


class AsyncTexts:
    """Inference callable around a coroutine function or async generator. Requests are processed concurrently."""

    def __init__(self, target: Callable[..., Any], kinds: list[str]) -> None:
        self.target = target
        self.kinds = kinds

    async def __call__(self, requests: list[Any]) -> AsyncGenerator[Results, None]:
        """Answer one request."""
        try:
            asked = read(requests[0], self.kinds)
            if asked.begun:
                yield _said(asked.begun)
            held = ChunkCoalescer(_sender(asked), asyncio.get_running_loop().call_soon)
            try:
                try:
                    for request, index in _calls(asked):
                        pieces = await self._pieces(request)
                        try:
                            async for piece in pieces:
                                if not held.keeps(_text(asked, piece, index)):
                                    yield _results(asked, held.taken())
                        finally:
                            if hasattr(pieces, "aclose"):
                                await pieces.aclose()
                except Exception:
                    text = held.taken()
                    if text:  # send the text that preceded an error first
                        yield _results(asked, text)
                    raise
                yield _end(asked, held.taken())
            finally:
                held.close()
        except APIError as error:
            yield _said(refusal(requests[0], error))

    async def _pieces(self, request: ChatRequest | CompletionRequest) -> Any:
        produced = self.target(request)
        if inspect.isawaitable(produced):
            produced = await produced
        return produced if hasattr(produced, "__aiter__") else _each(produced)


async def _each(produced: Any) -> AsyncGenerator[Any, None]:
    for piece in [produced] if _is_whole(produced) else produced:
        yield piece


def _is_whole(produced: Any) -> bool:
    """Return whether a callable's return value is one piece; other iterables are iterated over."""
    whole = isinstance(produced, (str, bytes, bytearray, Mapping)) or hasattr(
        produced, "model_dump"
    )
    return whole or not hasattr(produced, "__iter__")


def _calls(asked: Invocation) -> Iterator[tuple[ChatRequest | CompletionRequest, int | None]]:
    """Yield what the callable is called with: the request, then, for each answer of which nothing has come, a request
    for that one alone and its index.
    """
    yield asked.request, None
    for index in asked.answer.unanswered():
        asked.answer.next_call()
        yield only_answer(asked.request, index), index


def _text(asked: Invocation, piece: Any, index: int | None) -> str:
    if index is None and type(piece) is str:
        return asked.answer.add_text(piece)
    return "".join([asked.answer.add(_of_answer(delta, index)) for delta in deltas_of(piece)])


def _of_answer(delta: Delta, index: int | None) -> Delta:
    """Return a piece of the choice `index` if only that was requested; None if all were."""
    if index is None:
        return delta
    if delta.index != 0:
        raise IndexError(
            f"a Delta has the index {delta.index!r}, but the request asks for one answer, with the index 0"
        )
    return msgspec.structs.replace(delta, index=index)


def _results(asked: Invocation, text: str) -> Results:
    if text:
        return _said(asked.mark + text)
    # tritonserver notices a disconnected client when it writes to it.
    return _said(asked.mark) if asked.beats() else _NOTHING


def _sender(asked: Invocation) -> Callable[[str], None] | None:
    """Return a function that sends a text without a `yield`; None if each piece must be a separate response."""
    put = sending.get()
    if put is None or not asked.mark:
        return None
    return lambda text: put(_said(asked.mark + text))


def _end(asked: Invocation, text: str = "") -> Results:
    """Return the last results; `text` is the unsent rest."""
    end = asked.answer.end()
    if end is None:
        return _NOTHING
    usage, line, rest = end.partition("\n")
    return _said(f"{usage}{line}{text}{rest}" if text else end)


def _said(text: str) -> Results:
    return OneText(OUTPUT, text.encode())
