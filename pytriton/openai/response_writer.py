"""The pieces of an answer: the parts that all routes share.

A worker sends an answer as texts, each of which begins with a letter for the daemon's front process:

    s    events of a stream, as the client gets them
    u    a line with the usage (JSON), then the last events, or the whole body of an answer that is no stream
    e    an error (JSON of `WireError`), which ends the answer
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from pytriton.openai.deltas import Delta, ToolCall, Usage
from pytriton.openai.errors import APIError

__all__ = [
    "Answer",
    "Choice",
    "Counted",
    "body_text",
    "error_text",
    "event",
    "json_text",
    "usage_body",
]

_encode = msgspec.json.Encoder().encode
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


class Answer(Protocol):
    """The answer to one request, of one route, streamed or not."""

    def begin(self) -> str:
        """Return what goes out before the first piece; "" for nothing."""

    def add(self, delta: Delta) -> str:
        """Return what goes out for a piece; "" for nothing."""

    def add_text(self, text: str) -> str:
        """Return what goes out for a piece that is nothing but a text of the first choice; "" for nothing."""

    def unanswered(self) -> list[int]:
        """Return the choices after the first one of which no piece has come."""

    def next_call(self) -> None:
        """Take note that the pieces that follow are of another call of the callable."""

    def end(self) -> str | None:
        """Return the last text; None if there is none."""


def json_text(value: Any) -> str:
    """Return a value as JSON, in one line for everybody.

    Clients that part lines of text, not of bytes (httpx' `iter_lines`, and what is built on it), end one at these three
    as well: an event would be cut in two.
    """
    text = _encode(value).decode()
    if text.isascii():
        return text
    for character, escaped in _LINE_ENDS:
        if character in text:
            text = text.replace(character, escaped)
    return text


def event(value: Any) -> str:
    """Return an event of a stream without a name."""
    return f"data: {json_text(value)}\n\n"


def error_text(error: APIError) -> str:
    """Return the text that ends an answer with an error."""
    return f"e{json_text(error.wire())}"


def body_text(usage: Usage, rest: str) -> str:
    """Return the text that ends an answer."""
    return f"u{json_text(usage)}\n{rest}"


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return usage as chat completions say it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class Counted:
    """The usage of an answer: what its callable said, or a token for each piece; of several calls the sum."""

    def __init__(self) -> None:
        self._pieces = 0
        self._said: Usage | None = None
        self._before = Usage()

    def add(self, delta: Delta) -> None:
        """Take note of a piece."""
        if delta.usage is not None:
            self._said = delta.usage
        if delta.content or delta.reasoning or delta.tool_calls or delta.refusal:
            self._pieces += 1

    def add_text(self, text: str) -> None:
        """Take note of a piece that is a text."""
        if text:
            self._pieces += 1

    def next_call(self) -> None:
        """Take note that the pieces that follow are of another call."""
        self._before = self.usage
        self._said = None
        self._pieces = 0

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        last = self._said or Usage(completion_tokens=self._pieces)
        return self._before.plus(last)


class Choice:
    """One of the `n` answers to a request, as far as it has come."""

    def __init__(self, request_id: str, index: int) -> None:
        self._id = request_id
        self.index = index
        self.begun = False
        self.is_answered = False  #: a piece of it has come
        self.ended: str | None = None
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.logprobs: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, delta: Delta) -> None:
        """Put a piece to what is there."""
        if delta.content is not None:
            self.content.append(delta.content)
        if delta.reasoning is not None:
            self.reasoning.append(delta.reasoning)
        if delta.refusal is not None:
            self.refusal.append(delta.refusal)
        for name, value in (delta.logprobs or {}).items():
            known = self.logprobs.get(name)
            if not isinstance(known, list):
                self.logprobs[name] = value
            elif isinstance(value, list):
                self.logprobs[name] = known + value  # a last piece may have none
        for call in delta.tool_calls:
            self.call_chunk(call)
        self.note_end(delta)

    def note_end(self, delta: Delta) -> None:
        """Take note of a piece, and of its finish reason."""
        self.is_answered = True
        if delta.finish_reason is not None:
            self.ended = delta.finish_reason

    def call_chunk(self, call: ToolCall) -> dict[str, Any]:
        """Take a piece of a call; return it as chunks of chat completions have it."""
        known = self._calls.get(call.index)
        if known is None:
            made = call.id or f"call_{self._id[-12:]}_{self.index}_{call.index}"
            function = {"name": call.name, "arguments": call.arguments}
            known = {"id": made, "type": "function", "function": function}
            self._calls[call.index] = known
            return {"index": call.index, **known, "function": dict(function)}
        piece = {"arguments": call.arguments}
        if known["function"]["name"] is None and call.name is not None:
            known["function"]["name"] = piece["name"] = call.name
        known["function"]["arguments"] += call.arguments
        return {"index": call.index, "function": piece}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of tools, put together."""
        return [self._calls[index] for index in sorted(self._calls)]

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return self.ended or ("tool_calls" if self._calls else "stop")


class Choices:
    """All of them."""

    def __init__(self, request_id: str, count: int) -> None:
        self._all = [Choice(request_id, index) for index in range(count)]

    def __getitem__(self, index: int) -> Choice:
        if not 0 <= index < len(self._all):
            raise IndexError(
                f"a Delta has the index {index!r}, but the request asks for {len(self._all)} answers, "
                "which are counted from 0"
            )
        return self._all[index]

    def __iter__(self) -> Any:
        return iter(self._all)


def created_now() -> int:
    """Return the time that answers bear, in seconds since the epoch."""
    return int(time.time())


def without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
