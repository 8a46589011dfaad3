"""Handles signals while modules are being imported, before and after a command has begun."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from types import FrameType


def exit_on_interrupt() -> None:
    """Exit immediately and without a traceback on SIGINT, unless the signal is ignored."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, interrupt):
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Make SIGINT raise KeyboardInterrupt again: from now on, there may be something to clean up."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, interrupt)


def raise_from_handler(error: type[BaseException], number: int, frame: FrameType | None) -> None:
    """Raise an exception or, where Python would only print it, repeat the signal.

    With the first argument bound by `functools.partial`, this is the handler of a signal. An import's lock is freed in a
    weak reference's callback, from which no exception propagates. The repeated signal may arrive while this function
    still runs there.
    """
    innermost = frame
    while frame is not None and frame.f_code is not raise_from_handler.__code__:
        frame = frame.f_back
    in_import = (
        innermost is not None and innermost.f_code.co_filename == "<frozen importlib._bootstrap>"
    )
    if frame is None and not in_import:
        raise error
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()


#: The handler of a signal that is to raise KeyboardInterrupt.
interrupt = partial(raise_from_handler, KeyboardInterrupt)


def _exit(number: int, frame: object) -> None:
    os.write(2, b"pytriton-daemon: interrupted\n")
    os._exit(130)  # ExitCode.INTERRUPTED, whose module is not imported yet
