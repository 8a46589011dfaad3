"""The end of a worker's process: in time, whatever threads its callable has left.

Python ends a process only when every thread that is no daemon has returned. A thread that a callable has started may
sleep or wait for work; it would keep a worker alive that has been told to end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading

#: What such threads get to return in, once nothing is served any more.
THREADS_S = 2.0


def end_in_time(code: int, threads_s: float = THREADS_S) -> None:
    """Limit the end of this process: threads get `threads_s` to return, then it exits with `code`.

    The handlers of `atexit` run in either case.
    """
    joined = threading.Event()
    atexit.register(
        joined.set
    )  # the last one is called first: when Python has waited for all threads
    watch = threading.Thread(
        target=_watch, args=(joined, code, threads_s), name="pytriton end", daemon=True
    )
    with contextlib.suppress(
        RuntimeError
    ):  # no more threads are allowed: the daemon's patience is left
        watch.start()


def _watch(joined: threading.Event, code: int, threads_s: float) -> None:
    if joined.wait(threads_s):
        return
    main = threading.main_thread()
    left = [one.name for one in threading.enumerate() if not one.daemon and one is not main]
    if not left:  # they have returned just now
        return
    names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
    print(
        f"the worker ends, and with it {len(left)} threads that the callable has left running ({names}): have them "
        "return when they should, or make them daemon threads",
        file=sys.stderr,
    )
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)
