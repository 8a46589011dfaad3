"""Signals received during an execve reach the next program."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: Another thread receives the signal, which is blocked in this one. The next program prints its pending signals.
_PROGRAM = """
import os, signal, sys, threading
from pytriton.dispatcher.runtime.blocked_signals import blocked_signals

threading.Thread(target=threading.Event().wait, daemon=True).start()
heard, hears = os.pipe()
os.set_blocking(hears, False)
signal.set_wakeup_fd(hears)
told = "import signal; print(sorted(int(one) for one in signal.sigpending()))"
with blocked_signals([signal.SIGTERM, signal.SIGHUP]) as leave:
    os.kill(os.getpid(), signal.SIGTERM)
    os.read(heard, 1)  # the other thread has taken it
    leave()
    os.execv(sys.executable, [sys.executable, "-c", told])
"""


def printed(folder: Path, program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


def test_the_next_program_gets_signals_that_another_thread_received(tmp_path: Path) -> None:
    assert printed(tmp_path, _PROGRAM) == f"[{int(signal.SIGTERM)}]\n"


#: Without a next program: how often the handler was called, the signals that are pending or blocked, then once more.
_GOES_ON = """
import os, signal, sys, threading
from pytriton.dispatcher.runtime.blocked_signals import blocked_signals

came = []
signal.signal(signal.SIGHUP, lambda number, frame: came.append(number))
if "other" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
heard, hears = os.pipe()
os.set_blocking(hears, False)
signal.set_wakeup_fd(hears)
with blocked_signals([signal.SIGHUP]) as leave:
    os.kill(os.getpid(), signal.SIGHUP)
    if "other" in sys.argv:
        os.read(heard, 1)
    if "leave" in sys.argv:
        leave()
print(len(came), *signal.sigpending(), *signal.pthread_sigmask(signal.SIG_BLOCK, []))
os.kill(os.getpid(), signal.SIGHUP)
print(len(came))
"""


@pytest.mark.parametrize(
    ("how", "reported"),
    [
        ([], "1\n2\n"),  # it has waited
        (["leave"], "1\n2\n"),
        # A watcher by descriptor was already notified, and must not be notified again.
        (["other"], "0\n1\n"),
        (["other", "leave"], "0\n1\n"),
    ],
)
def test_without_an_execve_everything_is_restored(
    how: list[str], reported: str, tmp_path: Path
) -> None:
    assert printed(tmp_path, _GOES_ON, *how) == reported
