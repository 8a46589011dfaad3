"""Handles Ctrl-C while modules are being imported, before and after a command has begun."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def exit_on_interrupt() -> None:
    """Exit immediately and without a traceback on SIGINT, unless the signal is ignored."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, interrupt):
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Make SIGINT raise KeyboardInterrupt again: from now on, there may be something to clean up."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, interrupt)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt where it is not lost: a signal handler."""
    if _is_lost(frame):
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        return
    raise KeyboardInterrupt


def _is_lost(frame: FrameType | None) -> bool:
    """Return True if Python would only print an exception that is raised now.

    An import's lock is freed in a weak reference's callback. `interrupt` may still run there when its own signal arrives.
    """
    if frame is not None and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
        return True
    while frame is not None and frame.f_code is not interrupt.__code__:
        frame = frame.f_back
    return frame is not None


def _exit(number: int, frame: object) -> None:
    os.write(2, b"pytriton-daemon: interrupted\n")
    os._exit(130)  # ExitCode.INTERRUPTED, whose module is not imported yet
