"""The answer that a stream of texts gives again and again: one string to one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["OneText"]


class OneText(Sequence[Any]):
    """The results for one request whose only output `name` is one string.

    Whoever looks inside finds an array, as in any results; it is made then. A worker's loop takes `data` as it is: the
    checks of arrays, and the array itself, are half of its own work for a token.
    """

    __slots__ = ("data", "name")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return [{self.name: np.array([self.data], object)}][index]
