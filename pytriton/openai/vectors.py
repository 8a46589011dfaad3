"""The value of a callable that embeds texts. Without numpy: all that register a model import this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Embeddings"]


@dataclass(frozen=True)
class Embeddings:
    """A value that a callable may return instead of an array, to say how many tokens the texts had.

    Args:
        vectors: an array with a row for each text
        prompt_tokens: the number of tokens of each text
    """

    vectors: Any
    prompt_tokens: Sequence[int]
