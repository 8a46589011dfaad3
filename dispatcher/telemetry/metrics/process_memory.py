"""Measures the memory of processes: resident memory from the kernel, GPU memory from NVML. Lists this machine's GPUs,
from nvidia-smi.

The GPU parts were written without access to a GPU; see docs/reference/metrics.md.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from pytriton._host.bounded_run import run_bounded

_log = structlog.get_logger(__name__)

_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessMemory(NamedTuple):
    """Resident memory of a process, and how much of it may be shared with other processes, in bytes."""

    resident: int
    shared: int


def memory_of(pid: int) -> ProcessMemory | None:
    """Return the resident memory of a process; None if it has exited."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return ProcessMemory(int(resident) * _PAGE, int(shared) * _PAGE)


# ── on GPUs ──────────────────────────────────────────────────────────────────────────────────────

#: Inode of the initial pid namespace (include/uapi/linux/nsfs.h). NVML uses the process ids of that namespace.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


class GpuMemory:
    """GPU memory of processes, from NVML.

    Queries may block, and only one thread at a time may make them.

    Attributes:
        is_available: whether NVML can be used; None before the first query
    """

    def __init__(self) -> None:
        self.is_available: bool | None = None
        self._nvml: Any = None
        self._failing = False

    def by_process(self) -> Mapping[int, int]:
        """Return the total number of bytes that each process uses on all GPUs, by pid."""
        return {pid: sum(used.values()) for pid, used in self._by_gpu().items()}

    def peak_by_process(self) -> Mapping[int, int]:
        """Return the most memory that each process uses on any one GPU, in bytes, by pid."""
        return {pid: max(used.values()) for pid, used in self._by_gpu().items()}

    def _by_gpu(self) -> Mapping[int, Counter[int]]:
        if self.is_available is None:
            self._nvml = _initialized_nvml()
            self.is_available = self._nvml is not None
        found: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for pid, gpu, used in self._processes() if self.is_available else ():
            found[pid][gpu] += used
        return found

    def _processes(self) -> Iterator[tuple[int, int, int]]:
        nvml, faults = self._nvml, []
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            faults.append(str(error))
            count = 0
        for number in range(count):
            try:
                device = nvml.nvmlDeviceGetHandleByIndex(number)
                found = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            except nvml.NVMLError as error:  # of this GPU; the others may work
                faults.append(f"GPU {number}: {error}")
                continue
            listed = {process.pid for process in found}
            clients = [one for one in self._mps_clients(device) if one.pid not in listed]
            for process in (*found, *clients):
                if process.usedGpuMemory:  # None if the driver does not report the memory
                    yield process.pid, number, process.usedGpuMemory
        if faults and not self._failing:
            _log.warning("NVML did not report the memory of workers", reason="; ".join(faults))
        self._failing = bool(faults)

    def _mps_clients(self, device: Any) -> Sequence[Any]:
        """Return the processes that use a GPU through MPS. NVML lists these separately."""
        nvml = self._nvml
        try:
            found: Sequence[Any] = nvml.nvmlDeviceGetMPSComputeRunningProcesses(device)
        except nvml.NVMLError:  # an old driver, or a GPU without MPS
            return ()
        return found


def _initialized_nvml() -> Any:
    """Initialize NVML and return it; None if it or a driver is missing, or if it uses another namespace's process ids."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.info("GPU memory is not reported: NVML cannot be used", reason=str(error))
        return None
    if not _has_host_pids():
        _log.warning(
            "GPU memory is not reported: NVML uses the host's process ids, but this container has its own"
        )
        return None
    return pynvml


def _has_host_pids() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:  # a sandbox with a kernel of its own, such as gVisor
        return False


# ── GPUs of this machine ─────────────────────────────────────────────────────────────────────────

_NVIDIA_SMI_TIMEOUT_S = 20.0
_MIB = 1 << 20
_QUERY = "--query-gpu=index,uuid,memory.total"


class Gpu(NamedTuple):
    """A GPU: number, UUID, and total memory in bytes."""

    number: str
    uuid: str
    total: int


def gpus() -> list[Gpu]:
    """Return this machine's GPUs; an empty list if nvidia-smi is missing or fails."""
    try:
        done = run_bounded(
            ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"],
            timeout_s=_NVIDIA_SMI_TIMEOUT_S,
        )
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([field.strip() for field in line.split(",")] for line in done.stdout.splitlines())
    return [
        Gpu(row[0], row[1], int(row[2]) * _MIB)
        for row in rows
        if len(row) == 3 and row[2].isdecimal()
    ]
