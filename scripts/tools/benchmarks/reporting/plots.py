"""Draws a run's plots: `python plots.py results.json FOLDER`, in an environment that has matplotlib.

Stands alone: nothing of the benchmark is imported there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_METRICS = (("requests_s", "requests/s"), ("p99_ms", "p99, ms"))


def groups(measurements: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, list[Any]]]]:
    """Return measurements by workload, then "protocol clients", then system."""
    found: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for one in measurements:
        case = f"{one['protocol']} {one['clients']}"
        systems = found.setdefault(one["workload"], {}).setdefault(case, {})
        systems.setdefault(one["system"], []).append(one)
    return found


def draw(workload: str, title: str, cases: dict[str, dict[str, list[Any]]], out: Path) -> None:
    """Draw one workload: a bar for each case and system, with whiskers from the lowest to the highest round."""
    systems = list(dict.fromkeys(name for case in cases.values() for name in case))
    figure, axes = plt.subplots(2, 1, figsize=(max(7, 1.6 * len(cases)), 7), sharex=True)
    width = 0.8 / len(systems)
    for axis, (metric, label) in zip(axes, _METRICS):
        for index, system in enumerate(systems):
            places, heights, below, above = [], [], [], []
            for place, case in enumerate(cases.values()):
                values = [one[metric] for one in case.get(system, [])]
                if not values:
                    continue
                middle = median(values)
                places.append(place + (index - (len(systems) - 1) / 2) * width)
                heights.append(middle)
                below.append(middle - min(values))
                above.append(max(values) - middle)
            axis.bar(places, heights, width, yerr=[below, above], label=system, color=f"C{index}")
        axis.set_ylabel(label)
        axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_title(f"{workload}: {title}")
    axes[0].legend(fontsize="small", ncols=3)
    axes[1].set_xticks(range(len(cases)), list(cases))
    axes[1].set_xlabel("protocol and clients")
    figure.tight_layout()
    figure.savefig(out / f"{workload}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw every workload of a run."""
    results = json.loads(Path(sys.argv[1]).read_text())
    for workload, cases in groups(results["measurements"]).items():
        draw(workload, results["workloads"].get(workload, ""), cases, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
