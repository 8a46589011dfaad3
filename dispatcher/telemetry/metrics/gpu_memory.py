"""The memory that processes have on NVIDIA's GPUs, as NVML tells it; written without a GPU at hand, so see docs."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

_log = structlog.get_logger(__name__)

#: The number of the kernel's first namespace of process ids (include/uapi/linux/nsfs.h). NVML counts by it.
_FIRST_NAMESPACE = 0xEFFFFFFC


class GpuMemory:
    """Asks NVML, where it can be imported and finds a driver. May block, and is for one thread at a time.

    Attributes:
        there: whether there is something to ask; None until that has been tried.
    """

    def __init__(self) -> None:
        self.there: bool | None = None
        self._nvml: Any = None
        self._failing = False

    def read(self) -> Mapping[int, int]:
        """Return the bytes of each process, on all GPUs together."""
        return {pid: sum(used.values()) for pid, used in self._by_gpu().items()}

    def most(self) -> Mapping[int, int]:
        """Return the bytes of each process, on the GPU where it has most."""
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
                    if process.usedGpuMemory:  # None where the driver does not say
                        yield process.pid, number, process.usedGpuMemory
        except nvml.NVMLError as error:
            if not self._failing:
                _log.warning("NVML does not tell the memory of workers", reason=str(error))
            self._failing = True
        else:
            self._failing = False


def _started() -> Any:
    """Return NVML, ready to be asked; None where it, or a driver, is not there, or knows processes by other numbers."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.info("no GPU memory is told", reason=str(error))
        return None
    if os.stat("/proc/self/ns/pid").st_ino != _FIRST_NAMESPACE:
        _log.warning(
            "no GPU memory is told: NVML knows processes by the host's ids, and this container has its own"
        )
        return None
    return pynvml
