"""Inference callables of decoupled models. They wrap callables that are served through the OpenAI API."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pytriton.openai.deltas import Delta, deltas_of
from pytriton.openai.errors import APIError
from pytriton.openai.invocation import Invocation, read, refusal
from pytriton.openai.requests import ChatRequest, CompletionRequest, single_choice
from pytriton.proxy.results import OneText, sending

__all__ = ["OUTPUT", "AsyncTexts", "ChunkCoalescer", "Texts"]

OUTPUT = "text_output"
#: No response for now. The worker then checks whether the client has disconnected.
_NOTHING: list[Any] = [None]

Results = Sequence[Any]


class Texts:
    """Inference callable that wraps a function or generator. It is pickled together with the function."""

    def __init__(self, target: Callable[..., Any], kinds: list[str]) -> None:
        self.target = target
        self.kinds = kinds

    def __call__(self, requests: list[Any]) -> Iterator[Results]:
        """Process a request. The list contains only one request, because these models do not batch."""
        try:
            yield from self._generate(read(requests[0], self.kinds))
        except APIError as error:
            yield _result_of(refusal(requests[0], error))

    def _generate(self, invocation: Invocation) -> Iterator[Results]:
        if invocation.begun:
            yield _result_of(invocation.begun)
        for request, index in _calls(invocation):
            produced = self.target(request)
            pieces = iter([produced]) if _is_whole(produced) else iter(produced)
            try:
                for piece in pieces:
                    yield _results(invocation, _text(invocation, piece, index))
            finally:
                if hasattr(pieces, "close"):
                    pieces.close()
        yield _end(invocation)


class AsyncTexts:
    """Inference callable that wraps a coroutine function or async generator. It processes requests concurrently."""

    def __init__(self, target: Callable[..., Any], kinds: list[str]) -> None:
        self.target = target
        self.kinds = kinds

    async def __call__(self, requests: list[Any]) -> AsyncGenerator[Results, None]:
        """Process a request."""
        try:
            invocation = read(requests[0], self.kinds)
            if invocation.begun:
                yield _result_of(invocation.begun)
            buffer = ChunkCoalescer(_sender(invocation), asyncio.get_running_loop().call_soon)
            try:
                try:
                    for request, index in _calls(invocation):
                        pieces = await self._pieces(request)
                        try:
                            async for piece in pieces:
                                text = _text(invocation, piece, index)
                                if not buffer.put(text):
                                    rest = buffer.drain()
                                    yield (
                                        _results(invocation, rest) if rest or not text else _NOTHING
                                    )
                        finally:
                            if hasattr(pieces, "aclose"):
                                await pieces.aclose()
                except Exception:
                    text = buffer.drain()
                    if text:  # send the text that preceded an error first
                        yield _results(invocation, text)
                    raise
                yield _end(invocation, buffer.drain())
            finally:
                buffer.close()
        except APIError as error:
            yield _result_of(refusal(requests[0], error))

    async def _pieces(self, request: ChatRequest | CompletionRequest) -> Any:
        produced = self.target(request)
        if inspect.isawaitable(produced):
            produced = await produced
        return produced if hasattr(produced, "__aiter__") else _each(produced)


async def _each(produced: Any) -> AsyncGenerator[Any, None]:
    for piece in [produced] if _is_whole(produced) else produced:
        yield piece


def _is_whole(produced: Any) -> bool:
    """Return whether a callable's return value is a single piece. If not, each of its items is a piece."""
    whole = isinstance(produced, (str, bytes, bytearray, Mapping)) or hasattr(
        produced, "model_dump"
    )
    return whole or not hasattr(produced, "__iter__")


def _calls(invocation: Invocation) -> Iterator[tuple[ChatRequest | CompletionRequest, int | None]]:
    """For each call to the callable, yield the request to pass, and the index of its choice; None stands for all
    choices.

    First comes the request itself. Then, for each choice that has received no piece, a request for that choice alone.
    """
    yield invocation.request, None
    for index in invocation.answer.unanswered():
        invocation.answer.next_call()
        yield single_choice(invocation.request, index), index


