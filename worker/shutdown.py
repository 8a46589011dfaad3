"""Shuts a worker process down: receives the end signal, and exits in time whatever the callable is doing.

A callable may use signals itself (`signal.alarm` for a time limit, SIGCHLD), and may fork processes and end them with
SIGTERM (`multiprocessing`). Neither must end the worker.

Python exits only after every non-daemon thread has returned. A thread started by the callable may sleep or wait for
work, and would keep the worker alive after its end signal.
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

#: How long threads of the callable may take to return when the worker exits.
THREADS_S = 2.0


class EndSignal:
    """Turns SIGTERM into a descriptor that a loop can wait for.

    In children forked by the callable, SIGTERM has its default action.

        SIGTERM ──▶ handler ──▶ fd        any signal that Python handles ──▶ woken ──▶ read_signals ──▶ fd, for SIGTERM
        EndWorker on the control socket ──▶ set ──▶ fd

    The handler works even if the callable has replaced the descriptor of `signal.set_wakeup_fd`, as an event loop with
    signal handlers does. `woken` works even if the callable has replaced the handler. `set` works even if the callable
    has replaced both, or ignores the signal.

    Attributes:
        fd: a descriptor that becomes readable when this process should end
        woken: a descriptor that becomes readable on any signal; `read_signals` must then be called
    """

    def __init__(self) -> None:
        """Handle SIGTERM from now on. Only the main thread may create this object."""
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        #: Empty in a forked child.
        self._descriptors = [self.fd, self._write_fd, self.woken, self._wake]
        #: The signal mask of each thread that is about to fork.
        self._masks = threading.local()
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._handle)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._reset_in_child,
        )

    def read_signals(self) -> None:
        """Read the signals from `woken`. If SIGTERM is among them, make `fd` readable."""
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
        """Block SIGTERM until the child has removed this handler, which would write to its parent's pipe."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _reset_in_child(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        others = signal.set_wakeup_fd(-1)
        if others not in (-1, self._wake):  # set by a child of the worker that has forked, too
            signal.set_wakeup_fd(others)
        mine, self._descriptors = self._descriptors, []
        for descriptor in mine:
            os.close(descriptor)
        self._after_fork()


def end_in_time(code: int, threads_s: float = THREADS_S) -> None:
    """Limit how long this process takes to exit: after `threads_s`, exit with `code` even if threads are running.

    `atexit` handlers run in either case.
    """
    # Not Event and Thread, because they use Python functions that a callable may have replaced (`builtins.len`).
    joined = _thread.allocate_lock()
    joined.acquire()
    # Registered last, so it is called first, after Python has waited for all threads.
    atexit.register(joined.release)
    try:
        _thread.start_new_thread(_watch, (joined, code, threads_s))
    except RuntimeError:
        return  # no more threads are allowed; the daemon kills the worker after its own timeout


def _watch(joined: _thread.LockType, code: int, threads_s: float) -> None:
    if joined.acquire(timeout=threads_s):
        return
    ends = True
    try:
        main = threading.main_thread()
        left = [one.name for one in threading.enumerate() if not one.daemon and one is not main]
        if not left and joined.acquire(timeout=threads_s):  # the last thread has just returned
            ends = False
            return
        if left:
            _warn_of_threads(left)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
                stream.flush()
    finally:  # even if parts of Python no longer work
        if ends:
            os._exit(code)


def _warn_of_threads(left: Sequence[str]) -> None:
    names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
    print(
        f"the worker exits although threads of the callable are still running: {names}. Make them return in time, "
        "or make them daemon threads",
        file=sys.stderr,
    )
