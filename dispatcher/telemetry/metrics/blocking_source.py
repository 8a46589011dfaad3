"""Readings that may block, made in threads; nobody waits long for one: tritonserver's text, the state of a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class OwnThread(Executor):
    """Runs each function in a thread of its own, which the process does not wait for when it ends.

    A pool has few threads and its end waits for all of them: one that hangs on a dead file server would hold up
    everything else that is given to threads, and the daemon's end.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(fn(*args, **named))
            except BaseException as error:  # told to whoever waits
                done.set_exception(error)

        Thread(target=run, name="reading", daemon=True).start()
        return done


class Reading(Generic[T]):
    """Something that is read again when it is old, by one thread at a time.

    Args:
        unknown: what is told while there is nothing, and while a reading takes too long
        kept_s: for how long a reading is told again
        patience_s: for how long after its beginning a reading is waited for
    """

    def __init__(self, unknown: T, *, kept_s: float, patience_s: float) -> None:
        self._unknown = unknown
        self._kept_s = kept_s
        self._patience_s = patience_s
        self._reading: asyncio.Future[T] | None = None
        self._begun_at = float("-inf")

    async def get(self, read: Callable[[], T], *, anew: bool = False) -> T:
        """Return what was read last, or reads it.

        Args:
            read: reads it; called in a thread, and has to deal with its errors
            anew: read it again although it is not old
        """
        loop = asyncio.get_running_loop()
        old = anew or loop.time() >= self._begun_at + self._kept_s
        if self._reading is None or (old and self._reading.done()):
            self._begun_at = loop.time()
            self._reading = loop.run_in_executor(OwnThread(), read)
        reading = self._reading
        left_s = self._begun_at + self._patience_s - loop.time()
        if not reading.done() and left_s > 0:
            await asyncio.wait([reading], timeout=left_s)
        return reading.result() if reading.done() else self._unknown
