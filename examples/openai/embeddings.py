"""Embeddings: serve any object with sentence-transformers' `encode` at /v1/embeddings, batched over all clients.

python examples/openai/embeddings.py                                       # an encoder without weights
MODEL=sentence-transformers/all-MiniLM-L6-v2 python examples/openai/embeddings.py   # needs sentence-transformers
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pytriton.daemon import connect
from pytriton.openai import Embeddings

DIMENSIONS = 256


class Hashing:
    """An encoder without weights: the hash of a word determines its direction."""

    def encode(self, sentences: list[str], normalize_embeddings: bool = True) -> Any:
        """Return a row for each sentence."""
        rows = np.zeros((len(sentences), DIMENSIONS), np.float32)
        for row, sentence in zip(rows, sentences):
            for word in sentence.lower().split():
                code = zlib.crc32(word.encode())
                row[code % DIMENSIONS] += 1 if code & 0x80000000 else -1
        if normalize_embeddings:
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return rows


def make(name: str) -> Callable[[list[str]], Embeddings]:
    """Return the callable. This runs in the worker, so that big models are not pickled."""
    encoder: Any = Hashing()
    if name:
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(name)

    def embed(texts: list[str]) -> Embeddings:
        rows = encoder.encode(texts, normalize_embeddings=True)
        return Embeddings(rows, [len(text.split()) for text in texts])

    return embed


if __name__ == "__main__":
    factory = functools.partial(make, os.environ.get("MODEL", ""))
    connect().register(factory, "embed", openai="embeddings", factory=True, replace=True)
