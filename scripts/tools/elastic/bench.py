"""Measure elastic models with a real daemon: resuming, scaling, memory budgets, lazy models, shared weights.

The figures in docs/how-to/elastic.md come from here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib import request
from urllib.error import HTTPError

import msgspec
import numpy as np
import psutil
from support.real_daemon import RunningDaemon, eventually

from elastic import plot, shapes
from pytriton import Autoscale
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.model_config import ModelConfig, Tensor
from pytriton.served_model import Model

_MIB = 1 << 20
_INPUTS = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_OUTPUTS = [Tensor(name="y", dtype=np.float32, shape=(1,))]
_CONFIG = ModelConfig(max_batch_size=8)
_TIMEOUT_S = 120.0
_CLIENTS = 64
_POLL_INTERVAL_S = 0.1


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def infer(address: str, model: str, number: float) -> tuple[float, float]:
    """Send a number to a model; return its answer and the duration in seconds.

    Raises:
        RuntimeError: the server returned an error
    """
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"inputs": [tensor]}).encode()
    began = time.monotonic()
    url = f"http://{address}/v2/models/{model}/infer"
    try:
        with request.urlopen(url, body, timeout=_TIMEOUT_S) as response:
            answer = json.loads(response.read())
    except HTTPError as error:
        with error:
            raise RuntimeError(f"{error.code}: {error.read().decode(errors='replace')}") from error
    return float(answer["outputs"][0]["data"][0]), time.monotonic() - began


def percentiles(seconds: Sequence[float], *shares: float) -> str:
    """Return percentiles in milliseconds, as cells of a table."""
    ranked = sorted(seconds) or [0.0]
    picked = (ranked[min(len(ranked) - 1, int(share * len(ranked)))] for share in shares)
    return " | ".join(f"{1000 * one:.0f}" for one in picked)


class Observation(NamedTuple):
    """The workers at a moment: ready ones, all processes, and their unshared memory in MiB."""

    at: float
    ready: int
    workers: int
    memory: float


class LoadTest:
    """Send requests to models that add 1, and observe the workers at the same time."""

    def __init__(self) -> None:
        self.latencies: list[tuple[float, float]] = []  # (start, duration)
        self.failures: Counter[str] = Counter()
        self.wrong = 0
        self.observations: list[Observation] = []
        self._began = time.monotonic()

    @property
    def is_flawless(self) -> bool:
        """Whether every request was answered correctly."""
        return not self.failures and not self.wrong

    def run(self, daemon: RunningDaemon, arrivals: Iterable[tuple[float, str]]) -> None:
        """Send each request at its time, regardless of earlier ones; return when all have been answered."""
        with self._observing(daemon), ThreadPoolExecutor(_CLIENTS) as clients:
            for number, (at, model) in zip(itertools.count(), arrivals):
                time.sleep(max(0.0, at - self._now()))
                clients.submit(self._send, daemon.http, model, number % 1000)

    @contextmanager
    def _observing(self, daemon: RunningDaemon) -> Iterator[None]:
        stopped = threading.Event()

        def observe() -> None:
            while not stopped.wait(_POLL_INTERVAL_S):
                models = daemon.client.status().models
                instances = [one for model in models for one in model.instances]
                pids = [one.pid for one in instances if one.pid is not None]
                ready = sum(one.state == "ready" for one in instances)
                memory = sum(_memory(pid, "status", "RssAnon:") for pid in pids) / _MIB
                self.observations.append(Observation(self._now(), ready, len(pids), memory))

        observer = threading.Thread(target=observe)
        self._began = time.monotonic()
        observer.start()
        try:
            yield
        finally:
            stopped.set()
            observer.join()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _send(self, address: str, model: str, number: int) -> None:
        began = self._now()
        try:
            answer, seconds = infer(address, model, number)
        except (OSError, RuntimeError) as error:
            self.failures[str(error)[:200]] += 1
            return
        self.latencies.append((began, seconds))
        self.wrong += answer != number + 1

    def summary(self) -> str:
        """Return the number of requests by outcome, and the most frequent errors."""
        failed = sum(self.failures.values())
        lines = [f"{len(self.latencies)} answered, {self.wrong} wrong, {failed} failed"]
        lines += [f"  {count} x {text}" for text, count in self.failures.most_common(5)]
        return "\n".join(lines)


def _memory(pid: int, file: str, field: str) -> int:
    """Return a field of a file in /proc/PID, in bytes; 0 if the process has exited."""
    try:
        lines = Path("/proc", str(pid), file).read_text("ascii", "replace").splitlines()
    except OSError:
        return 0
    return next((int(one.split()[1]) * 1024 for one in lines if one.startswith(field)), 0)


def _pss(pid: int) -> int:
    return _memory(pid, "smaps_rollup", "Pss:")


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────

#: Settings of the daemon, and options of the model.
_VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a new worker (`prestarted_workers = 0`, `max_fork_servers = 0`)": (
        {"prestarted_workers": 0, "max_fork_servers": 0},
        {},
    ),
    "a fork (`prestarted_workers = 0`)": ({"prestarted_workers": 0}, {}),
    "a prestarted worker": ({}, {}),
    "`standby_workers=1`": ({}, {"standby_workers": 1}),
}
#: The kernel counts CPU times in hundredths of a second.
_CPU_POLL_INTERVAL_S = 0.2


def resumes(given: argparse.Namespace) -> bool:
    """Measure the first answers of a suspended model: with a new worker, a fork, a prestarted and a standby worker."""
    print("| first answer, ms | p50 | p90 | p99 | worst | resumes |\n|---|--:|--:|--:|--:|--:|")
    is_correct = True
    for name, (settings, options) in _VARIANTS.items():
        with RunningDaemon.start(**settings) as daemon:
            model = daemon.client.register(
                _adding(), "m", _INPUTS, _OUTPUTS, _CONFIG, factory=True, progress=False,
                instances=Autoscale(min=0, max=1, idle_after=0.2), **options,
            )  # fmt: skip
            durations = []
            for number in range(given.resumes):
                eventually(partial(_is_suspended, model), "the model is suspended")
                _wait_until_idle(daemon)
                answer, seconds = infer(daemon.http, "m", number)
                is_correct = is_correct and answer == number + 1
                durations.append(seconds)
        print(f"| {name} | {percentiles(durations, 0.5, 0.9, 0.99, 1.0)} | {len(durations)} |")
    return is_correct


def _is_suspended(model: Model) -> bool:
    return bool(model.info().state == "suspended")


def _wait_until_idle(daemon: RunningDaemon) -> None:
    """Wait until workers use no CPU time, so that a prestarted one has finished its start."""
    seen = [-1.0]

    def is_idle() -> bool:
        time.sleep(_CPU_POLL_INTERVAL_S)
        seen.append(sum(map(_cpu_s, [*daemon.workers(), *daemon.fork_servers()])))
        return seen[-1] == seen[-2]

    eventually(is_idle, "workers are idle")


def _cpu_s(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return 0.0


def _adding(size: int = 0, load_s: float = 0.0) -> Any:
    """Return a factory of a callable that adds 1, with weights of some size."""

    def load() -> Any:
        weights = np.ones(max(1, size // 4), np.float32)
        time.sleep(load_s)

        def infer(requests: Any) -> Any:
            return [{"y": one["x"] + weights[:1]} for one in requests]

        return infer

    return load


# ── memory budget ────────────────────────────────────────────────────────────────────────────────

#: Unshared memory of a worker besides its weights: the interpreter and its imports.
_WORKER_BYTES = 24 * _MIB


def budget(given: argparse.Namespace) -> bool:
    """Serve many models, with request rates by Zipf's law, within a memory budget for a few of them."""
    limit = given.models_in_memory * (given.weights * _MIB + _WORKER_BYTES)
    test = LoadTest()
    with RunningDaemon.start(memory_budget=str(limit), prestarted_workers=0) as daemon:
        for number in range(given.models):
            daemon.client.register(
                _adding(given.weights * _MIB, load_s=0.1), f"m{number + 1:02}", _INPUTS, _OUTPUTS, _CONFIG,
                factory=True, lazy=True, progress=False,
            )  # fmt: skip
        shape = shapes.zipf(given.rate, given.models, given.seconds)
        test.run(daemon, shapes.arrivals(shape, seed=1))
        ready = daemon.client.events(kinds=("ready",), limit=10_000)
    loads = [event.numbers["took_s"] for event in ready]
    most = max((one.memory for one in test.observations), default=0.0)
    workers = max((one.workers for one in test.observations), default=0)
    print(test.summary())
    durations = [seconds for _, seconds in test.latencies]
    print("| | p50 | p90 | p99 | worst |\n|---|--:|--:|--:|--:|")
    print(f"| answers, ms | {percentiles(durations, 0.5, 0.9, 0.99, 1.0)} |")
    print(f"| {len(loads)} loads, ms | {percentiles(loads, 0.5, 0.9, 0.99, 1.0)} |")
    print(f"peak memory {most:.0f} MiB of {limit / _MIB:.0f} MiB, at most {workers} models loaded")
    memory = [(one.at, one.memory) for one in test.observations]
    counts = [(one.at, float(one.workers)) for one in test.observations]
    limits = [(0.0, limit / _MIB), (given.seconds, limit / _MIB)]
    _write_plot(
        given.out,
        "memory-budget",
        f"{given.models} models by Zipf's law, {given.rate:g} requests per second, memory for {given.models_in_memory}",
        [
            plot.Panel(
                "memory of all workers, MiB",
                [plot.Line("used", memory), plot.Line("budget", limits)],
            ),
            plot.Panel("workers", [plot.Line("processes", counts, steps=True)]),
            plot.Panel("latency, ms", [plot.Line("requests", _latencies(test))]),
        ],
    )
    return test.is_flawless and most * _MIB <= limit


