"""Forms of requests and results that save the worker work: slices of whole arrays, one text, a result without `yield`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from pytriton.proxy.types import Request

if TYPE_CHECKING:
    from numpy.typing import NDArray


__all__ = ["OneText", "Pieces", "sending"]


class Pieces(list[Any]):
    """A list of mappings by name; their arrays of each name are slices of ``wholes[name]``.

    Otherwise a plain list. `whole` returns a whole array after checking that each item still has its
    original slice, since a callable may have replaced any of them.
    """

    def __init__(
        self,
        items: Iterable[Any],
        wholes: Mapping[str, NDArray[Any]],
        slices: Mapping[str, Sequence[NDArray[Any]]],
    ) -> None:
        """Initialize with `slices[name][i]` as item i's slice of `wholes[name]`; the slices are consecutive."""
        super().__init__(items)
        self._wholes = wholes
        self._slices = slices

    def whole(self, name: str) -> NDArray[Any] | None:
        """Return the array that the arrays of this name are complete slices of; None if they are not (any more)."""
        slices = self._slices.get(name)
        if slices is None or len(slices) != len(self):
            return None
        for item, piece in zip(self, slices):
            if isinstance(item, BaseException):  # in place of a result
                return None
            data = item.data if type(item) is Request else item
            if data.get(name) is not piece:
                return None
        return self._wholes[name]


class OneText(Sequence[Any]):
    """The results for one request whose only output `name` is one string, as in a stream of text.

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


#: In the task of a stream of an asynchronous callable: sends what a `yield` would, while the callable awaits something; the
#: next `yield` waits while there is no room.
sending: ContextVar[Optional[Callable[[Any], None]]] = ContextVar("sending", default=None)
