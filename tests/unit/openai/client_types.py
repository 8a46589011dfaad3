"""Answers as parsed by OpenAI's client.

The types are imported on first use: they would take a tenth of the time of collecting all tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response


def completion(body: Any) -> Completion:
    """Return an answer of `/v1/completions`."""
    from openai.types import Completion

    return Completion.model_validate(body)


def chat(body: Any) -> ChatCompletion:
    """Return an answer of `/v1/chat/completions`."""
    from openai.types.chat import ChatCompletion

    return ChatCompletion.model_validate(body)


def chat_chunk(body: Any) -> ChatCompletionChunk:
    """Return a chunk of such an answer."""
    from openai.types.chat import ChatCompletionChunk

    return ChatCompletionChunk.model_validate(body)


def response(body: Any) -> Response:
    """Return an answer of `/v1/responses`."""
    from openai.types.responses import Response

    return Response.model_validate(body)


def check_response_events(events: list[Any]) -> None:
    """Raise an error unless each one is an event of such an answer."""
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        known.validate_python(event)
