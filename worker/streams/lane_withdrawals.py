"""Withdrawals of lanes from workers that have several batches under way: a lane closes when its own have ended.

A worker that answers one batch after the other closes a lane between two batches (loop.py). Closing one early would end
what is under way on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytriton._protocol.lanes.lane import Lane


class Withdrawals:
    """The number of lanes that are still to be closed."""

    def __init__(self) -> None:
        self._wanted = 0

    def want(self, lanes: int) -> None:
        """Close one more; of so many lanes, no more can be closed."""
        self._wanted = min(self._wanted + 1, lanes)

    def due(self, idle: Sequence[Lane]) -> list[Lane]:
        """Return which of the lanes with nothing under way to close now; each is returned once."""
        closed = list(idle[: self._wanted])
        self._wanted -= len(closed)
        return closed
