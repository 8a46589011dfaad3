"""Runs one command and ends everything that came of it: `python reaper.py COMMAND...`.

Servers leave processes behind (raylets, stubs, workers). This process makes itself the one to which orphans of
its family are given (PR_SET_CHILD_SUBREAPER), gets SIGTERM when the benchmark dies (PR_SET_PDEATHSIG), and when the
command ends or it is told to end, first asks and then kills the family. prctl(2) says how both work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 12.0


def family() -> list[psutil.Process]:
    """Return all processes below this one."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def end_family(command: subprocess.Popen[bytes]) -> None:
    """End the command by SIGTERM, after a while by SIGKILL, and then all that it left."""
    if command.poll() is None:
        command.terminate()
        try:
            command.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            command.kill()
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        left = family()
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1.0)


def main() -> int:
    """Run the command that follows on the command line; return its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    command = subprocess.Popen(
        sys.argv[1:], preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ends) and None
    )
    while command.poll() is None and os.getppid() != 1:
        if signal.sigwait(ends) != signal.SIGCHLD:
            break
        _reap_orphans(command)
    end_family(command)
    # Regions of tritonserver's stub (servers/stub.py), when it had to be killed.
    for region in Path("/dev/shm").glob(f"bench-{command.pid}-*"):
        region.unlink(missing_ok=True)
    return command.returncode or 0


def _reap_orphans(command: subprocess.Popen[bytes]) -> None:
    """Take the exit codes of processes that were given to us; the command's own is left to Popen."""
    for child in psutil.Process().children():
        if child.pid != command.pid and child.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(child.pid, os.WNOHANG)


if __name__ == "__main__":
    raise SystemExit(main())
