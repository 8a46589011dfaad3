"""The duties of PID 1, tested in a process that adopts orphans as PID 1 does (PR_SET_CHILD_SUBREAPER, prctl(2))."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pytriton.dispatcher.runtime import init_process

_INIT = """
import ctypes, os, signal, subprocess, sys, time
from pytriton.dispatcher.runtime.init_process import be_init

SUBREAPER = 36
assert ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0) == 0
init = os.getpid()

def run():
    assert os.getppid() == init
"""
#: An orphan: its parent exits at once. A zombie would still be visible in /proc.
_ORPHAN = """
    script = "sleep 0.01 & echo $!"
    orphan = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout
    while os.path.exists(f"/proc/{int(orphan)}"):
        time.sleep(0.01)  # there is no notification of another process's child
    return 7
"""
_HEARS_TWO_SIGNALS = """
    awaited = [signal.SIGHUP, signal.SIGTERM]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    print("runs", os.getpid(), flush=True)
    print(*sorted(signal.sigwait(awaited).name for _ in awaited), flush=True)
    return 5
"""


def start(body: str) -> subprocess.Popen[str]:
    code = f"{_INIT}{body}\nsys.exit(be_init(run))\n"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_orphans_are_reaped_and_the_exit_code_is_passed_on() -> None:
    with start(_ORPHAN) as process:
        assert process.wait(60) == 7


def test_signals_are_passed_on() -> None:
    with start(_HEARS_TWO_SIGNALS) as process:
        assert first_line(process)[0] == "runs"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert first_line(process) == ["SIGHUP", "SIGTERM"]
        assert process.wait(60) == 5


def test_a_killed_daemon_is_reported_as_by_a_shell() -> None:
    with start(_HEARS_TWO_SIGNALS) as process:
        subprocess.run(["kill", "-KILL", first_line(process)[1]], check=True)
        assert process.wait(60) == 128 + signal.SIGKILL


def test_only_pid_1_runs_an_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fork", pytest.fail)
    assert init_process.run_with_init(lambda: 3) == 3
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr(init_process, "be_init", lambda run: run() + 1)
    assert init_process.run_with_init(lambda: 3) == 4
