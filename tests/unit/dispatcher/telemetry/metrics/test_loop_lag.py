"""How late the event loop is, as a histogram."""

from __future__ import annotations

import asyncio
import contextlib

from fakes.virtual_time import VirtualLoop

from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton.dispatcher.telemetry.metrics.snapshot import LoopLag


def test_each_look_counts_in_its_bucket() -> None:
    lag = LoopLag()
    for late_s in (-1.0, BOUNDS_S[2], BOUNDS_S[-1] * 2):
        lag.note(late_s)
    found = lag.histogram()
    assert found.sum == BOUNDS_S[2] + BOUNDS_S[-1] * 2  # a clock's step back is no time
    assert [at for at, count in enumerate(found.buckets) if count] == [0, 2, len(BOUNDS_S)]


def test_it_looks_once_a_second() -> None:
    lag, loop = LoopLag(), VirtualLoop()

    async def three_looks() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(lag.run(), 3.5)

    loop.run_until_complete(three_looks())
    loop.close()
    assert sum(lag.histogram().buckets) == 3
