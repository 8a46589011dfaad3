"""Measures a workload: starts the servers of all systems, and loads one after the other, round by round."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks import process_trees
from benchmarks.deployment import Deployment, DidNotStart
from benchmarks.environments import NotInstalled
from benchmarks.load import generators
from benchmarks.reporting.figures import disturbed, errors
from benchmarks.systems import System
from benchmarks.workloads import Workload

PROTOCOLS = ("http", "grpc")
#: Pause before a disturbed measurement is repeated.
_PAUSE_S = 3.0


#: Triton's failed requests, without those that a load generator cancelled by closing its connections after a measurement.
_FAILURES = re.compile(
    r'^nv_inference_request_failure\{(?!.*reason="CANCELED").*\} (\d+(?:\.\d+)?)$', re.MULTILINE
)


#: Figures: name, value, unit.
Rows = list[tuple[str, float, str]]


@dataclass(frozen=True)
class Plan:
    """The extent of a run."""

    rounds: int
    seconds: float
    quick: bool

    @property
    def attempts(self) -> int:
        """Maximum number of measurements of a case while a hypervisor takes CPUs away."""
        return 2 if self.quick else 3

    def clients(self, workload: Workload) -> tuple[int, ...]:
        """Return the numbers of clients for a workload."""
        return workload.quick_clients if self.quick else workload.clients


class Recorder:
    """The results so far: measurements, other figures, rows that do not apply, and rows that are missing."""

    def __init__(self) -> None:
        self.measurements: list[dict[str, Any]] = []
        self.skipped: list[dict[str, str]] = []
        self.missing: list[dict[str, str]] = []
        self.figures: list[dict[str, Any]] = []

    def figure(self, name: str, system: str, value: float, unit: str) -> None:
        """Record and print a figure that is not a measurement of a workload; NaN is a missing row."""
        if math.isnan(value):
            self.miss(system, name, "nothing was measured")
            return
        self.figures.append({"name": name, "system": system, "value": value, "unit": unit})
        print(f"[bench] {name}: {system} {value:.2f} {unit}", flush=True)

    def rows(self, system: str, name: str, measure: Callable[[], Rows]) -> None:
        """Record the figures that a function returns, or why it could not measure them."""
        try:
            found = measure()
        except (DidNotStart, generators.GeneratorFailed) as error:
            self.miss(system, name, str(error))
            return
        for what, value, unit in found:
            self.figure(what, system, value, unit)

    def skip(self, system: str, workload: str, reason: str) -> None:
        """Record and print that a system does not support a workload."""
        self.skipped.append({"system": system, "workload": workload, "reason": reason})
        print(f"[bench] {workload}: {system} left out: {reason[:600]}", flush=True)

    def miss(self, system: str, workload: str, reason: str) -> None:
        """Record and print that a row could not be measured. The run then fails."""
        self.missing.append({"system": system, "workload": workload, "reason": reason})
        print(f"[bench] {workload}: {system} MISSING: {reason[:600]}", file=sys.stderr, flush=True)


def install(systems: Sequence[System], recorder: Recorder) -> dict[str, dict[str, str]]:
    """Install all systems. Return the versions of those that could be installed, by name."""
    found = {}
    for system in systems:
        try:
            found[system.name] = system.versions()
        except NotInstalled as error:
            recorder.miss(system.name, "all", f"could not be installed: {error}")
    return found


def measure_workload(
    workload: Workload, systems: Sequence[System], plan: Plan, recorder: Recorder
) -> None:
    """Measure one workload on all systems that support it."""
    candidates = [one for one in systems if one.serves(workload)]
    if not candidates:
        recorder.miss("all", workload.key, "none of the chosen systems serves it")
    fit = []
    for system in candidates:
        if reason := system.refuses(workload):
            recorder.skip(system.name, workload.key, reason)
        else:
            fit.append(system)
    cases = [(protocol, clients) for protocol in PROTOCOLS for clients in plan.clients(workload)]
    with contextlib.ExitStack() as stack:
        standing = _start_all([one for one in fit if not one.restless], workload, stack, recorder)
        restless = [one for one in fit if one.restless]
        for round_number in range(plan.rounds):
            # Systems are compared within a case, so they take turns there, in both orders.
            for case in cases:
                for deployment in standing[:: -1 if round_number % 2 else 1]:
                    _measure(deployment, case, plan, round_number, recorder)
            for system in list(restless):
                with _started(system, workload, recorder) as started:
                    if started is None:
                        restless.remove(system)
                        continue
                    for case in cases:
                        _measure(started, case, plan, round_number, recorder)


def _start_all(
    systems: Sequence[System],
    workload: Workload,
    stack: contextlib.ExitStack,
    recorder: Recorder,
) -> list[Deployment]:
    """Start servers at the same time; return those that respond correctly."""
    started: list[Deployment] = []
    for system in systems:
        server = next((one for one in started if one.system.name == system.shares), None)
        started.append(
            server.shared_by(system)
            if server
            else stack.enter_context(Deployment(system, workload))
        )
    with ThreadPoolExecutor(max(1, len(started))) as pool:
        try:
            problems = list(pool.map(_problem, started))
        except BaseException:  # Ctrl-C. The threads wait for the servers, so stop these first
            for deployment in started:
                deployment.stop()
            raise
    for deployment, problem in zip(started, problems):
        if problem:
            recorder.miss(deployment.system.name, workload.key, problem)
            deployment.stop()
    return [one for one, problem in zip(started, problems) if not problem]


def _problem(deployment: Deployment) -> str | None:
    try:
        deployment.wait_correct()
    except DidNotStart as error:
        return f"it does not respond correctly: {error}"
    return None


@contextlib.contextmanager
def _started(system: System, workload: Workload, recorder: Recorder) -> Iterator[Deployment | None]:
    """Run a server for one turn; yield None if it does not respond correctly."""
    with Deployment(system, workload) as deployment:
        problem = _problem(deployment)
        if problem:
            recorder.miss(system.name, workload.key, problem)
        process_trees.wait_calm(deployment.process.pid)
        yield None if problem else deployment


def _measure(
    deployment: Deployment,
    case: tuple[str, int],
    plan: Plan,
    round_number: int,
    recorder: Recorder,
) -> None:
    """Measure one system with one protocol and number of clients, if it has the protocol."""
    workload, system, (protocol, clients) = deployment.workload, deployment.system, case
    if protocol not in system.protocols:
        return
    seconds = max(plan.seconds, workload.least_seconds)
    try:
        found = undisturbed(partial(_one, deployment, protocol, clients, seconds), plan.attempts)
    except generators.GeneratorFailed as error:
        recorder.miss(system.name, f"{workload.key} {protocol} {clients}", str(error))
        return
    found = {
        "workload": workload.key,
        "system": system.name,
        "protocol": protocol,
        "clients": clients,
        "round": round_number,
        **found,
    }
    recorder.measurements.append(found)
    _print(found)


def undisturbed(
    measure: Callable[[], dict[str, Any]], most: int, pause_s: float = _PAUSE_S
) -> dict[str, Any]:
    """Measure, and repeat while a hypervisor takes CPUs away. Return the measurement that was disturbed least.

    Without its CPUs, a virtual machine measures its host: 6 MB outputs once gave 4 requests/s instead of 100.
    """
    attempts = [measure()]
    while disturbed(attempts[-1]) and len(attempts) < most:
        time.sleep(pause_s)  # no event says when the host has CPUs again
        attempts.append(measure())
    # A measurement with errors is never replaced by a better one.
    best = min(attempts, key=lambda one: (not errors(one), float(one["stolen_cpus"])))
    return {**best, "attempts": len(attempts)}


def _one(deployment: Deployment, protocol: str, clients: int, seconds: float) -> dict[str, Any]:
    """Warm up, check a response, measure, check again. Return the figures."""
    request, size = deployment.request(protocol), deployment.sizes[protocol]
    generators.apply(
        request, clients, _warm_up_s(deployment.workload, seconds), size, deployment.folder
    )
    wrong = deployment.problem(protocol)
    failures = _server_failures(deployment)
    whole, stolen = process_trees.machine_cpu_s(), process_trees.stolen_cpu_s()
    before, start = process_trees.use(deployment.process.pid), time.monotonic()
    load = generators.apply(request, clients, seconds, size, deployment.folder)
    elapsed, after = time.monotonic() - start, process_trees.use(deployment.process.pid)
    server_cpu_s = after.cpu_s - before.cpu_s
    stolen = process_trees.stolen_cpu_s() - stolen
    others_cpu_s = max(0.0, process_trees.machine_cpu_s() - whole - server_cpu_s - load.cpu_s)
    wrong = wrong or deployment.problem(protocol)
    return {
        **asdict(load),
        "requests_s": load.requests / load.seconds,
        "server_failures": _server_failures(deployment) - failures,
        "wrong": wrong,
        "server_cpus": server_cpu_s / elapsed,
        "generator_cpus": load.cpu_s / elapsed,
        # the kernel's network stack, and other programs on the machine
        "others_cpus": others_cpu_s / elapsed,
        "cores": os.cpu_count(),
        "stolen_cpus": stolen / elapsed,
        "cpu_us_per_request": server_cpu_s * 1e6 / max(1, load.requests),
        "faults_per_request": (after.faults - before.faults) / max(1, load.requests),
    }


def _server_failures(deployment: Deployment) -> int:
    """Return the failed requests of a Triton since its start, from its metrics; 0 for other systems."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        url = f"http://127.0.0.1:{deployment.ports.metrics}/metrics"
        with direct.open(url, timeout=10) as response:
            text = response.read().decode()
    except OSError:
        return 0
    return round(sum(float(count) for count in _FAILURES.findall(text)))


def _warm_up_s(workload: Workload, seconds: float) -> float:
    return workload.warm_up_s if workload.warm_up_s > 1.0 else min(workload.warm_up_s, seconds)


def _print(found: dict[str, Any]) -> None:
    errors = found["failed"] + found["hidden"] + found["server_failures"]
    stolen = f"  ({found['stolen_cpus']:.1f} CPUs stolen)" if disturbed(found) else ""
    wrong = f"  ERRORS {errors} {found['wrong'] or ''}" if errors or found["wrong"] else ""
    print(
        f"[bench] {found['workload']:<5} {found['system']:<16} {found['protocol']:<4} "
        f"{found['clients']:>3} clients  round {found['round'] + 1}: {found['requests_s']:>9.1f}/s  "
        f"p50 {found['p50_ms']:.2f} ms  p99 {found['p99_ms']:.2f} ms{stolen}{wrong}",
        flush=True,
    )
