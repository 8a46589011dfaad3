"""An event loop with a virtual clock that advances only when nothing else runs: a pause of an hour takes no time.

Only the loop's own time is virtual: timers, `loop.time()`, `asyncio.sleep` and time-outs. `asyncio.to_thread` runs its
function immediately, in the same thread. Processes and sockets are real, so such tests must not use them, but readable
descriptors are noticed.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, Optional, TypeVar

T = TypeVar("T")
#: Every loop registers one descriptor, to wake itself.
_OF_THE_LOOP = 1


class _Selector(selectors.DefaultSelector):
    """Advances the clock by the time-out instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.wakeups = 0

    def select(self, timeout: Optional[float] = None) -> Any:
        if timeout == 0 and len(self.get_map()) <= _OF_THE_LOOP:
            return []  # skip the system call: a callback is ready, and the test registered no descriptor
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing would ever happen: every task waits, and no timer is set")
        if not ready and timeout:
            self.now += timeout
            self.wakeups += 1
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `now` is its clock, in seconds from 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    @property
    def wakeups(self) -> int:
        """How often the loop has waited for a timer."""
        return self._virtual.wakeups

    @property
    def _clock_resolution(self) -> float:
        """The smallest step of the clock: with asyncio's own, timers fire up to a nanosecond early.

        Code that waits for the remaining nanosecond would hang, because nothing would advance the clock.
        """
        return math.ulp(self._virtual.now)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Ignore asyncio's value, which belongs to the real clock."""

    def run_in_executor(  # type: ignore[override]  # runs in the same thread
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # as an executor does
            done.set_exception(error)
        return done

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        """Do nothing: a signal would reach the process that runs the tests."""

    def run(self, doing: Awaitable[T]) -> T:
        """Run until `awaitable` is done; the clock advances as needed."""
        return self.run_until_complete(doing)

    def ask(self, question: Callable[[], T]) -> T:
        """Return the result of a function that must be called while the loop runs."""

        async def asked() -> T:
            return question()

        return self.run(asked())

    def settle(self) -> None:
        """Run until everything waits for the clock or for the test."""

        async def until_quiet() -> None:
            # A turn of the loop runs all that is ready; what these make ready runs in the next one.
            while True:
                await asyncio.sleep(0)
                if len(self._ready) == 0:  # type: ignore[attr-defined]  # nobody else is to run
                    return

        self.run_until_complete(until_quiet())

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run everything that becomes due."""
        self.run_until_complete(asyncio.sleep(seconds))
        self.settle()
