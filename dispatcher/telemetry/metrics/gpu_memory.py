"""Memory of processes on NVIDIA GPUs as reported by NVML. Written without access to a GPU; see docs."""

from __future__ import annotations

import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import structlog

_log = structlog.get_logger(__name__)

#: Inode of the initial pid namespace (include/uapi/linux/nsfs.h), whose process ids NVML uses.
_FIRST_NAMESPACE = 0xEFFFFFFC


class GpuMemory:
    """Queries NVML, if it can be imported and finds a driver. May block; use it from one thread at a time.

    Attributes:
        there: whether NVML is available; None until that has been tried.
    """

    def __init__(self) -> None:
        self.there: bool | None = None
        self._nvml: Any = None
        self._failing = False

    def read(self) -> Mapping[int, int]:
        """Return the bytes used by each process, on all GPUs together."""
        return {pid: sum(used.values()) for pid, used in self._by_gpu().items()}

    def most(self) -> Mapping[int, int]:
        """Return the bytes used by each process, on the GPU where it uses most."""
        return {pid: max(used.values()) for pid, used in self._by_gpu().items()}

    def _by_gpu(self) -> Mapping[int, Counter[int]]:
        if self.there is None:
            self._nvml = _started()
            self.there = self._nvml is not None
        found: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for pid, gpu, used in self._processes() if self.there else ():
            found[pid][gpu] += used
        return found

    def _processes(self) -> Iterator[tuple[int, int, int]]:
        nvml = self._nvml
        try:
            for number in range(nvml.nvmlDeviceGetCount()):
                device = nvml.nvmlDeviceGetHandleByIndex(number)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                    if process.usedGpuMemory:  # None if the driver does not report it
                        yield process.pid, number, process.usedGpuMemory
        except nvml.NVMLError as error:
            if not self._failing:
                _log.warning("NVML did not report the memory of workers", reason=str(error))
            self._failing = True
        else:
            self._failing = False


def _started() -> Any:
    """Return the initialized NVML; None if it or a driver is missing, or if it uses process ids of another namespace."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.info("GPU memory is not reported", reason=str(error))
        return None
    if os.stat("/proc/self/ns/pid").st_ino != _FIRST_NAMESPACE:
        _log.warning(
            "GPU memory is not reported: NVML uses the host's process ids, but this container has its own"
        )
        return None
    return pynvml


# ── This machine's GPUs and their memory as reported by nvidia-smi, which blocks for a while ──

_LIMIT_S = 20.0
_MIB = 1 << 20
_QUERY = "--query-gpu=index,uuid,memory.total"


class Gpu(NamedTuple):
    """A GPU: its number, UUID, and total memory in bytes."""

    number: str
    uuid: str
    total: int


def gpus() -> list[Gpu]:
    """Return this machine's GPUs; an empty list if nvidia-smi is missing or fails."""
    try:
        output = subprocess.run(
            ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([field.strip() for field in line.split(",")] for line in output.splitlines())
    return [
        Gpu(row[0], row[1], int(row[2]) * _MIB)
        for row in rows
        if len(row) == 3 and row[2].isdecimal()
    ]
