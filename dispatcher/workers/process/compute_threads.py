"""The threads that a worker's libraries compute with: its share of the cores, unless the user has said how many.

numpy, torch, scikit-learn and the like start a thread for each core in each process. Where several workers compute at
once, these threads wait for each other in loops: two instances of a torch model on two cores are three times slower
than with one thread each.

The share is the cores divided by the workers that the model may have: those that it was declared with, or the most
that autoscaling gives it. A library reads its number once, when it is imported, so it cannot follow the load: a number
that holds for all of a worker's life is one that is right when all workers are busy.
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
#: The others fall back to it: who sets it has decided for all of them.
_FOR_ALL = VARIABLES[0]


def usable_cpus() -> float:
    """Return how many cores this process and its children may use: by their affinity and their control group."""
    cpus = float(len(os.sched_getaffinity(0)))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return cpus if quota == "max" else min(cpus, int(quota) / int(period))
    except (OSError, ValueError):  # no limit, or not version 2
        return cpus


def share_of(spec: messages.ModelSpec) -> int:
    """Return how many threads each library of a worker gets; 0: as many as it takes by itself."""
    if spec.isolation == "thread" or _FOR_ALL in spec.world.env:
        return 0
    theirs = len(spec.limits.cpus) or len(os.sched_getaffinity(0))
    cores = min(theirs, usable_cpus())
    workers = spec.instances if spec.autoscale is None else max(spec.autoscale.most, 1)
    share = max(1, int(cores // workers))
    return share if share < theirs else 0


def variables_for(spec: messages.ModelSpec) -> Mapping[str, str]:
    """Return the variables that give a worker its share; those of the user's are left alone."""
    share = share_of(spec)
    wanted = VARIABLES if share else ()
    return {name: str(share) for name in wanted if name not in spec.world.env}