def _text(invocation: Invocation, piece: Any, index: int | None) -> str:
    if index is None and type(piece) is str:
        return invocation.answer.add_text(piece)
    return "".join([invocation.answer.add(_of_answer(delta, index)) for delta in deltas_of(piece)])


def _of_answer(delta: Delta, index: int | None) -> Delta:
    """Return a copy of the piece that belongs to the choice `index`, the only one requested.

    If `index` is None, return the piece itself.
    """
    if index is None:
        return delta
    if delta.index != 0:
        raise IndexError(
            f"a Delta has the index {delta.index!r}, but the request has a single choice, whose index is 0"
        )
    return msgspec.structs.replace(delta, index=index)


def _results(invocation: Invocation, text: str) -> Results:
    if text:
        return _result_of(invocation.mark + text)
    # tritonserver notices that a client has disconnected only when it sends something.
    return _result_of(invocation.mark) if invocation.is_keepalive_due() else _NOTHING


def _sender(invocation: Invocation) -> Callable[[str], bool] | None:
    """Return a function that sends a text without a `yield`; None if each piece must be a response of its own.

    The function returns False if there is no room for more.
    """
    put, mark = sending.get(), invocation.mark
    if put is None or not mark:
        return None
    return lambda text: put(OUTPUT, mark + text)


def _end(invocation: Invocation, text: str = "") -> Results:
    """Return the last results. `text` is buffered text that has not been sent yet."""
    end = invocation.answer.end()
    if end is None:
        return _NOTHING
    usage, line, rest = end.partition("\n")
    return _result_of(f"{usage}{line}{text}{rest}" if text else end)


def _result_of(text: str) -> Results:
    return OneText(OUTPUT, text)


# ── coalescing of pieces that arrive at the same time, because each response costs time in every process ──────


#: A piece is buffered only if it arrives this soon after the previous one, when another one is likely to follow.
#: The first piece is sent immediately.
_QUICK_S = 0.0003
#: Maximum number of buffered pieces. After that many, the worker checks whether there is room for them.
_MAX_CHUNKS = 64


class ChunkCoalescer:
    """Combines the texts of a stream into fewer chunks.

    Buffered texts are sent with the next piece that is not buffered, and at the latest in the next iteration of the
    event loop. So a text is never delayed while the callable awaits something.

    Args:
        send: function that sends a text immediately, and returns False if there is no room for more; None: send nothing
        soon: function that schedules a function for the next iteration of the event loop
        clock: function like time.perf_counter
    """

    def __init__(
        self,
        send: Callable[[str], bool] | None,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._send = send
        self._soon = soon
        self._clock = clock
        self._texts: list[str] = []
        self._last = float("-inf")  #: when the newest piece arrived
        self._flushes = (
            False  #: whether `_flush` is scheduled for the next iteration of the event loop
        )
        self._full = False  #: whether `_flush` found no room for more
        self._failed: Exception | None = None

    def put(self, text: str) -> bool:
        """Send or buffer the text of a piece. Return False if the callable must yield, either to send what `drain`
        returns or, if that is nothing, to wait for room.

        Raises:
            Exception: the text could not be sent, or the previously buffered text
        """
        if self._failed is not None:
            raise self._failed
        texts, send = self._texts, self._send
        if text:
            texts.append(text)
        if send is None:
            return False
        if self._full:
            self._full = False
            return False
        now = self._clock()
        quick = now - self._last < _QUICK_S
        self._last = now
        if not quick or len(texts) >= _MAX_CHUNKS:
            return send(self.drain()) if texts else False
        if not self._flushes:
            self._flushes = True
            self._soon(self._flush)
        return True

    def drain(self) -> str:
        """Return and clear the buffered text."""
        texts = self._texts
        if len(texts) == 1:
            return texts.pop()
        text = "".join(texts)
        texts.clear()
        return text

    def close(self) -> None:
        """Discard the buffered text. The stream has ended, so nothing may be sent any longer."""
        self._send = None
        self._texts.clear()

    def _flush(self) -> None:
        self._flushes = False
        if self._texts and self._send is not None:
            try:
                self._full = not self._send(self.drain())
            except Exception as error:  # raised with the next piece
                self._failed = error
