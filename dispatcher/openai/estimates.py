"""Estimates the number of tokens that a request may use, before it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.openai.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingsBody,
    ResponsesBody,
    TensorsBody,
)

__all__ = ["tokens_of"]

#: Average characters per token in English; fewer in other languages. The real tokenizer belongs to the model.
_CHARACTERS = 4
#: Fields with a file in base64, whose number of tokens only the model knows.
_FILES = ("data", "file_data")


def tokens_of(body: Body | TensorsBody, usual: int) -> int:
    """Return the number of tokens that a request may use: those of its texts plus its maximum answer.

    Args:
        usual: typical usage of a request that does not limit its answer
    """
    if isinstance(body, (EmbeddingsBody, TensorsBody)):
        return _in_texts(body.input if isinstance(body, EmbeddingsBody) else body.inputs[0].data)
    answers, longest, texts = 1, None, 0
    if isinstance(body, ChatBody):
        texts = _in_texts([one.content for one in body.messages])
        answers, longest = body.n or 1, body.max_completion_tokens or body.max_tokens
    elif isinstance(body, CompletionBody):
        texts = _in_texts(body.prompt)
        answers = max(body.n or 1, body.best_of or 1) * _prompts(body.prompt)
        longest = body.max_tokens
    elif isinstance(body, ResponsesBody):
        texts = _in_texts([body.input, body.instructions])
        longest = body.max_output_tokens
    return max(texts, answers * usual) if longest is None else texts + answers * longest


def _prompts(prompt: str | Sequence[Any]) -> int:
    """Return the number of prompts in a request; a list of tokens is one prompt."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return 1
    return max(1, len(prompt))


def _in_texts(content: Any) -> int:
    """Return the approximate number of tokens in the texts; a number is one token."""
    characters, left = 0, [content]
    while left:
        one = left.pop()
        if isinstance(one, str):
            characters += 0 if one.startswith("data:") else len(one)
        elif isinstance(one, int):
            characters += _CHARACTERS
        elif isinstance(one, Mapping):
            left.extend(value for name, value in one.items() if name not in _FILES)
        elif isinstance(one, list):
            left.extend(one)
    return -(-characters // _CHARACTERS)
