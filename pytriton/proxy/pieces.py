"""A batch's requests or responses whose arrays are the slices of whole ones, so that nobody has to join them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.proxy.types import Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Pieces"]


class Pieces(list[Any]):
    """A list of mappings by name; ``wholes[name]`` is what their arrays of that name are slices of.

    It is a plain list to everybody else. Whoever takes a whole one asks `whole`, which sees whether
    each item still has the very slice it was made with: a callable may have changed any of them.
    """

    def __init__(
        self,
        items: Iterable[Any],
        wholes: Mapping[str, NDArray[Any]],
        slices: Mapping[str, Sequence[NDArray[Any]]],
    ) -> None:
        """`slices[name][i]` is the slice of `wholes[name]` that item i has; they follow one another."""
        super().__init__(items)
        self._wholes = wholes
        self._slices = slices

    def whole(self, name: str) -> NDArray[Any] | None:
        """Return what the arrays of this name are slices of, all of it; None if they are not, or not any more."""
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
