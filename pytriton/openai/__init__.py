"""Serves callables through the OpenAI API: defines their arguments and results, and creates their models.

`client.register(fn, openai="chat")` serves `fn` at `/v1/chat/completions`; docs/how-to/openai.md shows it.

    card.py        the routes that a model serves, and its entry in `/v1/models`
    bodies.py      the known fields of requests, with their types and limits
    requests.py, parts.py   the callable's argument
    deltas.py      the values that it may yield or return
    errors.py      an error with OpenAI's body
    response_writer.py, chat.py, responses.py   from deltas to the events and bodies of the API
    invocation.py  a request as it reaches a worker, and its response
    serving.py, embeddings.py, model.py    from a callable to a Triton model

This package needs only msgspec and numpy, because it runs in workers, in any environment, and in the daemon.
"""

from __future__ import annotations

from pytriton.openai.card import ModelCard
from pytriton.openai.deltas import Delta, Embeddings, ToolCall, Usage
from pytriton.openai.errors import APIError
from pytriton.openai.requests import ChatRequest, CompletionRequest, Message, Part

__all__ = [
    "APIError",
    "ChatRequest",
    "CompletionRequest",
    "Delta",
    "Embeddings",
    "Message",
    "ModelCard",
    "Part",
    "ToolCall",
    "Usage",
]
