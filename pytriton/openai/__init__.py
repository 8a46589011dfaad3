"""Serve callables behind the OpenAI API: their arguments, the values they may yield, and the resulting models.

`client.register(fn, openai="chat")` serves `fn` at `/v1/chat/completions`; docs/how-to/openai.md shows it.

    card.py        the routes that a model serves, and its entry in `/v1/models`
    bodies.py      the known fields of requests, with their types and limits
    requests.py    the callable's argument
    deltas.py      the values that it may yield
    vectors.py     the return value of a callable that embeds texts
    errors.py      an error with OpenAI's body
    chat.py, responses.py   from deltas to the events and bodies of the API
    serving.py, embeddings.py    from a callable to a Triton model

It only needs msgspec and numpy: it runs in workers, in any environment, and in the daemon.
"""

from __future__ import annotations

from pytriton.openai.card import ModelCard
from pytriton.openai.deltas import Delta, ToolCall, Usage
from pytriton.openai.errors import APIError
from pytriton.openai.requests import ChatRequest, CompletionRequest, Message, Part
from pytriton.openai.vectors import Embeddings

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
