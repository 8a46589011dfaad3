"""A program that runs for too long is killed, and abandoned if it does not exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.real_daemon import eventually

from pytriton._host import bounded_run
from pytriton._host.bounded_run import run_bounded

#: Is traced by a child of its own, which ignores it, so it does not exit when it is killed. It writes the result of the call, and its pid.
_CANNOT_BE_KILLED = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.prctl(0x59616d61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
reader, writer = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    PTRACE_SEIZE = 0x4206
    os.write(writer, b"%d %d" % (libc.ptrace(PTRACE_SEIZE, parent, None, None), os.getpid()))
    time.sleep(1000)
with open(sys.argv[1], "wb") as file:
    file.write(os.read(reader, 20))
time.sleep(1000)
"""


def test_output_and_exit_status() -> None:
    code = "import sys; print(input()); sys.exit('an error')"
    done = run_bounded([sys.executable, "-c", code], timeout_s=60, text="said")
    assert (done.stdout, done.stderr, done.returncode) == ("said\n", "an error\n", 1)


def test_a_program_that_runs_for_too_long_is_killed() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(subprocess.TimeoutExpired):
        run_bounded([sys.executable, "-c", "import time; time.sleep(1000)"], timeout_s=0.01)
    assert set(psutil.Process().children()) <= before


def test_a_program_that_cannot_be_killed_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example nvidia-smi, if the driver of a broken GPU blocks it in the kernel."""
    started = tmp_path / "started"
    programs: list[subprocess.Popen[str]] = []

    def exceed_limit(program: subprocess.Popen[str], *_: object, timeout: float) -> None:
        programs.append(program)
        eventually(lambda: started.exists() and started.read_bytes(), "it is traced")
        raise subprocess.TimeoutExpired(program.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", exceed_limit)
    monkeypatch.setattr(bounded_run, "_EXIT_TIMEOUT_S", 0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        run_bounded([sys.executable, "-c", _CANNOT_BE_KILLED, started], timeout_s=1)
    result, tracer = map(int, started.read_text().split())
    is_abandoned = programs[0].poll() is None
    os.kill(tracer, signal.SIGKILL)
    assert programs[0].wait() == -signal.SIGKILL
    if result:
        pytest.skip("this machine does not permit tracing")
    assert is_abandoned
