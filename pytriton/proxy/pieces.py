"""A batch's requests or responses as slices of whole arrays, so that they need not be joined again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.proxy.types import Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Pieces"]


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
