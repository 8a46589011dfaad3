"""A batching model of a callable that embeds texts: one call for the texts of all requests that wait."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from pytriton.ipc.casting import MASKED, is_masked, lost_by_cast
from pytriton.openai.vectors import Embeddings

__all__ = [
    "EMBEDDING",
    "INPUT",
    "TOKENS",
    "AsyncTextEmbedding",
    "Embeddings",
    "TextEmbedding",
    "packed",
]

INPUT, EMBEDDING, TOKENS = "input_text", "embedding", "prompt_tokens"
#: Stands before the ids of tokens (int32, little-endian); no text in UTF-8 begins with it.
_IDS = b"\xff"

#: A text, or its tokens.
Text = Union[str, "list[int]"]


class TextEmbedding:
    """The inference callable made of a function from texts to an array. It is pickled with it."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target

    def __call__(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Answer a batch of requests by one call."""
        return _split(requests, self.target(_texts(requests)))


class AsyncTextEmbedding:
    """The same of a coroutine function."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target

    async def __call__(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Answer a batch of requests by one call."""
        produced = self.target(_texts(requests))
        return _split(requests, await produced if inspect.isawaitable(produced) else produced)


def packed(text: Text) -> bytes:
    """Return the form in which a text, or its tokens, goes to the model."""
    if isinstance(text, str):
        return text.encode()
    return _IDS + np.array(text, "<i4").tobytes()


def _unpacked(value: Any) -> Text:
    data = value if isinstance(value, bytes) else str(value).encode()
    if data[:1] != _IDS:
        return data.decode()
    ids: list[int] = np.frombuffer(data[1:], "<i4").tolist()
    return ids


def _texts(requests: Sequence[Any]) -> list[Text]:
    return [_unpacked(value) for request in requests for value in request[INPUT].ravel()]


def _split(requests: Sequence[Any], produced: Any) -> list[dict[str, Any]]:
    counts = [len(request[INPUT]) for request in requests]
    given = produced if isinstance(produced, Embeddings) else Embeddings(produced, ())
    vectors = _vectors(given.vectors)
    if vectors.ndim != 2 or len(vectors) != sum(counts):
        raise ValueError(
            f"a callable with openai='embeddings' returns an array with a row for each of its {sum(counts)} texts; "
            f"this one has the shape {vectors.shape}"
        )
    tokens = np.zeros((len(vectors), 1), np.int32)
    if len(given.prompt_tokens):
        said = np.asarray(given.prompt_tokens)
        numbers = said.dtype.kind in "iu" and lost_by_cast(said, tokens.dtype) is None
        if not numbers or said.shape != (len(vectors),) or (said < 0).any():
            raise ValueError(
                f"prompt_tokens has to have a number from 0 for each of the {len(vectors)} texts, "
                f"got {given.prompt_tokens!r:.200}"
            )
        tokens[:, 0] = said
    results = []
    start = 0
    for count in counts:
        rows = slice(start, start + count)
        results.append({EMBEDDING: vectors[rows], TOKENS: tokens[rows]})
        start += count
    return results


def _vectors(given: Any) -> Any:
    what = "what a callable with openai='embeddings' returns"
    if is_masked(given):
        raise ValueError(f"{what} {MASKED}")
    array = np.asarray(given)
    lost = lost_by_cast(array, np.dtype(np.float32)) if array.dtype.kind in "iuf" else None
    if lost is not None:
        raise ValueError(f"{what} has numbers that float32 has not: {lost}")
    return array.astype(np.float32, copy=False)
