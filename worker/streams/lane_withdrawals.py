"""Withdraws lanes from workers with several batches in flight: a lane closes when its own batches have ended.

A worker that answers one batch at a time closes a lane between two batches (loop.py). Closing one earlier would abort
its batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytriton._protocol.lanes.lane import Lane


class Withdrawals:
    """The number of lanes still to be closed."""

    def __init__(self) -> None:
        self._wanted = 0

    def want(self, lanes: int) -> None:
        """Close one more lane; at most `lanes` can be closed."""
        self._wanted = min(self._wanted + 1, lanes)

    def due(self, idle: Sequence[Lane]) -> list[Lane]:
        """Return which of the idle lanes to close now. Each is returned once."""
        closed = list(idle[: self._wanted])
        self._wanted -= len(closed)
        return closed
