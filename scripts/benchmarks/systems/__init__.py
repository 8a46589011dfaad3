"""The systems that are compared; importing this package knows them all."""

from __future__ import annotations

from benchmarks.systems.base import System
from benchmarks.systems.peers import BentoML, LitServe, MLServer, Mosec, MosecBatching, RayServe
from benchmarks.systems.triton import NvidiaPytriton, Ours, Stub

#: In the order in which each round measures them.
SYSTEMS: tuple[System, ...] = (
    Ours(),
    NvidiaPytriton(),
    Stub(),
    Mosec(),
    MosecBatching(),
    LitServe(),
    RayServe(),
    BentoML(),
    MLServer(),
)


def select(names: str | None) -> list[System]:
    """Return the systems that a list such as "ours,mosec" names; all for None.

    Raises:
        ValueError: a name is not known; says which there are.
    """
    if names is None:
        return list(SYSTEMS)
    known = {one.name: one for one in SYSTEMS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ValueError(f"no system {name!r}; there are: {', '.join(known)}")
    return [one for one in SYSTEMS if one.name in wanted]
