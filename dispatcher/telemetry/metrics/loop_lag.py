"""How late the dispatcher's event loop is: whatever holds it up holds up every registration and every verdict."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

from pytriton._protocol.lanes.histograms import BOUNDS_S, DURATION_BUCKETS
from pytriton._protocol.messages.figures import Histogram

_LOOK_S = 1.0


class LoopLag:
    """Looks once a second how much later than wanted it is woken."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._buckets = [0] * DURATION_BUCKETS

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self.note(loop.time() - wanted)

    def note(self, late_s: float) -> None:
        """Count one look."""
        late_s = max(0.0, late_s)
        self._sum += late_s
        self._buckets[bisect_left(BOUNDS_S, late_s)] += 1

    def histogram(self) -> Histogram:
        """Return what was seen until now."""
        return Histogram(self._sum, list(self._buckets))
