"""Computes the figures of a run: medians over rounds, spreads, ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

Key = tuple[str, str, int]  #: workload, protocol, clients
METRICS = (
    "requests_s",
    "p50_ms",
    "p99_ms",
    "server_cpus",
    "generator_cpus",
    "others_cpus",
    "stolen_cpus",
    "cpu_us_per_request",
    "faults_per_request",
)
#: Maximum fraction of the cores that a hypervisor may take away in a measurement that counts.
_STOLEN = 0.1


@dataclass(frozen=True)
class Figure:
    """One metric, or the ratio of two systems' metrics, over the rounds: the median and the extremes."""

    middle: float
    least: float
    most: float
    disturbed: bool = False  #: of a ratio: in every round, one of the two lacked CPUs


@dataclass(frozen=True)
class Row:
    """One system in one case."""

    system: str
    case: Key
    figures: dict[str, Figure]
    rounds: int
    requests: int
    errors: int  #: in all rounds: failed, hidden, counted by the server, or wrong when checked


def figure(values: Iterable[float]) -> Figure:
    """Return the median and the extremes of the values."""
    known = sorted(values)
    return Figure(median(known), known[0], known[-1])


def rows(measurements: list[dict[str, Any]]) -> list[Row]:
    """Return a row for each case and system, in the order of measurement."""
    grouped: dict[tuple[Key, str], list[dict[str, Any]]] = {}
    for one in measurements:
        grouped.setdefault((case_of(one), one["system"]), []).append(one)
    found = [_row(system, case, group) for (case, system), group in grouped.items()]
    order = {case: index for index, case in enumerate(dict.fromkeys(row.case for row in found))}
    return sorted(found, key=lambda row: order[row.case])


def case_of(measurement: dict[str, Any]) -> Key:
    """Return the case that a measurement belongs to."""
    return measurement["workload"], measurement["protocol"], measurement["clients"]


def _row(system: str, case: Key, group: list[dict[str, Any]]) -> Row:
    return Row(
        system,
        case,
        {name: figure(one.get(name, math.nan) for one in group) for name in METRICS},
        rounds=len(group),
        requests=sum(one["requests"] for one in group),
        errors=sum(errors(one) for one in group),
    )


def errors(measurement: dict[str, Any]) -> int:
    """Return the number of requests in a measurement that failed or had a wrong response."""
    noticed = max(measurement["failed"] + measurement["hidden"], measurement["server_failures"])
    return int(noticed) + bool(measurement["wrong"])


def ratio(
    measurements: list[dict[str, Any]],
    ours: tuple[str, Key],
    theirs: tuple[str, Key],
    metric: str = "requests_s",
) -> Figure | None:
    """Return ours ÷ theirs in each round, so that a slow phase of the machine affects both.

    Only rounds in which neither was disturbed count, if there are any. Return None if one side was not measured.
    """
    over, under = _by_round(measurements, *ours), _by_round(measurements, *theirs)
    shared = [number for number in over if number in under and under[number][metric]]
    quiet = [one for one in shared if not (disturbed(over[one]) or disturbed(under[one]))]
    ratios = [over[number][metric] / under[number][metric] for number in quiet or shared]
    if not ratios or not all(map(math.isfinite, ratios)):
        return None
    return replace(figure(ratios), disturbed=not quiet)


def disturbed(measurement: dict[str, Any]) -> bool:
    """Return True if a hypervisor took CPUs away during a measurement."""
    stolen = float(measurement.get("stolen_cpus", 0.0))
    return stolen > _STOLEN * float(measurement.get("cores", 1))


def _by_round(
    measurements: list[dict[str, Any]], system: str, case: Key
) -> dict[int, dict[str, Any]]:
    return {
        one["round"]: one
        for one in measurements
        if one["system"] == system and case_of(one) == case
    }
