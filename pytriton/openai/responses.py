"""Writers for the responses of `/v1/responses`: the named events of a stream, or a single body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pytriton.openai.deltas import Delta, ToolCall, Usage
from pytriton.openai.errors import APIError
from pytriton.openai.requests import ChatRequest
from pytriton.openai.response_writer import (
    Choice,
    ResponseWriter,
    UsageCounter,
    body_text,
    created_now,
    json_text,
)

__all__ = ["response_answer"]

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: Fields of the request that a response repeats, with their defaults.
_REPEATED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": None, "temperature": 1.0, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip


def response_answer(request: ChatRequest) -> ResponseWriter:
    """Create the writer for the response to a request to `/v1/responses`."""
    return _ResponseStream(request) if request.stream else _ResponseBody(request)


def _repeated(body: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Return, as JSON, the request's fields that the response repeats.

    Raises:
        APIError: they are nested too deeply to be encoded
    """
    fields = {
        name: usual if body.get(name) is None else body[name] for name, usual in _REPEATED.items()
    }
    try:
        return {name: msgspec.Raw(json_text(value)) for name, value in fields.items()}
    except RecursionError:
        raise APIError("The body is nested too deeply.", code="invalid_json") from None


class _Item:
    """An item of the output: the model's reasoning, its message, its refusal (also a message), or a tool call."""

    def __init__(self, index: int, kind: str, fields: dict[str, Any]) -> None:
        self.index = index
        self.kind = kind
        self.fields = fields
        self.text: list[str] = []

    def shown(self, *, done: bool) -> dict[str, Any]:
        text = "".join(self.text)
        shown = {**self.fields, "status": "completed" if done else "in_progress"}
        if self.kind == "function_call":
            shown["arguments"] = text
        else:
            content: list[dict[str, Any]] = [self.part(text)] if done else []
            shown["content"] = content
        return shown

    def part(self, text: str) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _ResponseBody:
    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._created = created_now()
        self._counted = UsageCounter()
        self._choice = Choice(request.id, 0)
        self._items: list[_Item] = []
        self._current: _Item | None = None  #: the current message or reasoning
        self._calls: dict[int, _Item] = {}
        self._repeated = _repeated(request.body)

    def begin(self) -> str:
        """Return "": nothing is sent before the end."""
        return ""

    def unanswered(self) -> list[int]:
        """Return an empty list: there is only one choice."""
        return []

    def next_call(self) -> None:
        """Do nothing: the callable is called only once."""

    def add(self, delta: Delta) -> str:
        """Add a piece."""
        self._counted.add(delta)
        self._choice.note_end(delta)
        output = ""
        if delta.reasoning:
            output += self._put("reasoning", delta.reasoning)
        if delta.content:
            output += self._put("message", delta.content)
        if delta.refusal:
            output += self._put("refusal", delta.refusal)
        for call in delta.tool_calls:
            output += self._call(call)
        return output

    def add_text(self, text: str) -> str:
        """Add a piece that contains only text."""
        self._counted.add_text(text)
        return self._put("message", text) if text else ""

    def end(self) -> str:
        """Return the output with the complete body."""
        usage = self._counted.usage
        return body_text(usage, json_text(self._response(usage)))

    # ── items ────────────────────────────────────────────────────────────────────────────────────

    def _put(self, kind: str, text: str) -> str:
        output = ""
        item = self._current
        if item is None or item.kind != kind:
            fields: dict[str, Any] = (
                {"id": self._item_id("rs"), "type": kind, "summary": []}
                if kind == "reasoning"
                else {"id": self._item_id("msg"), "type": "message", "role": "assistant"}
            )
            output += self._open(kind, fields)
            item = self._current = self._items[-1]
        item.text.append(text)
        return output + self._piece(item, text)

    def _call(self, call: ToolCall) -> str:
        output = ""
        item = self._calls.get(call.index)
        if item is None:
            chunk = self._choice.call_chunk(call)
            fields = {
                "id": self._item_id("fc"),
                "type": "function_call",
                "call_id": chunk["id"],
                "name": call.name or "",  # may arrive with a later piece
            }
            output += self._open("function_call", fields)
            item = self._calls[call.index] = self._items[-1]
        elif not item.fields["name"]:
            item.fields["name"] = call.name or ""
        item.text.append(call.arguments)
        return output + (self._piece(item, call.arguments) if call.arguments else "")

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._request.id.partition('_')[2]}{len(self._items)}"

    def _open(self, kind: str, fields: dict[str, Any]) -> str:
        """Begin an item. This ends the current message but not open calls, since pieces of calls may be interleaved."""
        output = self._closed(self._current) if self._current else ""
        self._current = None
        self._items.append(_Item(len(self._items), kind, fields))
        return output + self._opened(self._items[-1])

    def _close(self) -> str:
        """Close all open items."""
        left = [*self._calls.values(), *([self._current] if self._current else [])]
        return "".join(self._closed(item) for item in sorted(left, key=lambda item: item.index))

    def _opened(self, item: _Item) -> str:
        return ""

    def _piece(self, item: _Item, text: str) -> str:
        return ""

    def _closed(self, item: _Item) -> str:
        return ""

    # ── the whole ────────────────────────────────────────────────────────────────────────────────

    def _response(self, usage: Usage | None) -> dict[str, Any]:
        """Return the response so far. It contains `usage` only once it is complete."""
        reason = _INCOMPLETE.get(self._choice.ended or "") if usage is not None else None
        status = "in_progress" if usage is None else "incomplete" if reason else "completed"
        return {
            "id": self._request.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self._request.model,
            "output": [] if usage is None else [item.shown(done=True) for item in self._items],
            **self._repeated,
            "store": False,
            "usage": None if usage is None else _usage_body(usage),
        }


