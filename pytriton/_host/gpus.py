"""The GPUs of this machine: their number, and their names in CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: One folder per GPU if NVIDIA's driver is loaded; and their device files, which exist in containers.
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_NONE = ("", "-1", "NoDevFiles")
#: Present if GPUs are divided into slices (MIG), which CUDA then counts instead.
_SLICES = Path("/proc/driver/nvidia/capabilities")
#: Access to GPUs without countable files: Windows (WSL), Jetson, and AMD, which also reads CUDA's variable.
_OTHER_WAYS = ("dxg", "nvhost-gpu", "nvmap", "kfd")
#: Maximum number of digits; no machine has more GPUs.
_MAX_DIGITS = 6


def visible() -> list[str]:
    """Return the GPUs that a program started here can use, named as in $CUDA_VISIBLE_DEVICES."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        found = [name.strip() for name in named.split(",")]
        # CUDA ignores an invalid entry ("-1", "") and all that follow it.
        return list(itertools.takewhile(lambda name: name not in _NONE, found))
    return [str(index) for index in range(_count())]


def missing(devices: str) -> str | None:
    """Describe the first GPU in `devices` that this machine lacks, judging by device files; None if it has all of them.

    `devices` is a value for $CUDA_VISIBLE_DEVICES. This process's own variable is ignored, since `devices` replaces it.
    """
    names = [name for name in devices.split(",") if name not in _NONE]
    count = _known_count()
    if count is None or not names:
        return None
    if not count:
        return (
            f"{names[0][:80]}: this machine has no GPU for CUDA (/dev/nvidia0 does not exist; in a container, start it "
            "with its GPUs)"
        )
    for name in names:
        if name.isdecimal() and (len(name) > _MAX_DIGITS or int(name) >= count):
            those = "only GPU 0" if count == 1 else f"the GPUs 0 to {count - 1}"
            return f"{name[:80]}: this machine has {those}"
        ids = _ids() if name.startswith("GPU-") else None
        if ids is not None and not any(one.lower().startswith(name.lower()) for one in ids):
            return f"{name[:80]}: this machine has {', '.join(ids)}"
    return None


def _files() -> list[str]:
    return [one.name for one in _DEVICES.iterdir() if re.fullmatch(r"nvidia\d+", one.name)]


def _count() -> int:
    """Return the number of GPUs. A container may have device files for only some of the driver's GPUs."""
    files = len(_files())
    if not _DRIVER.is_dir():
        return files
    shown = len(list(_DRIVER.iterdir()))
    return min(files, shown) if files else shown


def _known_count() -> int | None:
    """Return the number of GPU indices in CUDA; None if it cannot be determined without CUDA."""
    if any((_DEVICES / name).exists() for name in _OTHER_WAYS):
        return None
    if any(_SLICES.glob("gpu*/mig/gi*")):
        return None
    count = _count()
    # With a driver but no files: the first CUDA program creates them (nvidia-modprobe), or may not be allowed to.
    return None if count and not _files() else count


def _ids() -> list[str] | None:
    """Return the UUIDs of all GPUs; None if the driver does not report them (yet)."""
    found: list[str] = []
    for folder in sorted(_DRIVER.iterdir()) if _DRIVER.is_dir() else ():
        try:
            said = (folder / "information").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        one = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", said, re.MULTILINE)
        if one is None:
            return None
        found.append(one[1])
    return found or None
