"""Sources that may block: read in a thread, read again once expired, and never awaited for long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from support.real_daemon import eventually

from pytriton.dispatcher.telemetry.metrics.blocking_source import CachedReading


class _Source:
    """A test's source: numbers, each of which must be released."""

    def __init__(self) -> None:
        self.begun = 0
        self.open = threading.Event()

    def read(self) -> int:
        self.begun += 1
        number = self.begun
        self.open.wait(60)
        return number


@pytest.fixture
def source() -> Iterator[_Source]:
    made = _Source()
    yield made
    made.open.set()


def test_an_expired_value_is_read_again(source: _Source) -> None:
    async def readings() -> list[int]:
        source.open.set()
        young, old = (
            CachedReading(0, max_age_s=max_age_s, timeout_s=60) for max_age_s in (3600.0, 0.0)
        )
        reported = [await young.get(source.read), await young.get(source.read)]
        reported += [await young.get(source.read, refresh=True)]
        return [*reported, await old.get(source.read), await old.get(source.read)]

    assert asyncio.run(readings()) == [1, 1, 2, 3, 4]


def test_a_hanging_reading_is_awaited_once_and_uses_one_thread(source: _Source) -> None:
    """The loop continues, no thread of the pool is used, and the loop's end is not delayed."""

    async def readings() -> list[int]:
        reading = CachedReading(-1, max_age_s=0.0, timeout_s=0.05)
        reported = [await reading.get(source.read)]
        # The wait has timed out: its result needs no further iteration of the loop.
        for refresh in (False, True):
            again = reading.get(source.read, refresh=refresh)
            try:
                again.send(None)
            except StopIteration as done:
                reported.append(done.value)
        return reported

    assert asyncio.run(readings()) == [-1, -1, -1]
    eventually(lambda: source.begun, "its thread reads")
    assert source.begun == 1


def test_late_values_are_reported_once_available(source: _Source) -> None:
    async def readings() -> list[int]:
        reading = CachedReading(-1, max_age_s=3600.0, timeout_s=0.0)
        reported = [await reading.get(source.read)]
        source.open.set()
        while await reading.get(source.read) < 0:
            await asyncio.sleep(0.01)
        return [*reported, await reading.get(source.read)]

    assert asyncio.run(readings()) == [-1, 1]


def test_concurrent_readers_share_one_reading(source: _Source) -> None:
    async def readings() -> list[int]:
        reading = CachedReading(-1, max_age_s=0.0, timeout_s=60.0)
        asked = [asyncio.ensure_future(reading.get(source.read)) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()  # a cancelled reader does not affect the others
        source.open.set()
        return list(await asyncio.gather(*asked[1:]))

    assert asyncio.run(readings()) == [1, 1]
