"""The end of a worker's process: it hears that it shall end, and ends in time, whatever its callable does meanwhile.

A callable may use signals of its own (`signal.alarm` for a time limit, SIGCHLD), and fork processes that it ends with
SIGTERM (`multiprocessing`). Neither is the worker's end.

Python ends a process only when every thread that is no daemon has returned. A thread that a callable has started may
sleep or wait for work; it would keep a worker alive that has been told to end.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Optional

#: What such threads get to return in, once nothing is served any more.
THREADS_S = 2.0


class EndSignal:
    """SIGTERM as something that a loop can wait for, in this process and in no child that the callable forks.

        SIGTERM ──▶ handler ──▶ told        any signal that Python handles ──▶ woken ──▶ hear ──▶ told, of SIGTERM
        EndWorker on the control socket ──▶ tell ──▶ told

    The second way is for a callable that has replaced the handler, the first one for one that has replaced what
    `signal.set_wakeup_fd` had set, as an event loop with signal handlers does. The third one is for a callable that has
    replaced both, or ignores the signal.

    Attributes:
        told: a descriptor that becomes readable when this process is told to end
        woken: a descriptor that becomes readable at any signal; `hear` has to be called then
    """

    def __init__(self) -> None:
        """Handle SIGTERM from now on. Only the main thread can."""
        self.told, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._mine = [self.told, self._tell, self.woken, self._wake]  #: none in a child
        #: What each thread that is about to fork had blocked before.
        self._masks = threading.local()
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._handle)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._let_go_in_child,
        )

    def hear(self) -> None:
        """Look which signals have come."""
        with contextlib.suppress(BlockingIOError):
            while heard := os.read(self.woken, 4096):
                if signal.SIGTERM in heard:
                    self._handle()

    def _handle(self, number: int = 0, frame: Optional[FrameType] = None) -> None:
        self.tell()

    def tell(self) -> None:
        """Have `told` be readable from now on."""
        with contextlib.suppress(BlockingIOError):  # it has been told often enough
            os.write(self._tell, b"\0")

    def _before_fork(self) -> None:
        """Keep SIGTERM from a child that has this process's handler still: it would be heard here, and not there."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _let_go_in_child(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        others = signal.set_wakeup_fd(-1)
        if others not in (-1, self._wake):  # a child's own, if this is a child of it
            signal.set_wakeup_fd(others)
        mine, self._mine = self._mine, []
        for descriptor in mine:
            os.close(descriptor)
        self._after_fork()


def end_in_time(code: int, threads_s: float = THREADS_S) -> None:
    """Limit the end of this process: threads get `threads_s` to return, then it exits with `code`.

    The handlers of `atexit` run in either case.
    """
    # No Event and no Thread: they need functions of Python's that a callable may have replaced (`builtins.len`).
    joined = _thread.allocate_lock()
    joined.acquire()
    # The last one is called first: when Python has waited for all threads.
    atexit.register(joined.release)
    try:
        _thread.start_new_thread(_watch, (joined, code, threads_s))
    except RuntimeError:  # no more threads are allowed: the daemon's patience is left
        return


def _watch(joined: _thread.LockType, code: int, threads_s: float) -> None:
    if joined.acquire(timeout=threads_s):
        return
    ends = True
    try:
        main = threading.main_thread()
        left = [one.name for one in threading.enumerate() if not one.daemon and one is not main]
        if not left and joined.acquire(timeout=threads_s):  # they have returned just now
            ends = False
            return
        if left:
            _tell(left)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
                stream.flush()
    finally:  # whatever of Python's does not work any more
        if ends:
            os._exit(code)


def _tell(left: Sequence[str]) -> None:
    names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
    print(
        f"the worker ends, and with it {len(left)} threads that the callable has left running ({names}): have them "
        "return when they should, or make them daemon threads",
        file=sys.stderr,
    )
