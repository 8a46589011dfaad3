"""Something that changes, and those who wait for its next change."""

from __future__ import annotations

import asyncio


class News:
    """Wakes all who wait for the next change.

    Who waits for a condition takes `next` before looking whether it holds: a change in between is not missed then.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """What is set at the next change."""
        return self._next

    def tell(self) -> None:
        """There was a change."""
        self._next.set()
        self._next = asyncio.Event()
