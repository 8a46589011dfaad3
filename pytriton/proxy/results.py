"""Requests and results in forms that a worker can process quickly: slices of one array, and a response that is a
single text.
"""

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
    """A list of dicts of arrays in which arrays of the same name are slices of a single array.

    Apart from that, it is a plain list. `whole` returns the single array, after checking that each item still has its
    original slice: a callable may have replaced some of them.
    """

    def __init__(
        self,
        items: Iterable[Any],
        wholes: Mapping[str, NDArray[Any]],
        slices: Mapping[str, Sequence[NDArray[Any]]],
    ) -> None:
        """Create a list in which item i has the array `slices[name][i]`, a slice of `wholes[name]`.

        Slices are consecutive.
        """
        super().__init__(items)
        self._wholes = wholes
        self._slices = slices

    def whole(self, name: str) -> NDArray[Any] | None:
        """Return the single array that contains all items' arrays; None if an item's array has been replaced."""
        slices = self._slices.get(name)
        if slices is None or len(slices) != len(self):
            return None
        for item, piece in zip(self, slices):
            if isinstance(item, BaseException):  # instead of a result
                return None
            data = item.data if type(item) is Request else item
            if data.get(name) is not piece:
                return None
        return self._wholes[name]


class OneText(Sequence[Any]):
    """The results for one request whose only output is a single string, as in a stream of text.

    Reading an item creates an array, so that this can be used like other results. A worker's loop uses `text`
    directly: creating and checking arrays would take half of its time for a token.
    """

    __slots__ = ("name", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return [{self.name: np.array([self.text.encode()], object)}][index]


#: Function that sends a text, given the name of the output, without a `yield`: as the result for the only request of an
#: asynchronous callable. The variable is set in the task of the callable's stream. If the function returns False, there is
#: no room for more, and the callable should yield soon: the `yield` waits for room.
sending: ContextVar[Optional[Callable[[str, str], bool]]] = ContextVar("sending", default=None)
