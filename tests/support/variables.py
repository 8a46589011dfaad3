"""To be imported before all else that looks at variables: those that every process of the tests has, or lacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# A run starts a thousand processes. Where this is set, as many images have it, each compiles all its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: OpenBLAS (numpy, scipy) begins with a thread for each core, and each waits for work in a loop: 30 ms of a core in
#: each process that imports numpy, and a run has a thousand. Those of libraries with OpenMP (scikit-learn, XGBoost)
#: wait for each other in loops, too: ten times the CPU time for small matrices. Tests of threads and forks have
#: `usual_threads`.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
for _name in THREADS:
    os.environ.setdefault(_name, "1")

#: What begins so is read when an interpreter starts, or when modules are imported.
_OF_STARTS = ("PYTHON", "LD_", "OPENBLAS_", "OMP_", "MALLOC_", "GLIBC_")


def of_starts(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have done their work once a process has started."""
    return {name: value for name, value in env.items() if name.startswith(_OF_STARTS)}


#: Those of all processes, unless a test says otherwise.
USUAL = of_starts(os.environ)
