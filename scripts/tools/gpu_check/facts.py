"""Looks at the machine: what the rows need, and why it is missing. Written as JSON, each fact as soon as it is known."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_check import cuda

#: Allocated to see whether NVML reports the memory of this process.
_PROBE_BYTES = 64 << 20
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)


def collect(file: Path) -> None:
    """Collect all facts. A library that crashes or hangs leaves the earlier ones in the file."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "glibc": platform.libc_ver()[1],
        "cpus": len(os.sched_getaffinity(0)),
        "user": os.getuid(),
        "shm_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    looks: dict[str, Callable[[], dict[str, Any]]] = {
        "gpu": _gpu,
        "nvidia_smi": lambda: _program("nvidia-smi"),
        "mps": lambda: _program("nvidia-cuda-mps-control"),
        "nvml_pids": _nvml_pids,
        "torch": _torch,
    }
    for name, look in looks.items():
        facts[name] = _or_error(look)
        file.write_text(json.dumps(facts))
    facts["torch_gpu"] = _torch_gpu(facts["torch"])
    file.write_text(json.dumps(facts))


def _or_error(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a fact, or the error that its look raised: a broken library must not hide the other facts."""
    try:
        return look()
    except Exception as error:
        text = (
            str(error) if isinstance(error, cuda.CudaError) else f"{type(error).__name__}: {error}"
        )
        return {"error": text}


def _gpu() -> dict[str, Any]:
    """Describe the GPU that the rows use, with its name in `devices=`."""
    from pytriton._host import gpus

    count = cuda.device_count()
    chosen = os.environ.get(gpus.VARIABLE)
    # Some systems, such as WSL, have no device file for each GPU.
    names = gpus.visible() if chosen is not None else ["0"]
    if not count or not names:
        return {"error": f"no GPU visible: CUDA finds {count}, ${gpus.VARIABLE} is {chosen!r}"}
    device: Any = int(names[0]) if names[0].isdecimal() else names[0]
    return {**cuda.describe(), "count": count, "device": device}


def _program(name: str) -> dict[str, Any]:
    path = shutil.which(name)
    return {"path": path} if path else {"error": f"{name} is not on PATH"}


def _nvml_pids() -> dict[str, Any]:
    """Find out whether the daemon can learn the GPU memory of a process from NVML."""
    from pytriton.dispatcher.telemetry.metrics.process_memory import GpuMemory

    cuda.allocate(_PROBE_BYTES)
    memory = GpuMemory()
    used = memory.by_process()
    if memory.is_available is False:
        return {"error": _why_nvml_is_unavailable()}
    if used.get(os.getpid(), 0) < _PROBE_BYTES:
        return {
            "error": f"NVML does not report the memory of this process; it reports {dict(used)}"
        }
    return {"bytes": used[os.getpid()]}


def _why_nvml_is_unavailable() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML cannot be used: {error}"
    return "NVML uses the process ids of the host, but this is another pid namespace (a container)"


def _torch() -> dict[str, Any]:
    import torch

    available = torch.cuda.is_available()
    said: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "available": available,
    }
    if available:
        try:
            torch.zeros(8, device="cuda").sum().item()  # compiled for this GPU?
        except RuntimeError as error:
            said |= {"available": False, "why": str(error)[:500]}
    return said


def _torch_gpu(torch: dict[str, Any]) -> dict[str, Any]:
    """Return whether torch can use the GPU, else why not."""
    if "error" in torch:
        return torch
    if torch["available"]:
        return {}
    why = torch.get("why") or (
        "it was built without CUDA"
        if torch["cuda"] is None
        else f"it was built for CUDA {torch['cuda']} and finds no GPU"
    )
    return {"error": f"torch {torch['version']} cannot use a GPU: {why}"}


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