class _ResponseStream(_ResponseBody):
    def __init__(self, request: ChatRequest) -> None:
        super().__init__(request)
        self._number = -1

    def begin(self) -> str:
        """Return the events that announce the response."""
        response = self._response(None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def end(self) -> str:
        """Return the events that close the open items and the response."""
        usage = self._counted.usage
        output = self._close()
        response = self._response(usage)
        output += self._event(f"response.{response['status']}", response=response)
        return body_text(usage, output)

    def _opened(self, item: _Item) -> str:
        output = self._event(
            "response.output_item.added", output_index=item.index, item=item.shown(done=False)
        )
        if item.kind in ("message", "refusal"):
            output += self._of(
                item, "response.content_part.added", content_index=0, part=item.part("")
            )
        return output

    def _piece(self, item: _Item, text: str) -> str:
        if item.kind == "function_call":
            return self._of(item, "response.function_call_arguments.delta", delta=text)
        if item.kind == "reasoning":
            return self._of(item, "response.reasoning_text.delta", content_index=0, delta=text)
        if item.kind == "refusal":
            return self._of(item, "response.refusal.delta", content_index=0, delta=text)
        return self._of(
            item, "response.output_text.delta", content_index=0, delta=text, logprobs=[]
        )

    def _closed(self, item: _Item) -> str:
        text = "".join(item.text)
        output = ""
        if item.kind == "function_call":
            name = item.fields["name"]
            output = self._of(
                item, "response.function_call_arguments.done", arguments=text, name=name
            )
        elif item.kind == "reasoning":
            output = self._of(item, "response.reasoning_text.done", content_index=0, text=text)
        else:
            output = (
                self._of(item, "response.refusal.done", content_index=0, refusal=text)
                if item.kind == "refusal"
                else self._of(
                    item, "response.output_text.done", content_index=0, text=text, logprobs=[]
                )
            )
            output += self._of(
                item, "response.content_part.done", content_index=0, part=item.part(text)
            )
        return output + self._event(
            "response.output_item.done", output_index=item.index, item=item.shown(done=True)
        )

    def _of(self, item: _Item, kind: str, **fields: Any) -> str:
        return self._event(kind, item_id=item.fields["id"], output_index=item.index, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        self._number += 1
        payload = {"type": kind, "sequence_number": self._number, **fields}
        return f"event: {kind}\ndata: {json_text(payload)}\n\n"


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
