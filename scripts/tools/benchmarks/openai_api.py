"""Measures the OpenAI API: streams of 100 tokens, at once or one every 10 ms, and embeddings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil

from benchmarks.deployment import Deployment, DidNotStart
from benchmarks.environments import NotInstalled
from benchmarks.load.generators import GeneratorFailed
from benchmarks.load.openai_load import request_of
from benchmarks.process_trees import tree
from benchmarks.runner import Recorder
from benchmarks.systems import BY_NAME, System
from benchmarks.workloads import Model, Payload, Workload

_LOAD = Path(__file__).parent / "load" / "openai_load.py"
_START_S = 90.0
#: Numbers of clients for each model.
_CLIENTS = {"burst": (1, 32, 128), "paced": (1, 32, 128), "embed": (64,)}
#: Part of the command line that identifies each process of ours.
_ROLES = (
    "dispatcher.openai",
    "worker/boot.py",
    "pytriton._cli",
    "pytriton-frontend",
    "tritonserver",
)
_QUICK = {"burst": (1, 32), "paced": (32,), "embed": (64,)}


SYSTEMS: tuple[System, ...] = (
    BY_NAME["ours-triton"],
    BY_NAME["ours-native"],
    replace(BY_NAME["litserve"], script="openai_litserve.py"),
    replace(BY_NAME["fastapi"], title="a plain FastAPI app", script="openai_fastapi.py"),
)


def measure(
    chosen: list[System] | None,
    rounds: int,
    seconds: float,
    quick: bool,
    recorder: Recorder,
) -> None:
    """Record the figures. Each system is measured once in each round.

    The FastAPI app is always measured; the others if they are chosen.
    """
    names = {one.name for one in chosen or ()} | {"fastapi"}
    systems = [
        one
        for one in SYSTEMS
        if not chosen or one.name in names or (one.name.startswith("ours") and "ours" in names)
    ]
    found: dict[tuple[str, int, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, clients in (_QUICK if quick else _CLIENTS).items():
            for system in systems:
                try:
                    for count, seen in _loads(system, name, clients, seconds):
                        found.setdefault((name, count, system.name), []).append(seen)
                except (DidNotStart, GeneratorFailed, NotInstalled) as error:
                    recorder.miss(system.name, f"openai {name}", str(error))
    for (name, count, system_name), several in found.items():
        _record(name, count, system_name, several, recorder)


def _loads(
    system: System, name: str, clients: tuple[int, ...], seconds: float
) -> Iterator[tuple[int, dict[str, float]]]:
    workload = Workload(
        "openai", "openai", name, Model(name, "openai"), Payload(), clients, clients
    )
    with Deployment(system, workload) as deployment:
        port = deployment.ports.openai
        _wait(deployment, name, port)
        for count in clients:
            argv = [sys.executable, str(_LOAD), name, str(port), str(count), str(seconds)]
            before = _cpu_s(deployment.process.pid)
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise GeneratorFailed(f"{count} clients: {done.stderr.strip()[-500:]}")
            used = _cpu_s(deployment.process.pid)
            used.subtract(before)
            seen = json.loads(done.stdout)
            for role, cpu_s in used.items():
                seen[f"cpu_us: {role}"] = cpu_s * 1e6 / max(1, seen["all_items"])
            yield count, seen


def _cpu_s(pid: int) -> Counter[str]:
    """Return the CPU time of a server by the roles of its processes."""
    found: Counter[str] = Counter()
    for process in tree(pid):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        role = next((one for one in _ROLES if one in command), "others")
        found[role] += times.user + times.system  # type: ignore[assignment]
    return found


def _wait(deployment: Deployment, name: str, port: int) -> None:
    head, _, body = request_of(name).partition(b"\r\n\r\n")
    url = f"http://127.0.0.1:{port}{head.split(b' ')[1].decode()}"
    deadline = time.monotonic() + _START_S
    while True:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                response.read()
                return
        except (OSError, urllib.error.URLError) as error:
            if deployment.process.poll() is not None or time.monotonic() > deadline:
                raise DidNotStart(f"{error}. Its log: {deployment.log_tail()}") from None
        time.sleep(0.1)


def _record(
    name: str, count: int, system: str, several: list[dict[str, float]], recorder: Recorder
) -> None:
    what = "embeddings" if name == "embed" else f"tokens, {name}"
    figures = [
        (f"openai: {what}, {count} clients", median(one["per_s"] for one in several), "/s"),
        (
            f"openai: first of {what}, {count} clients",
            median(one["first_ms"] for one in several),
            "ms",
        ),
    ]
    cpu = {
        role.partition(" ")[2]: median(one.get(role, 0.0) for one in several)
        for role in {role for one in several for role in one if role.startswith("cpu_us")}
    }
    figures.append((f"openai: CPU time of {what}, {count} clients", sum(cpu.values()), "µs"))
    if len(cpu) > 1:
        shares = sorted(cpu.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{role} {share:.1f}" for role, share in shares)
        print(f"[bench] {what}, {count} clients: {system}: µs by process: {shown}", flush=True)
    failed = sum(one["failed"] for one in several)
    if failed:
        recorder.miss(system, f"openai {name} {count}", f"{failed:g} requests failed")
    for title, value, unit in figures:
        recorder.figure(title, system, value, unit)
