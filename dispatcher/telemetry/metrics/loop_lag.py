"""Delay of the dispatcher's event loop, which delays every registration and every retry decision."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

from pytriton._protocol.lanes.histograms import BOUNDS_S, DURATION_BUCKETS
from pytriton._protocol.messages.metrics import Histogram

_POLL_INTERVAL_S = 1.0


class LoopLag:
    """Measures once a second how much later than scheduled the loop wakes it."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._buckets = [0] * DURATION_BUCKETS

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + _POLL_INTERVAL_S
            await asyncio.sleep(_POLL_INTERVAL_S)
            self.note(loop.time() - wanted)

    def note(self, late_s: float) -> None:
        """Record one measurement."""
        late_s = max(0.0, late_s)
        self._sum += late_s
        self._buckets[bisect_left(BOUNDS_S, late_s)] += 1

    def histogram(self) -> Histogram:
        """Return the measurements so far."""
        return Histogram(self._sum, list(self._buckets))
