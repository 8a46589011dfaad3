"""The duties of a container's first process (PID 1): reap orphans and pass signals on.

A process whose parent has ended becomes a child of PID 1, and a zombie when it ends, until PID 1 waits for it; and the
kernel drops signals for PID 1 that it has no handler for, so that SIGTERM would do nothing before the daemon runs. So
PID 1 stays a small process that does nothing else, and the daemon is its child. `docker run --init` does the same.

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
    """Return what `run` returns; in a process of its own, if this one is PID 1.

    To be called while there is only one thread.
    """
    return be_init(run) if os.getpid() == 1 else run()


def be_init(run: Callable[[], int]) -> int:
    """Call `run` in a child, bury everybody's orphans meanwhile, and return its exit code when it ends.

    One that a signal has ended gives 128 and that signal's number, as a shell does. In the child, this returns what
    `run` does.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody can be waited for
    awaited = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run()
    while True:
        caught = signal.sigwaitinfo(awaited)
        if caught.si_signo == signal.SIGCHLD:
            status = _bury(child)
            if status is not None:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif caught.si_code <= 0:  # by a process: what a terminal sends, the child has got as well
            os.kill(child, caught.si_signo)


def _bury(child: int) -> int | None:
    """Wait for all that have ended; return how the child did, if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # nobody is left
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status
