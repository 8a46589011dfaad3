"""Measures what an idle system costs: start-up time, memory, CPU."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import process_trees
from benchmarks.deployment import Deployment, DidNotStart
from benchmarks.load.client import Connection
from benchmarks.load.wire import WrongAnswer
from benchmarks.runner import Recorder, Rows
from benchmarks.systems import System
from benchmarks.workloads import PLAIN, Workload, copy_name

_IDLE_S = 10.0
_MANY = 100
_LOAD_S = 600.0
_EVENT = re.compile(r'\{"event": [^{}]*\}')
#: Systems whose servers print events such as "ready" (servers/ours.py, servers/nvidia_pytriton.py).
_WITH_EVENTS = ("ours", "nvidia-pytriton")


def measure(systems: list[System], rounds: int, recorder: Recorder) -> None:
    """Record the figures of all systems whose servers print events."""
    for system in systems:
        if system.name in _WITH_EVENTS:
            recorder.rows(system.name, "footprint", partial(_all, system, rounds))


def measure_many(systems: list[System], recorder: Recorder) -> None:
    """Record the figures of our daemon with 100 models."""
    for system in systems:
        if system.name == "ours":
            recorder.rows(system.name, "models100", partial(_several, system, _MANY))


def _all(system: System, rounds: int) -> Rows:
    starts = [_cold_start(system) for _ in range(rounds)]
    middle = {name: sorted(one[name] for one in starts)[len(starts) // 2] for name in starts[0]}
    figures = [(name, value, _unit(name)) for name, value in middle.items()]
    three = replace(PLAIN, model=replace(PLAIN.model, instances=3))
    settled = sorted(_settled(system, three) for _ in range(rounds))[rounds // 2]
    per_instance = (settled - middle["memory, 1 model"]) / 2
    figures.append(("memory per further instance", per_instance, "MB"))
    return figures + _several(system, 10)


def _unit(name: str) -> str:
    return "MB" if name.startswith("memory") else "s"


def _cold_start(system: System) -> dict[str, float]:
    """Start a server with one small model; return its times and its memory."""
    start = time.monotonic()
    with Deployment(system, PLAIN) as deployment:
        events = _events(deployment, _LOAD_S)
        deployment.wait_correct("http")
        answered = time.monotonic()
        cpu_s = process_trees.use(deployment.process.pid).cpu_s
        return {
            "start to ready": events["ready"]["at"] - events["begun"]["at"],
            "register to first answer": answered - events["ready"]["at"],
            "process start to first answer": answered - start,
            "CPU time until then": cpu_s,
            "memory, 1 model": _memory(deployment, events),
        }


def _settled(system: System, workload: Workload) -> float:
    """Start a server. Return its memory after a response over each protocol."""
    with Deployment(system, workload) as deployment:
        events = _events(deployment, _LOAD_S)
        return _memory(deployment, events)


def _memory(deployment: Deployment, events: dict[str, Any]) -> float:
    deployment.wait_correct()
    process_trees.wait_calm(deployment.process.pid)
    return process_trees.memory_mb(_pids(deployment, events))


def _several(system: System, copies: int) -> Rows:
    """Serve a small model under several names. Return the times that it took, and memory and CPU while idle."""
    with Deployment(system, PLAIN, copies=copies) as deployment:
        events = _events(deployment, _LOAD_S)
        used = process_trees.use(deployment.process.pid).cpu_s
        begun = time.monotonic()
        for index in range(copies):
            _call(deployment, copy_name(PLAIN.model.name, index))
        asked = time.monotonic() - begun
        memory = _memory(deployment, events)
        pid = deployment.process.pid
        before = process_trees.use(pid).cpu_s
        time.sleep(_IDLE_S)  # the CPU time of this period is the figure
        idle = (process_trees.use(pid).cpu_s - before) / _IDLE_S
        processes = process_trees.use(pid).processes
        taken = events["registered"]["at"] - events["ready"]["at"]
    return [
        (f"registering {copies} models", taken, "s"),
        (f"CPU time of the start and of registering {copies} models", used, "s"),
        (f"first answers of {copies} models, one after the other", asked, "s"),
        (f"processes, {copies} models", processes, ""),
        (f"memory, {copies} models", memory, "MB"),
        (f"idle CPU, {copies} models", idle * 100, "% of a core"),
    ]


def _call(deployment: Deployment, name: str) -> None:
    """Send a request to a model. Raises DidNotStart if its response is wrong."""
    workload = replace(PLAIN, model=replace(PLAIN.model, name=name))
    connection = Connection(deployment.system.request(workload, "http", deployment.ports))
    try:
        connection.send()
    except (WrongAnswer, OSError) as error:
        raise DidNotStart(
            f"model {name} is registered, but its response is wrong: {error}"
        ) from error
    finally:
        connection.close()


def _pids(deployment: Deployment, events: dict[str, Any]) -> list[int]:
    """Return the processes of the server, without the script that started it and registered the model."""
    root = events["ready"].get("pid") or events["begun"]["pid"]
    return [root, *(process.pid for process in process_trees.tree(root))]


def _events(deployment: Deployment, timeout_s: float) -> dict[str, Any]:
    """Wait until all models are registered. Return the events that the server printed, by name."""
    deadline = time.monotonic() + timeout_s
    while True:
        # Anywhere in a line: the server prints there, too, and a line may not be complete.
        found = map(json.loads, _EVENT.findall(deployment.events.read_text(errors="replace")))
        events = {one["event"]: one for one in found}
        if "registered" in events:
            return events
        if deployment.process.poll() is not None or time.monotonic() > deadline:
            raise DidNotStart(f"it did not register. Its log: {deployment.log_tail()}")
        time.sleep(0.005)
