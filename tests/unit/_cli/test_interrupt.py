"""Ctrl-C at any point of a command prints one line and exits with 130, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton._protocol.exit_codes import ExitCode

#: Interrupts itself when a module is about to be imported.
PROGRAM = """
import os, signal, sys
from pytriton import _cli

module = sys.argv.pop()

class Interrupting:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
_cli.main()
"""


@pytest.mark.parametrize(
    "module",
    [
        "typer",
        "pytriton._cli.commands.status",
        "pytriton._cli.daemon_connection",  # the command itself runs
    ],
)
def test_an_interrupted_command_exits_with_130(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "status", module],
        env={**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        ExitCode.INTERRUPTED,
        "pytriton-daemon: interrupted\n",
    )


def test_an_interruption_after_the_command_is_not_a_traceback(tmp_path: Path) -> None:
    """It may arrive late: `interrupt` repeats the signal if an import would lose it."""
    at_exit = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    done = subprocess.run(
        [sys.executable, "-c", f"{at_exit}{PROGRAM}", "status", "none"],
        env={**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == ExitCode.INTERRUPTED
    assert done.stderr.endswith("\npytriton-daemon: interrupted\n")
    assert "Traceback" not in done.stderr


#: Receives a signal when the lock of an import is freed.
FREEING = """
import os, signal, sys, threading, time, weakref
from pytriton._host.interrupt import interrupt
from pytriton.triton.base import _sigterm_interrupts

class Lock: pass

class Timer(threading.Timer):
    def start(self):
        threading.Timer = usual
        super().start()
        self.join()

usual = threading.Timer
if "busy" in sys.argv:  # the repeated signal arrives before the handler has returned
    threading.Timer = Timer
number = signal.SIGTERM if "SIGTERM" in sys.argv else signal.SIGINT
source = "def cb(_): os.kill(os.getpid(), number); print('freed', flush=True)"
exec(compile(source, "<frozen importlib._bootstrap>", "exec"))
lock = Lock()
reference = weakref.ref(lock, cb)
signal.signal(signal.SIGINT, interrupt)
with _sigterm_interrupts():
    try:
        del lock
        time.sleep(60)
    except KeyboardInterrupt as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("busy", [[], ["busy"]])
@pytest.mark.parametrize(
    ("number", "error"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "_Terminated")]
)
def test_a_signal_in_the_callback_of_an_import_is_not_lost(
    number: str, error: str, busy: list[str]
) -> None:
    """Neither by a command nor by `Triton.serve`."""
    done = subprocess.run(
        [sys.executable, "-c", FREEING, number, *busy], check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"freed\n{error}\n", "")
