"""A signal for tasks that wait for the next change of something."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Wakes all tasks that wait for the next change.

    A task that waits for a condition must take `next` before it checks the condition, so that it misses no change.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event that the next change sets."""
        return self._next

    def notify(self) -> None:
        """Signal a change to all waiting tasks."""
        self._next.set()
        self._next = asyncio.Event()
