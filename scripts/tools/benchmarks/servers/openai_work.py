"""The models behind the OpenAI API, the same in every server: 100 tokens at once, one every 10 ms, or embeddings.

This file is put on the path of every system's own environment, so it imports nothing but numpy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np

TOKENS = 100
EACH_S = 0.01
BATCH_S = 0.003
DIMENSIONS = 384


async def tokens(name: str) -> AsyncIterator[str]:
    """Yield the tokens of the model `burst` or `paced`."""
    for number in range(TOKENS):
        if name == "paced":
            await asyncio.sleep(EACH_S)
        yield f"token{number} "


def embed(texts: Sequence[Any]) -> Any:
    """Return a row for each text. A batch takes 3 ms, whatever its size."""
    time.sleep(BATCH_S)
    return np.full((len(texts), DIMENSIONS), 0.25, np.float32)
