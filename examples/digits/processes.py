"""List the processes of a daemon, and check that all have exited, for scripts/demo.

pytriton-daemon status --json | python processes.py list      prints their pids
python processes.py check PID...                              exits with 1 if one of them still runs
"""

from __future__ import annotations

import json
import os
import sys

import psutil


def family(status: dict[str, object]) -> list[int]:
    """Return the pids of the daemon and of everything below it."""
    daemon = psutil.Process(int(str(status["pid"])))
    return [daemon.pid, *(child.pid for child in daemon.children(recursive=True))]


def _runs(pid: int) -> bool:
    try:
        # A zombie, which has exited but was not waited for, does not count as running.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left_behind(pids: list[int]) -> list[str]:
    """Return which of these processes still run, and their shared memory."""
    running = [f"process {pid}" for pid in pids if _runs(pid)]
    memory = [f"/dev/shm/{e.name}" for e in os.scandir("/dev/shm") if f"-{pids[0]}-" in e.name]
    return running + memory


if __name__ == "__main__":
    if sys.argv[1] == "list":
        print(*family(json.load(sys.stdin)))
    else:
        pids = [int(pid) for pid in sys.argv[2:]]
        left = left_behind(pids)
        if left:
            sys.exit(f"error: left behind: {', '.join(left)}")
        print(f"ended: daemon, tritonserver and workers ({len(pids)} processes), nothing left")
