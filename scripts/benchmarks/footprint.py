"""What a system costs before anybody asks it: start-up time, memory, CPU while idle."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from benchmarks import trees
from benchmarks.deployment import Deployment, DidNotStart
from benchmarks.runner import Recorder
from benchmarks.systems.base import System
from benchmarks.workloads import WORKLOADS, Workload

_IDLE_S = 10.0
_MANY = 100
_LOAD_S = 600.0
#: Systems whose servers say when they are ready (servers/ours.py, servers/nvidia_pytriton.py).
_TELLING = ("ours", "nvidia-pytriton")


def measure(
    systems: list[System], rounds: int, quick: bool, recorder: Recorder
) -> list[dict[str, Any]]:
    """Return figures (name, system, value, unit) of all systems that can tell them."""
    found: list[dict[str, Any]] = []
    for system in systems:
        if system.name not in _TELLING:
            continue
        try:
            found += _all(system, rounds, quick)
        except DidNotStart as error:
            recorder.skip(system.name, "footprint", str(error))
    for one in found:
        print(
            f"[bench] {one['name']}: {one['system']} {one['value']:.2f} {one['unit']}", flush=True
        )
    return found


def _all(system: System, rounds: int, quick: bool) -> list[dict[str, Any]]:
    starts = [_cold_start(system) for _ in range(rounds)]
    middle = {name: sorted(one[name] for one in starts)[len(starts) // 2] for name in starts[0]}
    figures = [(name, value, _unit(name)) for name, value in middle.items()]
    three = _settled(system, replace(_plain(), model=replace(_plain().model, instances=3)))
    per_instance = (three["memory"] - middle["memory, 1 model"]) / 2
    figures.append(("memory per further instance", per_instance, "MB"))
    figures += _several(system, 10)
    if not quick and system.name == "ours":
        figures += _several(system, _MANY)
    return [
        {"name": name, "system": system.name, "value": value, "unit": unit}
        for name, value, unit in figures
    ]


def _unit(name: str) -> str:
    return "MB" if name.startswith("memory") else "s"


def _plain() -> Workload:
    return next(one for one in WORKLOADS if one.key == "A")


def _cold_start(system: System) -> dict[str, float]:
    """Start a server with one small model; return its times and its memory."""
    start = time.monotonic()
    with Deployment(system, _plain()) as deployment:
        events = _events(deployment, _LOAD_S)
        deployment.wait_right()
        answered = time.monotonic()
        return {
            "start to ready": events["ready"]["at"] - events["begun"]["at"],
            "register to first answer": answered - events["ready"]["at"],
            "process start to first answer": answered - start,
            "memory, 1 model": trees.pss_mb(_pids(deployment, events)),
        }


def _settled(system: System, workload: Workload) -> dict[str, float]:
    with Deployment(system, workload) as deployment:
        events = _events(deployment, _LOAD_S)
        deployment.wait_right()
        return {"memory": trees.pss_mb(_pids(deployment, events))}


def _several(system: System, copies: int) -> list[tuple[str, float, str]]:
    """Serve a small model several times; return the time for it, memory, and CPU while idle."""
    with Deployment(system, _plain(), copies=copies) as deployment:
        events = _events(deployment, _LOAD_S)
        deployment.wait_right()
        pid = deployment.process.pid
        before = trees.use(pid).cpu_s
        time.sleep(_IDLE_S)  # what it does meanwhile is the figure
        idle = (trees.use(pid).cpu_s - before) / _IDLE_S
        memory = trees.pss_mb(_pids(deployment, events))
        taken = events["registered"]["at"] - events["ready"]["at"]
    return [
        (f"registering {copies} models", taken, "s"),
        (f"memory, {copies} models", memory, "MB"),
        (f"idle CPU, {copies} models", idle * 100, "% of a core"),
    ]


def _pids(deployment: Deployment, events: dict[str, Any]) -> list[int]:
    """Return the server's processes, without the script that started a daemon and registered."""
    root = events["ready"].get("pid") or events["begun"]["pid"]
    return [root, *(process.pid for process in trees.tree(root))]


def _events(deployment: Deployment, timeout_s: float) -> dict[str, Any]:
    """Return what the server said of itself, by event, once all models are registered."""
    deadline = time.monotonic() + timeout_s
    while True:
        lines = deployment.events.read_text().splitlines()
        events = {one["event"]: one for one in map(_parsed, lines) if one}
        if "registered" in events:
            return events
        if deployment.process.poll() is not None or time.monotonic() > deadline:
            raise DidNotStart(f"it did not register. It said: {deployment.said()}")
        time.sleep(0.005)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:  # other output, or a line that is being written
        return None
    return found if isinstance(found, dict) and "event" in found else None
