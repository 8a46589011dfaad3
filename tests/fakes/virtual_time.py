"""An event loop whose clock runs only while nothing else does: a pause of an hour takes no time, and no test waits.

Only what the loop itself knows of is virtual: timers, `loop.time()`, `asyncio.sleep` and time-outs. What is given to a
thread (`asyncio.to_thread`) is done at once, in this one. Processes and sockets are real, so they have no place in such
a test; a descriptor that is readable is seen.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, Optional, TypeVar

T = TypeVar("T")
#: Descriptors that every loop has: it wakes itself by it.
_OF_THE_LOOP = 1


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for a time-out, has the clock go on by as much."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: Optional[float] = None) -> Any:
        if timeout == 0 and len(self.get_map()) <= _OF_THE_LOOP:
            return []  # the system need not be asked: something is to be run already, and no test has a descriptor here
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing would ever happen: every task waits, and no timer is set")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `now` is its clock, in seconds from 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    @property
    def _clock_resolution(self) -> float:
        """The least step of the clock: with asyncio's own, a timer runs up to a nanosecond before its time.

        Who waits for the rest then would wait for ever, as nothing moves the clock.
        """
        return math.ulp(self._virtual.now)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """asyncio sets the one of the real clock."""

    def run_in_executor(  # type: ignore[override]  # here no thread is waited for
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
        """A signal is for the process that runs the tests."""

    def run(self, doing: Awaitable[T]) -> T:
        """Run until something is done; time goes on as far as it takes."""
        return self.run_until_complete(doing)

    def ask(self, question: Callable[[], T]) -> T:
        """Return what a function says that has to be called while the loop runs."""

        async def asked() -> T:
            return question()

        return self.run(asked())

    def settle(self) -> None:
        """Run until everything waits for time, or for the test."""

        async def until_quiet() -> None:
            # A turn of the loop runs all that is ready; what these make ready runs in the next one.
            while True:
                await asyncio.sleep(0)
                if len(self._ready) == 0:  # type: ignore[attr-defined]  # nobody else is to run
                    return

        self.run_until_complete(until_quiet())

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and run what becomes due in it."""
        self.run_until_complete(asyncio.sleep(seconds))
        self.settle()