def _latencies(test: LoadTest) -> list[tuple[float, float]]:
    return [(at, 1000 * seconds) for at, seconds in sorted(test.latencies)]


def _write_plot(folder: str, name: str, title: str, panels: Sequence[plot.Panel]) -> None:
    path = Path(folder) / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plot.svg(title, panels), encoding="utf-8")
    print(f"plot: {path}")


# ── scaling ──────────────────────────────────────────────────────────────────────────────────────


def square(given: argparse.Namespace) -> bool:
    """Apply a square wave of load to a model that scales with it, and to one with a fixed number of instances."""
    rules = Autoscale(min=1, max=given.max_instances, down_after=10.0)
    enough = math.ceil(given.rate * given.service / rules.target)
    shape = shapes.square(given.rate, given.seconds, given.period)
    scaled, fixed = (_wave(shape, given.service, one) for one in (rules, enough))
    print("| instances | p50 ms | p99 ms | worst ms | instance-seconds |\n|---|--:|--:|--:|--:|")
    for name, test in ((f"1 to {given.max_instances}", scaled), (f"{enough} fixed", fixed)):
        durations = [seconds for _, seconds in test.latencies]
        seen = test.observations
        cost = sum(one.workers * (two.at - one.at) for one, two in zip(seen, seen[1:]))
        print(f"| {name} | {percentiles(durations, 0.5, 0.99, 1.0)} | {cost:.0f} |")
    half = given.period / 2
    needed = math.ceil(given.rate * given.service)
    delays = []
    for number in range(int(given.seconds / given.period)):
        rise = half + given.period * number
        ready = (one.at for one in scaled.observations if one.at >= rise and one.ready >= needed)
        at = next(ready, math.inf)
        delays.append(f"{at - rise:.1f}" if at < rise + half else "never")
    print(f"seconds after each rise until {needed} instances were ready: {', '.join(delays)}")
    print(f"{scaled.summary()}\n{fixed.summary()}")
    rate = shape.rates["model"]
    times = [number / 2 for number in range(int(given.seconds * 2))]
    counts = [(one.at, float(one.ready)) for one in scaled.observations]
    _write_plot(
        given.out,
        "square-wave",
        f"square wave of up to {given.rate:g} requests per second, {given.service:g} s each",
        [
            plot.Panel(
                "requests per second",
                [plot.Line("arriving", [(at, rate(at)) for at in times], steps=True)],
            ),
            plot.Panel("instances", [plot.Line("ready", counts, steps=True)]),
            plot.Panel(
                "latency, ms",
                [plot.Line("scaled", _latencies(scaled)), plot.Line("fixed", _latencies(fixed))],
            ),
        ],
    )
    return scaled.is_flawless and fixed.is_flawless


