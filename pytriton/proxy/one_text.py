"""The typical result of a text stream: one string for one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["OneText"]


class OneText(Sequence[Any]):
    """The results for one request whose only output `name` is one string.

    Item access creates an array, as in any results. A worker's loop uses `data` directly: creating and checking
    arrays would be half of its own work for a token.
    """

    __slots__ = ("data", "name")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return [{self.name: np.array([self.data], object)}][index]
