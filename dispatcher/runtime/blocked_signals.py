"""Block signals while this process executes another program, so that none is lost, whichever thread receives it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def waiting(numbers: Collection[signal.Signals]) -> Iterator[Callable[[], None]]:
    """Block signals for the duration of this block, in the main thread.

    Only this thread blocks them: another one may receive a signal for the process. Python then records it for the main
    thread, and execve would lose the record.

    Gives:
        a function to call just before execve; it makes received signals pending for the next program
    """
    came: set[int] = set()

    def note(number: int, frame: FrameType | None) -> None:
        came.add(number)

    def leave() -> None:
        for number in came:
            signal.pthread_kill(
                threading.get_ident(), number
            )  # blocked in this thread, it stays pending across execve

    former = {number: signal.signal(number, note) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield leave
    finally:
        # There was no execve. Watchers of signal.set_wakeup_fd have been notified already.
        for number in came & signal.sigpending():
            signal.sigtimedwait([number], 0)
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
