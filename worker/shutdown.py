"""The shutdown of a worker process: receives the end signal, and exits in time whatever its callable is doing.

A callable may use its own signals (`signal.alarm` for a time limit, SIGCHLD), and fork processes that it ends with
SIGTERM (`multiprocessing`). Neither must end the worker.

Python ends a process only when every non-daemon thread has returned. A thread started by a callable may
sleep or wait for work; it would keep a worker alive after its end signal.
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

#: How long such threads may take to return, once nothing is served any more.
THREADS_S = 2.0


class EndSignal:
    """SIGTERM as an event that a loop can wait for, in this process but not in children forked by the callable.

        SIGTERM ──▶ handler ──▶ fd        any signal that Python handles ──▶ woken ──▶ hear ──▶ fd, for SIGTERM
        EndWorker on the control socket ──▶ set ──▶ fd

    The second way works if the callable has replaced the handler, the first one if it has replaced the descriptor of
    `signal.set_wakeup_fd`, as an event loop with signal handlers does. The third one works if it has
    replaced both, or ignores the signal.

    Attributes:
        fd: a descriptor that becomes readable when this process should end
        woken: a descriptor that becomes readable at any signal; call `hear` then
    """

    def __init__(self) -> None:
        """Handle SIGTERM from now on. Must be called in the main thread."""
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._mine = [self.fd, self._write_fd, self.woken, self._wake]  #: empty in a child
        #: The signal mask of each thread that is about to fork.
        self._masks = threading.local()
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._handle)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._let_go_in_child,
        )

    def hear(self) -> None:
        """Read the signals that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while heard := os.read(self.woken, 4096):
                if signal.SIGTERM in heard:
                    self._handle()

    def _handle(self, number: int = 0, frame: Optional[FrameType] = None) -> None:
        self.set()

    def set(self) -> None:
        """Make `fd` readable from now on."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it is readable already
            os.write(self._write_fd, b"\0")

    def _before_fork(self) -> None:
        """Block SIGTERM until a child has dropped this process's handler: this process, not the child, would receive
        it.
        """
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
    """Limit the duration of this process's exit: threads get `threads_s` to return, then it exits with `code`.

    `atexit` handlers run in either case.
    """
    # No Event and no Thread: they use Python functions that a callable may have replaced (`builtins.len`).
    joined = _thread.allocate_lock()
    joined.acquire()
    # Registered last, so called first: when Python has waited for all threads.
    atexit.register(joined.release)
    try:
        _thread.start_new_thread(_watch, (joined, code, threads_s))
    except RuntimeError:  # no more threads are allowed: the daemon's own timeout remains
        return


def _watch(joined: _thread.LockType, code: int, threads_s: float) -> None:
    if joined.acquire(timeout=threads_s):
        return
    ends = True
    try:
        main = threading.main_thread()
        left = [one.name for one in threading.enumerate() if not one.daemon and one is not main]
        if not left and joined.acquire(timeout=threads_s):  # they have just returned
            ends = False
            return
        if left:
            _warn_of_threads(left)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or not being read
                stream.flush()
    finally:  # even if parts of Python no longer work
        if ends:
            os._exit(code)


def _warn_of_threads(left: Sequence[str]) -> None:
    names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
    print(
        f"the worker exits, and with it {len(left)} threads that the callable left running ({names}): let them "
        "return in time, or make them daemon threads",
        file=sys.stderr,
    )
