"""The systems that are compared."""

from __future__ import annotations

from benchmarks.systems import typed
from benchmarks.systems.base import System
from benchmarks.systems.peers import (
    BentoML,
    Gunicorn,
    LitServe,
    MLServer,
    Mosec,
    MosecBatching,
    RayServe,
    RayServeHAProxy,
)
from benchmarks.systems.triton import (
    NvidiaPytriton,
    Ours,
    OursNative,
    OursObserved,
    OursTriton,
    OursUncounted,
    Stub,
)
from benchmarks.workloads import Workload
from pytriton._host.settings.declarations import DaemonConfig

#: In the order of measurement.
SYSTEMS: tuple[System, ...] = (
    Ours(),
    OursNative(),
    OursTriton(),
    OursUncounted(),
    OursObserved(),
    NvidiaPytriton(),
    Stub(),
    Mosec(),
    MosecBatching(),
    LitServe(),
    RayServe(),
    RayServeHAProxy(),
    Gunicorn(),
    BentoML(),
    MLServer(),
    *typed.SYSTEMS,
)


#: Systems that show what recording costs.
OBSERVED = ("ours-uncounted", "ours", "ours-observed")
#: Systems that are only measured if they are named: those above, and the frontend that "ours" has anyway.
_ON_REQUEST = {f"ours-{DaemonConfig().frontend}", *OBSERVED} - {"ours"}


def select(names: str | None) -> list[System]:
    """Return the systems in a list such as "ours,mosec"; for None, all that differ from each other.

    "mosec" also names the systems for typed functions whose names begin with "mosec-".

    Raises:
        ValueError: a name is unknown. The text lists the known ones.
    """
    if names is None:
        return [one for one in SYSTEMS if one.name not in _ON_REQUEST]
    known = {one.name: one for one in SYSTEMS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ValueError(f"no system {name!r}; there are: {', '.join(known)}")
    begins = tuple(f"{name}-" for name in wanted)
    return [
        one for one in SYSTEMS if one.name in wanted or (one.only and one.name.startswith(begins))
    ]


def needed(chosen: list[System], loads: list[Workload], extras: set[str]) -> list[System]:
    """Return the chosen systems that a run measures. The others need not be installed."""
    return [
        one
        for one in chosen
        if any(one.serves(load) for load in loads) or (extras and not one.only)
    ]
