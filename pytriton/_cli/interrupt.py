"""Handles Ctrl-C before a command has begun, while modules are still being imported."""

from __future__ import annotations

import os
import signal


def exit_on_interrupt() -> None:
    """Exit immediately and without a traceback on SIGINT, unless the signal is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt on SIGINT again: from now on, there may be something to clean up."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: object) -> None:
    os.write(2, b"pytriton-daemon: interrupted\n")
    os._exit(130)  # ExitCode.INTERRUPTED, whose module is not imported yet
