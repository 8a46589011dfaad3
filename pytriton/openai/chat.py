"""Writers for the responses of `/v1/chat/completions` and `/v1/completions`: a stream's events, or one body."""

from __future__ import annotations

from typing import Any

from pytriton.openai.deltas import Delta
from pytriton.openai.requests import ChatRequest, CompletionRequest
from pytriton.openai.response_writer import (
    Choice,
    Choices,
    ResponseWriter,
    UsageCounter,
    body_text,
    created_now,
    event,
    json_text,
    usage_body,
    without_none,
)

__all__ = ["chat_answer", "completion_answer"]


def chat_answer(request: ChatRequest) -> ResponseWriter:
    """Create the writer for the response to a chat request."""
    kind = _ChatStream if request.stream else _ChatBody
    return kind(request, request.n)


def completion_answer(request: CompletionRequest) -> ResponseWriter:
    """Create the writer for the response to a completion request."""
    kind = _TextStream if request.stream else _TextBody
    return kind(request, request.n * len(request.prompts))


class _Answer:
    object: str

    def __init__(self, request: ChatRequest | CompletionRequest, choices: int) -> None:
        self.choices = Choices(request.id, choices)
        self.counted = UsageCounter()
        self.head = {
            "id": request.id,
            "object": self.object,
            "created": created_now(),
            "model": request.model,
        }

    def begin(self) -> str:
        """Return "": the first piece contains the role."""
        return ""

    def add(self, delta: Delta) -> str:
        raise NotImplementedError

    def unanswered(self) -> list[int]:
        """Return the indexes of the choices, except the first, that have received no piece."""
        return [one.index for one in self.choices if one.index and not one.is_answered]

    def next_call(self) -> None:
        """Start counting the tokens of another call to the callable."""
        self.counted.next_call()

    def add_text(self, text: str) -> str:
        """Add a piece that contains only text, and return the output."""
        return self.add(Delta(content=text))


class _Stream(_Answer):
    def __init__(self, request: ChatRequest | CompletionRequest, choices: int) -> None:
        super().__init__(request, choices)
        options = request.body.get("stream_options") or {}
        self._includes_usage = bool(options.get("include_usage"))
        self._tail = ',"usage":null}\n\n' if self._includes_usage else "}\n\n"
        head = json_text(self.head)[:-1]
        self._start = f'data: {head},"choices":['
        #: Choice -> JSON around the text of a piece that contains nothing else.
        self._only: dict[int, tuple[str, str]] = {}

    def add(self, delta: Delta) -> str:
        """Add a piece and return its event."""
        self.counted.add(delta)
        choice = self.choices[delta.index]
        choice.note_end(delta)
        if choice.begun and _is_text(delta):
            before, after = self._only.get(delta.index) or self._around(delta.index)
            return f"{before}{json_text(delta.content)}{after}"
        fields = self.fields(choice, delta)
        if not fields:
            return ""
        choice.begun = True
        shown = {
            **self.choice(delta.index, fields),
            "logprobs": delta.logprobs,
            "finish_reason": None,
        }
        return f"{self._start}{json_text(shown)}]{self._tail}"

    def add_text(self, text: str) -> str:
        """Add a piece that contains only text, and return its event. Most events of a stream are created here."""
        around = self._only.get(0)
        if around is None:
            return self.add(Delta(content=text))
        self.counted.add_text(text)
        return f"{around[0]}{json_text(text)}{around[1]}"

    def end(self) -> str:
        """Return the events with the finish reason of each choice, and the usage if requested."""
        events = []
        for choice in self.choices:
            fields = {} if choice.begun else self.nothing()
            shown = self.choice(choice.index, fields)
            shown["finish_reason"] = choice.finish_reason
            events.append(f"{self._start}{json_text(shown)}]{self._tail}")
        usage = self.counted.usage
        if self._includes_usage:
            events.append(event({**self.head, "choices": [], "usage": usage_body(usage)}))
        return body_text(usage, "".join(events))

    def _around(self, index: int) -> tuple[str, str]:
        mark = "\x00"
        shown = {**self.choice(index, {self.text: mark}), "logprobs": None, "finish_reason": None}
        before, _, after = json_text(shown).partition(json_text(mark))
        self._only[index] = (f"{self._start}{before}", f"{after}]{self._tail}")
        return self._only[index]

    text: str

    def choice(self, index: int, fields: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def fields(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError

    def nothing(self) -> dict[str, Any]:
        raise NotImplementedError


class _ChatStream(_Stream):
    object = "chat.completion.chunk"
    text = "content"

    def choice(self, index: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": fields}

    def fields(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = without_none(
            {
                "content": delta.content,
                "reasoning_content": delta.reasoning,
                "refusal": delta.refusal,
            }
        )
        if delta.tool_calls:
            fields["tool_calls"] = [choice.call_chunk(call) for call in delta.tool_calls]
        if not fields and delta.logprobs is None:
            return {}
        return fields if choice.begun else {"role": "assistant", **fields}

    def nothing(self) -> dict[str, Any]:
        return {"role": "assistant", "content": ""}


class _TextStream(_Stream):
    object = "text_completion"
    text = "text"

    def choice(self, index: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "text": "", **fields}

    def fields(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return {} if delta.content is None else {"text": delta.content}

    def nothing(self) -> dict[str, Any]:
        return {}


class _Body(_Answer):
    def add(self, delta: Delta) -> str:
        """Add a piece to the body."""
        self.counted.add(delta)
        self.choices[delta.index].add(delta)
        return ""

    def end(self) -> str:
        """Return the complete body."""
        usage = self.counted.usage
        choices = [
            {
                "index": choice.index,
                **self.message_fields(choice),
                "logprobs": choice.logprobs or None,
                "finish_reason": choice.finish_reason,
            }
            for choice in self.choices
        ]
        body = {**self.head, "choices": choices, "usage": usage_body(usage)}
        return body_text(usage, json_text(body))

    def message_fields(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError


class _ChatBody(_Body):
    object = "chat.completion"

    def message_fields(self, choice: Choice) -> dict[str, Any]:
        calls = choice.calls
        content = "".join(choice.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if not choice.content and (calls or choice.refusal) else content,
            "refusal": "".join(choice.refusal) or None,
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class _TextBody(_Body):
    object = "text_completion"

    def message_fields(self, choice: Choice) -> dict[str, Any]:
        return {"text": "".join(choice.content)}


def _is_text(delta: Delta) -> bool:
    return delta.content is not None and not (
        delta.reasoning
        or delta.tool_calls
        or delta.refusal
        or delta.logprobs
        or delta.usage is not None
    )
