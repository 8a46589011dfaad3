"""Fifty models asked by Zipf's law, and memory for five of them."""

from __future__ import annotations

import argparse
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from simulation import plot, shapes
from simulation.shapes import arrivals
from support.real_daemon import RunningDaemon

from elastic_bench.http_load import Answers, at, load_of_machine
from elastic_bench.memory import own, pss
from pytriton.model_config import ModelConfig, Tensor

_MIB = 1 << 20
_ONE = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_OTHER = [Tensor(name="y", dtype=np.float32, shape=(1,))]
#: Own memory of a worker beside its weights: the interpreter and its imports.
_BASE = 24 * _MIB
_POLL_INTERVAL_S = 0.25


class Run(Answers):
    """The observations of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.own: list[tuple[float, float]] = []
        self.pss: list[tuple[float, float]] = []
        self.loaded: list[tuple[float, float]] = []
        self.over = threading.Event()

    def watch(self, daemon: RunningDaemon) -> None:
        """Look at the workers' memory until it is over."""
        while not self.over.wait(_POLL_INTERVAL_S):
            pids = [
                one.pid
                for model in daemon.client.status().models
                for one in model.instances
                if one.pid is not None
            ]
            at_ = self.now()
            self.own.append((at_, sum(map(own, pids)) / _MIB))
            self.pss.append((at_, sum(map(pss, pids)) / _MIB))
            self.loaded.append((at_, len(pids)))


def show(given: argparse.Namespace) -> bool:
    """Ask for a while, print what became of it, draw it; whether nothing failed and the budget was kept."""
    budget = given.models_in_memory * (given.weights * _MIB + _BASE)
    run = Run()
    with RunningDaemon.start(memory_budget=str(budget), prestarted_workers=0) as daemon:
        for number in range(given.models):
            daemon.client.register(
                _model(given.weights * _MIB, given.load), f"m{number + 1:02}", _ONE, _OTHER,
                ModelConfig(max_batch_size=8), factory=True, lazy=True, progress=False,
            )  # fmt: skip
        watching = threading.Thread(target=run.watch, args=(daemon,))
        watching.start()
        run.load(daemon.http, _arrivals(given))
        run.over.set()
        watching.join()
        loads = _loads(daemon)
    _print(run, budget, loads)
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory-budget.svg").write_text(_picture(run, budget, given), encoding="utf-8")
    print(f"plot: {folder}/memory-budget.svg; {load_of_machine()}")
    most = max((count for _, count in run.own), default=0.0)
    return not run.failures and not run.wrong and most * _MIB <= budget


def _model(size: int, load_s: float) -> Any:
    def load() -> Any:
        weights = np.ones(size // 4, np.float32)
        time.sleep(load_s)

        def infer(requests: Any) -> Any:
            return [{"y": one["x"] + weights[:1]} for one in requests]

        return infer

    return load


def _arrivals(given: argparse.Namespace) -> list[tuple[float, str]]:
    shape = shapes.zipf(given.rate, given.models, given.seconds)
    dice = random.Random(given.seed)
    return sorted(
        (moment, model)
        for model, rate in shape.rates.items()
        for moment in arrivals(rate, shape.most, given.seconds, random.Random(dice.random()))
    )


def _loads(daemon: RunningDaemon) -> list[float]:
    """Return how long workers took from their start until they were ready, the newest that are kept."""
    return [
        event.numbers["took_s"] for event in daemon.client.events(kinds=("ready",), limit=10_000)
    ]


def _print(run: Run, budget: int, loads: list[float]) -> None:
    seconds = [took for _, took in run.took]
    figures = " / ".join(f"{at(seconds, share):.0f}" for share in (0.5, 0.9, 0.99, 1.0))
    own_most, pss_most = (
        max((count for _, count in one), default=0.0) for one in (run.own, run.pss)
    )
    print(run.text())
    print(f"answers, ms: p50 / p90 / p99 / worst {figures}")
    print(
        f"loads: {len(loads)}, ms: p50 {at(loads, 0.5):.0f}, worst {at(loads, 1.0):.0f}; "
        f"most loaded at once {max((count for _, count in run.loaded), default=0):.0f}"
    )
    print(
        f"memory of the workers, MiB: own {own_most:.0f}, PSS {pss_most:.0f}; budget {budget / _MIB:.0f}"
    )


def _picture(run: Run, budget: int, given: argparse.Namespace) -> str:
    limit = [(0.0, budget / _MIB), (given.seconds, budget / _MIB)]
    return plot.svg(
        f"{given.models} models by Zipf's law, {given.rate:g} requests per second, memory for {given.models_in_memory}",
        [
            plot.Panel(
                "memory of all workers, MiB",
                [plot.Line("own", run.own), plot.Line("budget", limit)],
            ),
            plot.Panel("workers", [plot.Line("there", run.loaded, steps=True)]),
            plot.Panel(
                "answers, ms", [plot.Line("took", [(at_, 1000 * s) for at_, s in sorted(run.took)])]
            ),
        ],
    )
