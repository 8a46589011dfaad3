"""Measures the CPU time and memory of a tree of processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytriton._protocol import linux


@dataclass(frozen=True)
class Use:
    """The resources that a tree has used so far."""

    cpu_s: float
    faults: int  #: minor page faults
    processes: int


def tree(pid: int) -> list[psutil.Process]:
    """Return the descendants of a process, without those that exit during the call."""
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def use(pid: int) -> Use:
    """Return the CPU time (user and system, seconds) and the page faults of a process's descendants.

    A process that has exited is not counted, so none may exit during a measurement.
    """
    total, faults, count = 0.0, 0, 0
    for process in tree(pid):
        try:
            cpu_s = time.clock_gettime(_cpu_clock(process.pid))
            faults += int(linux.stat_fields(f"/proc/{process.pid}/stat")[10])  # minor faults
        except OSError:  # it has exited
            continue
        total += cpu_s
        count += 1
    return Use(total, faults, count)


def _cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock, which counts nanoseconds; /proc/PID/stat counts hundredths of a second.

    Source: the kernel's include/linux/posix-timers.h (CPUCLOCK_SCHED), for clock_getcpuclockid(3).
    """
    return ~pid << 3 | 2


def memory_mb(pids: list[int]) -> float:
    """Return the memory of processes in MB as their PSS would be if they were alone on the machine.

    The kernel's PSS divides a page of a file by all processes that have it mapped: with other tritonservers and
    Pythons running, a server would seem smaller than it is. Here pages that are shared count in full, and once for
    all processes that have the same part of the same file mapped. Source: proc_pid_smaps(5).
    """
    alone, files = 0, dict[tuple[str, ...], int]()
    for pid in pids:
        for key, sizes in _mappings(pid):
            private = sizes["Private_Clean"] + sizes["Private_Dirty"]
            if key[-1] == "0":  # no file: shared with a parent since a fork
                alone += sizes["Pss"]
                continue
            alone += private
            files[key] = max(files.get(key, 0), sizes["Rss"] - private)
    return (alone + sum(files.values())) * 1024 / 1e6


def _mappings(pid: int) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Yield each mapping of a process: which part of which file (device, offset, length, inode), sizes in kB."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    key: tuple[str, ...] = ()
    sizes: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            if rest.endswith(" kB"):
                sizes[name[:-1]] = int(rest[:-3])
            continue
        if sizes:
            yield key, sizes
        first, last = (int(end, 16) for end in name.split("-"))
        _, offset, device, inode = rest.split()[:4]
        key, sizes = (device, offset, str(last - first), inode), {}
    if sizes:
        yield key, sizes


def wait_calm(pid: int) -> None:
    """Wait until a tree uses less than a quarter of a core, at most ten seconds."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        before = use(pid).cpu_s
        time.sleep(0.5)  # the period whose CPU time is measured
        if use(pid).cpu_s - before < 0.125:
            return


def machine_cpu_s() -> float:
    """Return the CPU time that all processes of this machine have used, in seconds."""
    times = psutil.cpu_times()
    unused = times.idle + times.iowait + times.steal
    return float(sum(times) - unused - times.guest - times.guest_nice)


def stolen_cpu_s() -> float:
    """Return the CPU time that a hypervisor kept from programs that were ready to run, in seconds."""
    return float(psutil.cpu_times().steal)
