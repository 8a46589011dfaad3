"""Runs a command and, when it ends, kills all processes that it left behind: `python reaper.py COMMAND...`.

Servers leave processes behind (raylets, stubs, workers). This process becomes the parent of orphaned descendants
(PR_SET_CHILD_SUBREAPER) and gets SIGTERM when the benchmark dies (PR_SET_PDEATHSIG); see prctl(2).
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
_GRACE_PERIOD_S = 12.0


def descendants() -> list[psutil.Process]:
    """Return all descendants of this process."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def stop_all(command: subprocess.Popen[bytes]) -> None:
    """Stop the command by SIGTERM, after the grace period by SIGKILL, and then kill its descendants."""
    if command.poll() is None:
        command.terminate()
        try:
            command.wait(_GRACE_PERIOD_S)
        except subprocess.TimeoutExpired:
            command.kill()
    deadline = time.monotonic() + _GRACE_PERIOD_S
    while time.monotonic() < deadline:
        left = descendants()
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1.0)


def main() -> int:
    """Run the command on the command line. Return its exit code."""
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
    stop_all(command)
    # Shared memory of Triton's stub (servers/stub.py), if it had to be killed.
    for region in Path("/dev/shm").glob(f"bench-{command.pid}-*"):
        region.unlink(missing_ok=True)
    return command.returncode or 0


def _reap_orphans(command: subprocess.Popen[bytes]) -> None:
    """Reap adopted processes that have exited. Popen reaps the command itself."""
    for child in psutil.Process().children():
        if child.pid != command.pid and child.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(child.pid, os.WNOHANG)


if __name__ == "__main__":
    raise SystemExit(main())
