"""The number of compute threads of a worker's libraries: its share of the cores, unless the user sets it.

numpy, torch, scikit-learn and similar libraries start one thread per core in each process. If several workers compute
concurrently, these threads busy-wait for each other: two instances of a torch model on two cores are three times
slower than with one thread each.

The share is the number of cores divided by the maximum number of the model's workers: the declared instances, or the
upper bound of autoscaling. A library reads its thread count once, on import, so it cannot follow the load. The chosen
number is the right one when all workers are busy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytriton._protocol import messages

__all__ = ["share_of", "usable_cpus", "variables_for"]

#: OpenMP (torch, scikit-learn, XGBoost), OpenBLAS and MKL (numpy, scipy), BLIS, numexpr (pandas).
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: The other libraries fall back to this variable, so a user who sets it decides for all of them.
_FOR_ALL = VARIABLES[0]


def usable_cpus() -> float:
    """Return how many cores this process and its children may use, by CPU affinity and cgroup quota."""
    cpus = float(len(os.sched_getaffinity(0)))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return cpus if quota == "max" else min(cpus, int(quota) / int(period))
    except (OSError, ValueError):  # no limit, or not cgroup v2
        return cpus


def share_of(spec: messages.ModelSpec) -> int:
    """Return the number of threads for each library of a worker; 0 keeps the library's default."""
    if spec.isolation == "thread" or _FOR_ALL in spec.world.env:
        return 0
    theirs = len(spec.limits.cpus) or len(os.sched_getaffinity(0))
    cores = min(theirs, usable_cpus())
    workers = spec.instances if spec.autoscale is None else max(spec.autoscale.most, 1)
    share = max(1, int(cores // workers))
    return share if share < theirs else 0


def variables_for(spec: messages.ModelSpec) -> Mapping[str, str]:
    """Return the environment variables that set a worker's share, except those that the user has set."""
    share = share_of(spec)
    wanted = VARIABLES if share else ()
    return {name: str(share) for name in wanted if name not in spec.world.env}
