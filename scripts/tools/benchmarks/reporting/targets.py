"""Goals, and whether a run reached them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.reporting.figures import Figure, Key, ratio

_OURS = "ours"
_NVIDIA = "nvidia-pytriton"
_NVIDIA_FRONT = "ours-triton"
_STUB = "stub"
_PEERS = ("litserve", "ray-serve", "ray-serve-haproxy", "gunicorn", "bentoml", "mlserver")


@dataclass(frozen=True)
class Target:
    """A goal for ours ÷ theirs: at least a number or, for times, at most.

    Args:
        cases: workloads and numbers of clients; each has a row for each protocol
        theirs: the system to compare with
        goal: the number
        metric: as in `figures.METRICS`
        most: whether the goal is a maximum
        other: the workload of the other side, if it is a different one
        ours: the system that is compared
        protocols: the protocols that the goal is for, if both have them
    """

    cases: tuple[tuple[str, int], ...]
    theirs: str
    goal: float
    metric: str = "requests_s"
    most: bool = False
    other: str | None = None
    protocols: tuple[str, ...] = ("http", "grpc")
    ours: str = _OURS


@dataclass(frozen=True)
class Verdict:
    """One row of the table of ratios."""

    case: Key
    theirs: str
    metric: str
    goal: str
    ratio: Figure | None  #: None: not measured
    met: bool


def _cases(workload: str, *clients: int) -> tuple[tuple[str, int], ...]:
    return tuple((workload, count) for count in clients)


def _typed(theirs: str, goal: float, *clients: int) -> tuple[Target, ...]:
    return tuple(
        Target(_cases(f"typed_{kind}", *clients), theirs, goal, ours="ours-route")
        for kind in ("small", "text", "image")
    )


_A, _B, _H = _cases("A", 1, 8, 32), _cases("B", 1, 4, 16), _cases("H", 4)
_C2, _D, _G = _cases("C2", 8), _cases("D", 64), _cases("G", 4)
_E, _F = (("E1", 8), ("E1000", 8)), _cases("F", 1, 8)

TARGETS: tuple[Target, ...] = (
    Target(_cases("A", 1, 8), _NVIDIA, 4.0),
    Target(_cases("A", 32), _NVIDIA, 3.3),
    Target(_A, _NVIDIA, 0.5, metric="p99_ms", most=True),
    Target(_A, _STUB, 0.85),
    Target(_B, _NVIDIA, 2.0),
    Target(_B, _STUB, 1.0),
    Target(_C2, _OURS, 1.9, other="C1"),
    Target(_C2, _NVIDIA, 1.9),
    Target(_C2, _STUB, 0.98),
    Target(_D, _STUB, 1.2),
    Target(_D, _STUB, 1.0, metric="p99_ms", most=True),
    Target(_D, _NVIDIA, 1.8),
    Target(_D, _NVIDIA, 1.0, metric="p99_ms", most=True),
    Target((*_E, *_F, *_G), _NVIDIA, 2.0),
    Target((*_E, *_F, *_G), _STUB, 0.9),
    Target(_H, _STUB, 1.25),
    Target(_cases("A", 1), "mosec", 1.0),
    Target(_cases("A", 8), "mosec", 1.5),
    Target(_cases("A", 32), "mosec", 2.5),
    Target(_A, _NVIDIA_FRONT, 1.4, protocols=("grpc",)),
    Target(_B, _NVIDIA_FRONT, 1.2),
    Target(_A, _NVIDIA_FRONT, 0.6, metric="cpu_us_per_request", most=True),
    Target(
        (*_A, *_B, *_C2, *_D, *_E, *_F, *_G, *_H), _NVIDIA_FRONT, 1.0, metric="p99_ms", most=True
    ),
    Target((*_B, *_G), "mosec", 1.0),
    Target(_C2, "mosec", 1.0),
    Target(_D, "mosec", 1.0),
    *(Target((*_A, *_B, *_C2, *_D, *_E, *_F, *_G, *_H), peer, 1.0) for peer in _PEERS),
    *(
        Target(_cases(f"models_{model}", 1, 8, 32), peer, 1.0, ours="ours-models")
        for model in ("minilm", "resnet50", "lightgbm", "pipeline")
        for peer in ("fastapi-models", "litserve-models", "bentoml-models")
    ),
    *_typed("fastapi", 1.5, 1),
    *_typed("fastapi", 3.0, 8, 32),
    *_typed("ours-kserve", 0.9, 1, 8, 32),
    *_typed("mosec-json", 1.0, 8, 32),
    *_typed("mosec-msgpack", 1.0, 8, 32),
    *(
        target
        for peer in ("fastapi-2", "fastapi-async", "litserve-typed", "bentoml-typed")
        for target in _typed(peer, 1.0, 1, 8, 32)
    ),
)


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return a row for each goal whose two sides were measured."""
    measurements = results["measurements"]
    seen = {
        (one["system"], one["workload"], one["protocol"], one["clients"]) for one in measurements
    }
    found = []
    for target in TARGETS:
        for ours, theirs in _sides(target):
            if (target.ours, *ours) in seen and (target.theirs, *theirs) in seen:
                found.append(_verdict(target, measurements, ours, theirs))
    return found


def _sides(target: Target) -> Iterator[tuple[Key, Key]]:
    for workload, clients in target.cases:
        for protocol in target.protocols:
            yield (workload, protocol, clients), (target.other or workload, protocol, clients)


def _verdict(target: Target, measurements: list[dict[str, Any]], ours: Key, theirs: Key) -> Verdict:
    found = ratio(measurements, (target.ours, ours), (target.theirs, theirs), target.metric)
    goal = f"{'≤' if target.most else '≥'} {target.goal:g}"
    name = target.theirs if target.other is None else f"{target.theirs}, {target.other}"
    measured = math.nan if found is None else found.middle
    met = measured <= target.goal if target.most else measured >= target.goal
    return Verdict(ours, name, target.metric, goal, found, met)


#: Goals for our footprint: name of the figure -> maximum, in its unit.
LIMITS = {
    "idle CPU, 10 models": 0.5,
    "memory, 1 model": 150.0,
    "memory per further instance": 40.0,
    "start to ready": 3.0,
    "register to first answer": 1.5,
}
