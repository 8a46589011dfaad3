"""Init process of a container (PID 1), which reaps orphans and forwards signals.

A process whose parent has exited becomes a child of PID 1, and stays a zombie after its exit until PID 1 reaps it. The
kernel also drops signals to PID 1 that have no handler, so SIGTERM would have no effect while the daemon starts. PID 1
is therefore a small process that does nothing else, with the daemon as its child, as with `docker run --init`.

Source: pid_namespaces(7), "The namespace init process"; kill(2), "Notes"; sigwaitinfo(2) on si_code.
"""

from __future__ import annotations

import os
import signal
from typing import Callable

_FORWARDED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def run_with_init(run: Callable[[], int]) -> int:
    """Call `run` and return its result. If this process is PID 1, call `run` in a child process.

    Must be called while this process has only one thread.
    """
    return be_init(run) if os.getpid() == 1 else run()


def be_init(run: Callable[[], int]) -> int:
    """Call `run` in a child process; reap orphans and forward signals until the child exits, and return its exit code.

    If a signal killed the child, the result is 128 plus the signal's number, as in a shell. In the child itself, this
    function returns the result of `run`.
    """
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # if SIGCHLD were ignored, children could not be reaped
    awaited = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run()
    while True:
        caught = signal.sigwaitinfo(awaited)
        if caught.si_signo == signal.SIGCHLD:
            status = _reap(child)
            if status is not None:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif caught.si_code <= 0:
            # A process sent it. (Signals from a terminal reach the child directly.)
            os.kill(child, caught.si_signo)


def _reap(child: int) -> int | None:
    """Reap all children that have exited. If `child` is one of them, return its wait status, else None."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # no children left
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status
