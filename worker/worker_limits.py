"""A worker's resource limits, set before the callable is loaded, and its recycling limits, checked after every batch."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import time

from pytriton._protocol import messages
from pytriton.worker import gpu_faults

#: Makes the kernel kill workers before tritonserver and the dispatcher when memory runs out (proc(5), oom_score_adj, from
#: -1000 "never" to 1000 "first"). The kernel adds it to the process's share of memory in thousandths. With less than 1000,
#: it would kill a large tritonserver before a small worker.
_OOM_SCORE_ADJ = 1000
_OOM_FILE = "/proc/self/oom_score_adj"
#: A worker with a memory limit but without recycle_above is replaced at this fraction of the limit.
_NEAR = 0.9


class LimitError(Exception):
    """A limit cannot be set on this system; the text names the limit."""


def apply(limits: messages.Limits) -> None:
    """Set this process's limits, which its child processes inherit.

    The memory limit is RLIMIT_DATA. Since Linux 4.7 it counts private writable memory, but unlike RLIMIT_AS not the
    address space that CUDA reserves.

    Raises:
        LimitError: the system refuses a limit.
    """
    # Some sandboxes lack this file. Binary, because importing a codec would take longer than everything else here.
    with contextlib.suppress(OSError), open(_OOM_FILE, "wb", buffering=0) as file:
        file.write(b"%d" % _OOM_SCORE_ADJ)
    if limits.memory_limit is not None:
        _set("memory_limit", resource.RLIMIT_DATA, limits.memory_limit)
    if limits.open_files is not None:
        _set("open_files", resource.RLIMIT_NOFILE, limits.open_files)
    if limits.cpus:
        try:
            os.sched_setaffinity(0, limits.cpus)
        except OSError as error:
            there = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise LimitError(
                f"limits: cpus={limits.cpus} cannot be used ({error.strerror}); this process may use: {there}"
            ) from error
    if limits.nice:
        try:
            os.nice(limits.nice)
        except OSError as error:
            raise LimitError(
                f"limits: nice={limits.nice} was refused ({error.strerror}); only root may go below 0"
            ) from error


def _set(name: str, which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY and value > hard:
        raise LimitError(f"limits: {name}={value} is more than this system allows: {hard}")
    resource.setrlimit(which, (value, value))


#: Minimum time between two reports, in seconds.
_AGAIN_S = 10.0


class Allowance:
    """Decides when a worker is recycled: after a number of batches, above an amount of memory, or after a GPU failure."""

    def __init__(self, spec: messages.ModelSpec) -> None:
        limits = spec.limits
        self._max_batches = spec.max_batches
        self._memory = limits.recycle_above
        if self._memory is None and limits.memory_limit is not None:
            self._memory = round(limits.memory_limit * _NEAR)
        self._unlimited = self._memory is None and self._max_batches is None
        self._again_at: float | None = None  #: when to report next; None before the first report

    def exceeded(self, answered: int) -> tuple[messages.RecycleReason, str] | None:
        """Return why this worker should be recycled now; None if it should not be, or if the reason was reported
        recently.

        A report is repeated, because it may be lost while the daemon is being upgraded.
        """
        if self._unlimited and gpu_faults.noted() is None:
            return None
        if self._again_at is not None and time.monotonic() < self._again_at:
            return None
        why = self._why(answered)
        self._again_at = None if why is None else time.monotonic() + _AGAIN_S
        return why

    def _why(self, answered: int) -> tuple[messages.RecycleReason, str] | None:
        fault = gpu_faults.noted()
        if fault is not None:
            return messages.RecycleReason.GPU, fault
        if self._max_batches is not None and answered >= self._max_batches:
            text = f"it has answered {answered} batches (max_batches={self._max_batches})"
            return messages.RecycleReason.MAX_BATCHES, text
        if self._memory is not None:
            used = own_memory()
            if used > self._memory:
                text = f"it uses {_mib(used)} of memory, more than {_mib(self._memory)} (limits)"
                return messages.RecycleReason.MEMORY, text
        return None


def own_memory() -> int:
    """Return this process's resident memory, without shared pages, in bytes (proc(5), statm)."""
    with open("/proc/self/statm", "rb") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
