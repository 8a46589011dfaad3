"""Writes the output of a response: the code that all routes share.

A worker sends a response as a series of texts. The first letter of each text is for the daemon's frontend:

    s    events of a stream, as sent to the client
    u    a line with the usage (JSON), then the last events, or the complete body of a response that is not streamed
    e    an error (JSON of `WireError`), which ends the response
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from pytriton.openai.deltas import Delta, ToolCall, Usage
from pytriton.openai.errors import APIError

__all__ = [
    "Choice",
    "ResponseWriter",
    "UsageCounter",
    "body_text",
    "error_text",
    "event",
    "json_text",
    "usage_body",
]

_encode = msgspec.json.Encoder().encode
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


class ResponseWriter(Protocol):
    """Interface of the writers. Each converts the pieces of a response to the output for one route, streamed or not."""

    def begin(self) -> str:
        """Return the output to be sent before the first piece; "" if there is none."""

    def add(self, delta: Delta) -> str:
        """Add a piece and return its output; "" if there is none."""

    def add_text(self, text: str) -> str:
        """Add a piece that contains only text of the first choice. Return its output, or "" if there is none."""

    def unanswered(self) -> list[int]:
        """Return the indexes of the choices, except the first, that have received no piece."""

    def next_call(self) -> None:
        """Record that the following pieces come from another call to the callable."""

    def end(self) -> str | None:
        """Return the last output, or None."""


def json_text(value: Any) -> str:
    """Convert a value to JSON that every client parses as a single line.

    Clients that split text instead of bytes into lines (`iter_lines` of httpx and libraries based on it) also split
    at three other characters, which are therefore escaped.
    """
    text = _encode(value).decode()
    if text.isascii():
        return text
    for character, escaped in _LINE_ENDS:
        if character in text:
            text = text.replace(character, escaped)
    return text


def event(value: Any) -> str:
    """Return an event of a stream, without an event name."""
    return f"data: {json_text(value)}\n\n"


def error_text(error: APIError) -> str:
    """Return the output that ends a response with an error."""
    return f"e{json_text(error.wire())}"


def body_text(usage: Usage, rest: str) -> str:
    """Return the output that ends a response, including its usage."""
    return f"u{json_text(usage)}\n{rest}"


def usage_body(usage: Usage) -> dict[str, Any]:
    """Convert usage data to the format of chat completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class UsageCounter:
    """The token usage of a response: the usage that the callable reports, or one token for each chunk.

    The usages of several calls are added.
    """

    def __init__(self) -> None:
        self._pieces = 0
        self._reported: Usage | None = None
        self._before: Usage | None = None  #: of the earlier calls

    def add(self, delta: Delta) -> None:
        """Count one chunk, or take the token usage that it reports."""
        if delta.usage is not None:
            self._reported = delta.usage
        if delta.content or delta.reasoning or delta.tool_calls or delta.refusal:
            self._pieces += 1

    def add_text(self, text: str) -> None:
        """Count a chunk that is only text."""
        if text:
            self._pieces += 1

    def next_call(self) -> None:
        """Start counting another call."""
        self._before = self.usage
        self._reported = None
        self._pieces = 0

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        last = self._reported or Usage(completion_tokens=self._pieces)
        return last if self._before is None else self._before.plus(last)


class Choice:
    """One of the `n` choices of a response, with the pieces received so far."""

    def __init__(self, request_id: str, index: int) -> None:
        self._id = request_id
        self.index = index
        self.begun = False
        self.is_answered = False  #: has received a piece
        self.ended: str | None = None
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.logprobs: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, delta: Delta) -> None:
        """Append a piece."""
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
                self.logprobs[name] = known + value  # the last piece may have none
        for call in delta.tool_calls:
            self.call_chunk(call)
        self.note_end(delta)

    def note_end(self, delta: Delta) -> None:
        """Record that the choice has received a piece, and the finish reason if the piece contains one."""
        self.is_answered = True
        if delta.finish_reason is not None:
            self.ended = delta.finish_reason

    def call_chunk(self, call: ToolCall) -> dict[str, Any]:
        """Append a piece of a tool call. Return it in the format of a chat completion chunk."""
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
        """Return the complete tool calls."""
        return [self._calls[index] for index in sorted(self._calls)]

    @property
    def finish_reason(self) -> str:
        """Why generation stopped."""
        return self.ended or ("tool_calls" if self._calls else "stop")


class Choices:
    """The choices of a response."""

    def __init__(self, request_id: str, count: int) -> None:
        self._all = [Choice(request_id, index) for index in range(count)]

    def __getitem__(self, index: int) -> Choice:
        if not 0 <= index < len(self._all):
            raise IndexError(
                f"a Delta has the index {index!r}, but the request has {len(self._all)} choices, whose indexes "
                f"begin at 0"
            )
        return self._all[index]

    def __iter__(self) -> Any:
        return iter(self._all)


def created_now() -> int:
    """Return the current time in seconds since the epoch, for the field `created`."""
    return int(time.time())


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict without the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}
