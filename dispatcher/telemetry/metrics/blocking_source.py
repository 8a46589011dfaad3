"""Caches values from sources that may block, such as tritonserver's metrics or a disk.

Threads read the values, with a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class OwnThread(Executor):
    """Executor that runs each function in its own daemon thread, so that none of them delays the exit of the process.

    In a thread pool, a function that hangs (on a dead file server, say) would take a thread from other work, and delay
    the exit, because a pool waits for its threads.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(fn(*args, **named))
            except BaseException as error:  # raised to the caller that waits
                done.set_exception(error)

        Thread(target=run, name="reading", daemon=True).start()
        return done


class CachedReading(Generic[T]):
    """Cached value. After it expires, it is read again, by one thread at a time.

    Args:
        unknown: value to return if none has been read yet, or if reading takes too long
        max_age_s: how long to reuse a value, in seconds
        timeout_s: how long to wait for a reading, from its start, in seconds
    """

    def __init__(self, unknown: T, *, max_age_s: float, timeout_s: float) -> None:
        self._unknown = unknown
        self._max_age_s = max_age_s
        self._timeout_s = timeout_s
        self._reading: asyncio.Future[T] | None = None
        self._begun_at = float("-inf")

    async def get(self, read: Callable[[], T], *, refresh: bool = False) -> T:
        """Return the cached value, or read it again if it has expired.

        Args:
            read: reads the value; called in a thread, and must handle its own errors
            refresh: whether to read even if the cached value has not expired
        """
        loop = asyncio.get_running_loop()
        expired = refresh or loop.time() >= self._begun_at + self._max_age_s
        if self._reading is None or (expired and self._reading.done()):
            self._begun_at = loop.time()
            self._reading = loop.run_in_executor(OwnThread(), read)
        reading = self._reading
        left_s = self._begun_at + self._timeout_s - loop.time()
        if not reading.done() and left_s > 0:
            await asyncio.wait([reading], timeout=left_s)
        return reading.result() if reading.done() else self._unknown