def _wave(shape: shapes.Shape, service_s: float, instances: Any) -> LoadTest:
    def infer(requests: Any) -> Any:
        time.sleep(service_s)
        return [{"y": one["x"] + 1} for one in requests]

    test = LoadTest()
    with RunningDaemon.start() as daemon:
        daemon.client.register(
            infer, "model", _INPUTS, _OUTPUTS, ModelConfig(max_batch_size=1), instances=instances,
            progress=False,
        )  # fmt: skip
        test.run(daemon, shapes.arrivals(shape, seed=1))
    return test


# ── lazy models ──────────────────────────────────────────────────────────────────────────────────

#: Number of models whose readiness is queried.
_QUERIED = 20


def starts(given: argparse.Namespace) -> bool:
    """Measure starts of a daemon with many lazy models, until it is ready and until a model has answered."""
    print(
        "| lazy models | ready after, s | first answer, s | a readiness query, ms | CPU s of the daemon "
        "| CPU s of tritonserver | MiB of tritonserver (PSS) | its threads |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    is_correct = True
    for count in given.models:
        with tempfile.TemporaryDirectory(prefix="starts-") as folder:
            _persist(Path(folder), count)
            is_correct = _start(folder, count) and is_correct
    return is_correct


def _persist(folder: Path, count: int) -> None:
    """Write registrations into a state directory, as if each model had been registered."""
    with RunningDaemon.start(state_dir=str(folder)) as daemon:
        daemon.client.register(
            _adding(), "m0", _INPUTS, _OUTPUTS, _CONFIG, factory=True, lazy=True, progress=False
        )
    store = Store(folder)
    (entry,) = store.read().entries
    for number in range(1, count):
        spec = msgspec.structs.replace(entry.spec, name=f"m{number}")
        store.write(spec, entry.payloads, entry.registered_at).finish()
    store.close()


def _start(folder: str, count: int) -> bool:
    began = time.monotonic()
    with RunningDaemon.start(state_dir=folder) as daemon:
        ready_s = time.monotonic() - began
        server = daemon.server
        cpu = [_cpu_s(one) for one in (psutil.Process(daemon.process.pid), server)]
        memory, threads = _pss(server.pid) / _MIB, server.num_threads()
        answer, answer_s = infer(daemon.http, f"m{count - 1}", 5)
        numbers = range(0, count, max(1, count // _QUERIED))
        began = time.monotonic()
        are_ready = all([_is_ready(daemon.http, f"m{number}") for number in numbers])
        query_ms = (time.monotonic() - began) * 1000 / len(numbers)
    print(
        f"| {count:,} | {ready_s:.2f} | {answer_s:.2f} | {query_ms:.0f} | {cpu[0]:.2f} | {cpu[1]:.2f} "
        f"| {memory:.0f} | {threads:,} |",
        flush=True,
    )
    return are_ready and answer == 6.0


def _is_ready(address: str, model: str) -> bool:
    url = f"http://{address}/v2/models/{model}/ready"
    with request.urlopen(url, timeout=_TIMEOUT_S) as response:
        return bool(response.status == 200)


# ── shared weights ───────────────────────────────────────────────────────────────────────────────


def shared(given: argparse.Namespace) -> bool:
    """Measure the memory of four instances of one model, with and without `pytriton.shared`."""
    print("| 4 instances of a model of 256 MiB | PSS of the workers, MiB |\n|---|--:|")
    is_correct = True
    for name, factory in (
        ("separate weights", _adding(256 * _MIB)),
        ("`pytriton.shared`", _sharing()),
    ):
        with RunningDaemon.start() as daemon:
            model = daemon.client.register(
                factory, "m", _INPUTS, _OUTPUTS, _CONFIG, progress=False, factory=True, instances=4
            )
            answers = [infer(daemon.http, "m", number)[0] for number in range(64)]
            is_correct = is_correct and answers == [number + 1.0 for number in range(64)]
            pids = [one.pid for one in model.info().instances if one.pid is not None]
            print(f"| {name} | {sum(map(_pss, pids)) / _MIB:.0f} |", flush=True)
    return is_correct


def _sharing() -> Any:
    def load() -> Any:
        import pytriton

        weights = pytriton.shared(lambda: np.ones((64, 1 << 20), np.float32), key="ones, 256 MiB")
        weights.sum()  # reads all pages, as requests would

        def infer(requests: Any) -> Any:
            return [{"y": one["x"] + weights[:, :1].mean()} for one in requests]

        return infer

    return load


def main(arguments: list[str] | None = None) -> int:
    """Run the given measurement; return 1 if an answer was wrong or missing, or the budget was exceeded."""
    given = _parser().parse_args(arguments)
    succeeded: bool = given.run(given)
    print("load average: " + ", ".join(f"{one:.1f}" for one in os.getloadavg()))
    return 0 if succeeded else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/tools/elastic-bench", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(run: Any) -> Any:
        one = commands.add_parser(
            run.__name__,
            help=run.__doc__,
            description=run.__doc__,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        one.set_defaults(run=run)
        return one.add_argument

    add = command(resumes)
    add("--resumes", type=int, default=200, help="number of resumes of each kind")
    add = command(budget)
    add("--seconds", type=float, default=600.0, help="duration")
    add("--rate", type=float, default=2.0, help="requests per second")
    add("--models", type=int, default=50, help="number of models")
    add(
        "--models-in-memory", type=int, default=5, help="number of models for which there is memory"
    )
    add("--weights", type=int, default=64, help="size of a model, in MiB")
    add("--out", default="build/elastic", help="output folder of the plot")
    add = command(square)
    add("--seconds", type=float, default=120.0, help="duration of each of the two runs")
    add("--period", type=float, default=60.0, help="period of the wave, in seconds")
    add("--rate", type=float, default=40.0, help="peak rate, in requests per second")
    add("--service", type=float, default=0.1, help="duration of a request, in seconds")
    add("--max-instances", type=int, default=8, help="maximum number of instances")
    add("--out", default="build/elastic", help="output folder of the plot")
    add = command(starts)
    add("--models", type=int, nargs="+", default=[10, 250, 1000], help="numbers of lazy models")
    command(shared)
    return parser


if __name__ == "__main__":
    sys.exit(main())
