"""Set the environment variables that every test process has or lacks. Import this before anything that reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# A run starts a thousand processes. If this is set, as in many images, each compiles all its modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: OpenBLAS (numpy, scipy) starts a thread per core, each of which spins for work: 30 ms of CPU time in
#: each process that imports numpy, and a run has a thousand. OpenMP threads (scikit-learn, XGBoost) spin while
#: waiting for each other, too: ten times the CPU time for small matrices. Tests of threads and forks use the
#: fixture `usual_threads`.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
for _name in THREADS:
    os.environ.setdefault(_name, "1")

# In Python 3.9, subprocess forks, and gRPC's support for forks aborts one in twenty children before they run their program.
if sys.version_info < (3, 10):
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

#: Prefixes of variables that are read when an interpreter starts, or when modules are imported.
_OF_STARTS = ("PYTHON", "LD_", "OPENBLAS_", "OMP_", "MALLOC_", "GLIBC_")


def of_starts(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter only while a process starts."""
    return {name: value for name, value in env.items() if name.startswith(_OF_STARTS)}


#: The variables of all processes, unless a test overrides them.
USUAL = of_starts(os.environ)
