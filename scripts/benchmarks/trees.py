"""What a tree of processes uses: CPU time and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Use:
    """What a tree has used so far."""

    cpu_s: float
    processes: int


def tree(pid: int) -> list[psutil.Process]:
    """Return a process's descendants; those that end meanwhile may be missing."""
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def use(pid: int) -> Use:
    """Return the CPU time (user and system, seconds) of a process's descendants.

    A process that ended counts no more: during a measurement none may.
    """
    total, count = 0.0, 0
    for process in tree(pid):
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += times.user + times.system
        count += 1
    return Use(total, count)


def pss_mb(pids: list[int]) -> float:
    """Return the proportional set size of processes in MB: shared pages are counted once in all.

    Source: proc_pid_smaps(5), smaps_rollup.
    """
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


def wait_calm(pid: int, timeout_s: float) -> None:
    """Return when a tree uses less than a quarter of a core, or the time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = use(pid).cpu_s
        time.sleep(0.5)  # what it uses meanwhile is what is asked
        if use(pid).cpu_s - before < 0.125:
            return


def machine_cpu_s() -> float:
    """Return the CPU time that everything on the machine has used, in seconds, the hypervisor's theft too."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
