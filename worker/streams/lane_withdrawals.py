"""Withdrawals of lanes from workers that run streams: a lane closes when its streams have ended.

A worker that answers one batch after the other closes a lane between two batches (loop.py). Streams last longer, and
closing a lane early would end the streams that are under way on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.ipc.lanes.lane import Lane
from pytriton.worker.streams.stream_answers import Outbox


class Withdrawals:
    """The number of lanes that are still to be closed."""

    def __init__(self) -> None:
        self._wanted = 0

    def want(self, lanes: int) -> None:
        """Close one more; of so many lanes, no more can be closed."""
        self._wanted = min(self._wanted + 1, lanes)

    def due(self, outboxes: Mapping[Lane, Outbox]) -> list[Lane]:
        """Return the lanes to close now; each is returned once."""
        if not self._wanted:
            return []
        idle = [lane for lane, box in outboxes.items() if not box.streams][: self._wanted]
        self._wanted -= len(idle)
        return idle
