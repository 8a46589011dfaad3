"""Describes the machine on which the figures were measured."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil


def facts() -> dict[str, Any]:
    """Return the hardware, versions and commit of this run, but neither host nor user names."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "commit": _commit(),
        "generators": [name for name in ("wrk", "h2load") if shutil.which(name)],
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
