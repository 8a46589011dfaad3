"""Parses a request that reaches a worker, and writes its response. Requests arrive in two ways:

- from the daemon's frontend, in the input `request`: JSON of `{"api": ..., "id": ..., "body": {...}}`;
  response_writer.py describes the response;
- from any Triton client, in the inputs `text_input` and `stream`, with the options as request parameters,
  like Triton's backends for vLLM and TensorRT-LLM; the response consists of plain texts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pytriton.openai.chat import chat_answer, completion_answer
from pytriton.openai.deltas import Delta
from pytriton.openai.errors import APIError
from pytriton.openai.requests import (
    ChatRequest,
    CompletionRequest,
    chat_request,
    completion_request,
)
from pytriton.openai.response_writer import ResponseWriter, error_text
from pytriton.openai.responses import response_answer

__all__ = ["REQUEST", "STREAM", "TEXT", "Envelope", "Invocation", "read", "refusal"]

REQUEST, TEXT, STREAM = "request", "text_input", "stream"


class Envelope(msgspec.Struct, frozen=True):
    """The frontend's message that contains a request. `model` is the name to show in the response."""

    api: str
    id: str
    model: str
    body: dict[str, Any]


#: Interval between keepalives of a response that is sent as a whole, in seconds.
_KEEPALIVE_INTERVAL_S = 0.1


@dataclass
class Invocation:
    """A request and the writer of its response.

    Attributes:
        begun: output to be sent first; "" if there is none
        mark: first letter of the output for a piece
    """

    request: ChatRequest | CompletionRequest
    answer: ResponseWriter
    begun: str = ""
    mark: str = ""
    _keepalive_at: float = field(default_factory=time.monotonic)

    def is_keepalive_due(self) -> bool:
        """Return whether a keepalive can be sent and is due."""
        now = time.monotonic()
        if not self.mark or now - self._keepalive_at < _KEEPALIVE_INTERVAL_S:
            return False
        self._keepalive_at = now
        return True


def read(request: Any, kinds: list[str]) -> Invocation:
    """Parse a request.

    Raises:
        APIError: the request is invalid, or the model does not serve its route
    """
    if REQUEST not in request:
        return _plain(request, kinds)
    try:
        envelope = msgspec.json.decode(request[REQUEST].item(), type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise APIError(
            f"Cannot parse the input `{REQUEST}`: {error}.", code="invalid_json"
        ) from None
    if envelope.api not in kinds:
        raise APIError(f"This model serves {', '.join(kinds)}, not {envelope.api}.", 404)
    parsed, answer = _of_body(envelope)
    begun = answer.begin()
    return Invocation(parsed, answer, begun and f"s{begun}", "s")


def refusal(request: Any, error: APIError) -> str:
    """Return the output that ends the response to a request with an error.

    Raises:
        ValueError: the request came from a Triton client, so the error is to be sent as Triton's error
    """
    if REQUEST not in request:
        raise ValueError(error.message) from error
    return error_text(error)


def _of_body(envelope: Envelope) -> tuple[ChatRequest | CompletionRequest, ResponseWriter]:
    body = {**envelope.body, "model": envelope.model}
    if envelope.api == "completions":
        completion = completion_request(body, envelope.id)
        return completion, completion_answer(completion)
    chat = chat_request(envelope.api, body, envelope.id)
    if envelope.api == "responses":
        return chat, response_answer(chat)
    return chat, chat_answer(chat)


def _plain(request: Any, kinds: list[str]) -> Invocation:
    if TEXT not in request:
        raise APIError(f"The request has neither the input `{TEXT}` nor `{REQUEST}`.")
    text = _text(request[TEXT].item())
    stream = bool(request[STREAM].item()) if STREAM in request else False
    options = _options(request.parameters or {})
    if kinds == ["completions"]:
        completion = completion_request({**options, "prompt": text, "stream": stream})
        return Invocation(completion, _PlainText(stream))
    messages = [{"role": "user", "content": text}]
    chat = chat_request("chat", {**options, "messages": messages, "stream": stream})
    return Invocation(chat, _PlainText(stream))


def _text(value: Any) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise APIError(f"The input `{TEXT}` is not valid UTF-8.") from None


def _options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request parameters, except those that Triton sets."""
    return {name: value for name, value in parameters.items() if not name.startswith("triton_")}


class _PlainText:
    """Writer of the response to a Triton client, which consists of plain texts."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._kept: list[str] = []

    def begin(self) -> str:
        """Return "": nothing is sent before the first piece."""
        return ""

    def add(self, delta: Delta) -> str:
        """Add a piece. Return its text, or buffer it."""
        if delta.content is None or self._stream:
            return delta.content or ""
        self._kept.append(delta.content)
        return ""

    def add_text(self, text: str) -> str:
        """Add a piece that contains only text. Return the text, or buffer it."""
        return self.add(Delta(content=text))

    def unanswered(self) -> list[int]:
        """Return an empty list: there is only one choice."""
        return []

    def next_call(self) -> None:
        """Do nothing: the callable is called only once."""

    def end(self) -> str | None:
        """Return the buffered text, or None."""
        return None if self._stream else "".join(self._kept)
