"""Blocks signals across execve(2), so that the next program receives every signal that arrives in the meantime."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def blocked_signals(numbers: Collection[signal.Signals]) -> Iterator[Callable[[], None]]:
    """Keep signals blocked in the main thread until the end of this context.

    Other threads may still receive a signal. Python then only records it for the main thread, and execve would lose
    that record.

    Yields:
        A function to call just before execve, which makes all received signals pending for the next program.
    """
    received: set[int] = set()

    def record(number: int, frame: FrameType | None) -> None:
        received.add(number)

    def make_pending() -> None:
        for number in received:
            # This thread blocks the signal, so it stays pending across execve.
            signal.pthread_kill(threading.get_ident(), number)

    handlers = {number: signal.signal(number, record) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield make_pending
    finally:
        # execve failed. Users of signal.set_wakeup_fd have been notified of these signals already, so discard them.
        for number in received & signal.sigpending():
            signal.sigtimedwait([number], 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
