"""Inference callables that wrap a user's callable for embedding texts.

The texts of all requests in a batch are passed in one call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union

import numpy as np

from pytriton._callables import call_signature
from pytriton._protocol.numpy_types import MASKED, is_masked, lost_by_cast
from pytriton.openai.deltas import Embeddings

__all__ = [
    "DIMENSIONS",
    "EMBEDDING",
    "INPUT",
    "TOKENS",
    "AsyncTextEmbedding",
    "Embeddings",
    "TextEmbedding",
    "packed",
]

INPUT, EMBEDDING, TOKENS = "input_text", "embedding", "prompt_tokens"
#: The request parameter with the number of dimensions, and the argument of a callable that accepts it.
DIMENSIONS = "dimensions"
#: Prefix of token IDs (int32, little-endian). No text in UTF-8 begins with it.
_IDS = b"\xff"

#: A text, or its tokens.
Text = Union[str, "list[int]"]


class TextEmbedding:
    """Inference callable that wraps a function that maps texts to an array. It is pickled together with the
    function.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        self._takes_dimensions = takes_dimensions(target)

    def __call__(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Process a batch of requests in one call.

        If the function takes `dimensions`, make one call for each value of it.
        """
        results: dict[int, dict[str, Any]] = {}
        for part, options in _parts(requests, self._takes_dimensions):
            produced = self.target(_texts(part.values()), **options)
            results.update(zip(part, _split(part.values(), produced)))
        return [results[index] for index in range(len(requests))]


class AsyncTextEmbedding:
    """Inference callable that wraps a coroutine function, which maps texts to an array."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        self._takes_dimensions = takes_dimensions(target)

    async def __call__(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Process a batch of requests; see `TextEmbedding.__call__`."""
        results: dict[int, dict[str, Any]] = {}
        for part, options in _parts(requests, self._takes_dimensions):
            produced = self.target(_texts(part.values()), **options)
            produced = await produced if inspect.isawaitable(produced) else produced
            results.update(zip(part, _split(part.values(), produced)))
        return [results[index] for index in range(len(requests))]


def _parts(
    requests: Sequence[Any], by_dimensions: bool
) -> Iterator[tuple[dict[int, Any], dict[str, Any]]]:
    """For each call to the function, yield its requests by their index in the batch, and its additional arguments."""
    if not by_dimensions:
        yield dict(enumerate(requests)), {}
        return
    parts: dict[int | None, dict[int, Any]] = {}
    for index, request in enumerate(requests):
        requested = (request.parameters or {}).get(DIMENSIONS)
        parts.setdefault(None if requested is None else int(requested), {})[index] = request
    for dimensions, part in parts.items():
        yield part, {DIMENSIONS: dimensions}


def takes_dimensions(target: Callable[..., Any]) -> bool:
    """Return whether a callable has an argument for the number of dimensions."""
    try:
        parameters = call_signature(target).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return False
    found = parameters.get(DIMENSIONS)
    return found is not None and found.kind in (found.KEYWORD_ONLY, found.POSITIONAL_OR_KEYWORD)


def packed(text: Text) -> bytes:
    """Encode a text, or its tokens, as an input of the model."""
    if isinstance(text, str):
        return text.encode()
    return _IDS + np.array(text, "<i4").tobytes()


def _decode_text(value: Any) -> Text:
    data = value if isinstance(value, bytes) else str(value).encode()
    if data[:1] != _IDS:
        return data.decode()
    ids: list[int] = np.frombuffer(data[1:], "<i4").tolist()
    return ids


def _texts(requests: Iterable[Any]) -> list[Text]:
    return [_decode_text(value) for request in requests for value in request[INPUT].ravel()]


def _split(requests: Iterable[Any], produced: Any) -> list[dict[str, Any]]:
    counts = [len(request[INPUT]) for request in requests]
    given = produced if isinstance(produced, Embeddings) else Embeddings(produced, ())
    vectors = _vectors(given.vectors)
    if vectors.ndim != 2 or len(vectors) != sum(counts):
        raise ValueError(
            f"a callable with openai='embeddings' must return an array with a row for each of the {sum(counts)} "
            f"texts, but returned one of shape {vectors.shape}"
        )
    tokens = np.zeros((len(vectors), 1), np.int32)
    if len(given.prompt_tokens):
        given_tokens = np.asarray(given.prompt_tokens)
        numbers = (
            given_tokens.dtype.kind in "iu" and lost_by_cast(given_tokens, tokens.dtype) is None
        )
        if not numbers or given_tokens.shape != (len(vectors),) or (given_tokens < 0).any():
            raise ValueError(
                f"prompt_tokens must contain a non-negative integer for each of the {len(vectors)} texts, got "
                f"{given.prompt_tokens!r:.200}"
            )
        tokens[:, 0] = given_tokens
    results = []
    start = 0
    for count in counts:
        rows = slice(start, start + count)
        results.append({EMBEDDING: vectors[rows], TOKENS: tokens[rows]})
        start += count
    return results


def _vectors(given: Any) -> Any:
    what = "the result of a callable with openai='embeddings'"
    if is_masked(given):
        raise ValueError(f"{what} {MASKED}")
    array = np.asarray(given)
    lost = lost_by_cast(array, np.dtype(np.float32)) if array.dtype.kind in "iuf" else None
    if lost is not None:
        raise ValueError(f"{what} contains numbers that float32 cannot represent: {lost}")
    return array.astype(np.float32, copy=False)
