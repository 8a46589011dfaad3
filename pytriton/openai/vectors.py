"""The return value of a callable that embeds texts. Does not import numpy: all that register models import this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Embeddings"]


@dataclass(frozen=True)
class Embeddings:
    """A return value to use instead of an array, to report the number of tokens of the texts.

    Args:
        vectors: an array with a row for each text
        prompt_tokens: the number of tokens of each text
    """

    vectors: Any
    prompt_tokens: Sequence[int]
