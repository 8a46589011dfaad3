"""Limits how many models are loaded at once after a start, counting registered and repository models together.

A load holds its slot until it ends or waits for memory. If no slot becomes free for a few seconds, a temporary one is
added. So a load that hangs, or that calls a model that is not loaded yet, delays others by seconds, not by
`load_timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pytriton.dispatcher.runtime.tasks import ChangeSignal

#: Maximum number of concurrent loads. Each may use all cores, or just wait for disk or network.
MAX_CONCURRENT_LOADS = 8
#: An extra slot is added if none has become free for this long.
EXTRA_SLOT_AFTER_S = 10.0

T = TypeVar("T")
#: Returns when a load has ended or waits for something that others do not need, given its task and model name.
UntilReleased = Callable[["asyncio.Task[Any]", str], Awaitable[None]]


async def _until_done(loading: asyncio.Task[Any], name: str) -> None:
    await asyncio.wait([loading])


class LoadSlots:
    """A limited number of slots for concurrent loads, first come, first served.

    Args:
        until_released: returns once a load no longer needs its slot
        most: the number of slots while no load takes long
    """

    def __init__(
        self, until_released: UntilReleased = _until_done, most: int = MAX_CONCURRENT_LOADS
    ) -> None:
        self.until_released = until_released
        self._most = most
        self._taken = self._extra = 0
        self._queue = asyncio.Lock()
        self._released = ChangeSignal()
        self._watchers: set[asyncio.Task[None]] = set()

    async def until_free(self) -> None:
        """Wait until the next load may begin. The caller must call `begin` before it awaits anything else."""
        async with self._queue:
            while self._taken >= self._most + self._extra:
                released = asyncio.ensure_future(self._released.next.wait())
                try:
                    done, _ = await asyncio.wait([released], timeout=EXTRA_SLOT_AFTER_S)
                finally:
                    released.cancel()
                self._extra += not done

    def begin(self, name: str, load: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start loading a model in a slot. Return the task."""
        loop = asyncio.get_running_loop()
        loading = loop.create_task(load)
        self._taken += 1
        watcher = loop.create_task(self._release(loading, name))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return loading

    async def _release(self, loading: asyncio.Task[Any], name: str) -> None:
        try:
            await self.until_released(loading, name)
        finally:
            self._taken -= 1
            self._extra = min(self._extra, max(0, self._taken + 1 - self._most))
            self._released.notify()
