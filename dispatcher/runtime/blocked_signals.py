"""Signals that wait while this process becomes another program by execve(2): none is lost, whichever thread gets it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def waiting(numbers: Collection[signal.Signals]) -> Iterator[Callable[[], None]]:
    """Have signals wait in this block, which belongs to the main thread.

    They are blocked in that thread alone: another one may take a signal for the process. Python then notes it for the
    main thread, and execve would forget the note.

    Gives:
        a function to call just before execve: what has come waits for the next program
    """
    came: set[int] = set()

    def note(number: int, frame: FrameType | None) -> None:
        came.add(number)

    def leave() -> None:
        for number in came:
            signal.pthread_kill(threading.get_ident(), number)  # blocked here, it stays over execve

    former = {number: signal.signal(number, note) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield leave
    finally:
        # There was no execve. Who watches signals by a descriptor has heard of them already (signal.set_wakeup_fd).
        for number in came & signal.sigpending():
            signal.sigtimedwait([number], 0)
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
