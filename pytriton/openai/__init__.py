"""Callables behind the OpenAI API: what they are given, what they may yield, and the model that they become.

`client.register(fn, openai="chat")` serves `fn` at `/v1/chat/completions`; docs/how-to/openai.md shows it.

    card.py        which routes a model serves, and what `/v1/models` says of it
    bodies.py      the fields of requests that are known, with their types and limits
    requests.py    what a callable is given
    deltas.py      what it may yield
    vectors.py     what one that embeds texts may return
    errors.py      an error with OpenAI's body
    chat.py, responses.py   from deltas to the events and bodies of the API
    serving.py, embeddings.py    from a callable to a model of Triton's

It needs msgspec and numpy only: it runs in workers, in whatever environment they have, and in the daemon.
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
