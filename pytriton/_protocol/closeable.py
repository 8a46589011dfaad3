"""Base class of objects that must be closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closeable")


class Closeable(ABC):
    """Base class of context managers that call `close` at the end of their block."""

    @abstractmethod
    def close(self) -> None:
        """Release the object's resources. Calling it again does nothing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
