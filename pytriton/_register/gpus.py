"""The GPUs of this machine: how many there are, and what CUDA calls them.

As everywhere in CUDA, the n-th GPU is the n-th of those that $CUDA_VISIBLE_DEVICES names, where that is set.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: One folder for each GPU, where NVIDIA's driver is loaded; and their device files, which containers have.
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_NONE = ("", "-1", "NoDevFiles")
#: What shows the slices (MIG) that GPUs are divided into: CUDA counts those then.
_SLICES = Path("/proc/driver/nvidia/capabilities")
#: Ways to GPUs that are not counted by files: Windows' (WSL), Jetson's, AMD's, which reads CUDA's variable, too.
_OTHER_WAYS = ("dxg", "nvhost-gpu", "nvmap", "kfd")
#: Of digits; no machine has more GPUs.
_LONGEST_NUMBER = 6


def visible() -> list[str]:
    """Return the GPUs that a program started here sees, each as $CUDA_VISIBLE_DEVICES would name it."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        found = [name.strip() for name in named.split(",")]
        # CUDA sees those before the first that is none ("-1", "").
        return list(itertools.takewhile(lambda name: name not in _NONE, found))
    return [str(index) for index in range(_count())]


def missing(devices: str) -> str | None:
    """Return the GPUs of a $CUDA_VISIBLE_DEVICES that this machine lacks; None if it lacks none, as far as files tell.

    A variable of this process does not matter: that value takes its place.
    """
    names = [name for name in devices.split(",") if name not in _NONE]
    count = _known_count()
    if count is None or not names:
        return None
    if not count:
        return (
            f"{names[0][:80]}: this machine has no GPU that CUDA could use (there is no /dev/nvidia0; a container has "
            "to be given its GPUs)"
        )
    for name in names:
        if name.isdecimal() and (len(name) > _LONGEST_NUMBER or int(name) >= count):
            those = "GPU 0 alone" if count == 1 else f"the GPUs 0 to {count - 1}"
            return f"{name[:80]}: this machine has {those}"
        ids = _ids() if name.startswith("GPU-") else None
        if ids is not None and not any(one.lower().startswith(name.lower()) for one in ids):
            return f"{name[:80]}: this machine has {', '.join(ids)}"
    return None


def _files() -> list[str]:
    return [one.name for one in _DEVICES.iterdir() if re.fullmatch(r"nvidia\d+", one.name)]


def _count() -> int:
    """Return the number of GPUs. A container may have files for some of those that the driver shows."""
    files = len(_files())
    if not _DRIVER.is_dir():
        return files
    shown = len(list(_DRIVER.iterdir()))
    return min(files, shown) if files else shown


def _known_count() -> int | None:
    """Return how many numbers CUDA gives to GPUs; None: without asking CUDA, nobody knows."""
    if any((_DEVICES / name).exists() for name in _OTHER_WAYS):
        return None
    if any(_SLICES.glob("gpu*/mig/gi*")):
        return None
    count = _count()
    # With a driver and without files: whoever asks CUDA first makes them (nvidia-modprobe), or may not.
    return None if count and not _files() else count


def _ids() -> list[str] | None:
    """Return the UUIDs of all GPUs; None: the driver does not tell them (yet)."""
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
