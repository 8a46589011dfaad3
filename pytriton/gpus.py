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


def visible() -> list[str]:
    """Return the GPUs that a program started here sees, each as $CUDA_VISIBLE_DEVICES would name it."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        found = [name.strip() for name in named.split(",")]
        # CUDA sees those before the first that is none ("-1", "").
        return list(itertools.takewhile(lambda name: name not in _NONE, found))
    return [str(index) for index in range(_count())]


def _count() -> int:
    if _DRIVER.is_dir():
        return len(list(_DRIVER.iterdir()))
    return len([one for one in _DEVICES.iterdir() if re.fullmatch(r"nvidia\d+", one.name)])
