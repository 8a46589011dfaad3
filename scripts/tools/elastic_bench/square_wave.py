"""A square wave of load on a model that follows it, and on one with a fixed number of instances."""

from __future__ import annotations

import argparse
import math
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from simulation import plot, shapes
from support.real_daemon import RunningDaemon

from elastic_bench.http_load import Answers, at, load_of_machine
from pytriton import Autoscale
from pytriton.model_config import ModelConfig, Tensor

_MODEL = "m"
_ONE = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_OTHER = [Tensor(name="y", dtype=np.float32, shape=(1,))]
_POLL_INTERVAL_S = 0.1


class Look(NamedTuple):
    """The instances at a moment: those that serve, and those that have a process."""

    at: float
    ready: int
    there: int


class Run(Answers):
    """The observations of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[Look] = []
        self.over = threading.Event()

    def watch(self, daemon: RunningDaemon) -> None:
        """Look at the instances until it is over."""
        while not self.over.wait(_POLL_INTERVAL_S):
            (model,) = daemon.client.status().models
            ready = sum(one.state == "ready" for one in model.instances)
            there = sum(one.pid is not None for one in model.instances)
            self.looks.append(Look(self.now(), ready, there))

    @property
    def cost(self) -> float:
        """The cost, in instance-seconds."""
        return sum(one.there * (two.at - one.at) for one, two in zip(self.looks, self.looks[1:]))

    @property
    def changes(self) -> int:
        """How often the number of instances that serve was another one."""
        return sum(one.ready != two.ready for one, two in zip(self.looks, self.looks[1:]))

    def until(self, since: float, end: float, least: int = 0, most: int = 1 << 30) -> float | None:
        """Return the seconds after `since` until so many instances served; None: they did not before `end`."""
        found = (
            one.at for one in self.looks if since <= one.at < end and least <= one.ready <= most
        )
        moment = next(found, None)
        return None if moment is None else moment - since


def show(given: argparse.Namespace) -> bool:
    """Print the table, and how fast instances followed, and draw it; whether nothing failed."""
    rules = Autoscale(min=1, max=given.max_instances, down_after=given.down_after)
    enough = math.ceil(given.rate * given.service / rules.target)
    following, fixed = _run(given, rules), _run(given, enough)
    print(
        "| instances | p50 ms | p99 ms | worst ms | instance-seconds | changes |\n|---|--:|--:|--:|--:|--:|"
    )
    for name, run in ((f"1 to {given.max_instances}", following), (f"{enough} fixed", fixed)):
        seconds = [took for _, took in run.took]
        figures = " | ".join(f"{at(seconds, share):.0f}" for share in (0.5, 0.99, 1.0))
        print(f"| {name} | {figures} | {run.cost:.0f} | {run.changes} |")
    half = given.period / 2
    rises = [half + given.period * n for n in range(int(given.seconds / given.period))]
    takes = math.ceil(given.rate * given.service)
    up = [following.until(rise, rise + half, least=takes) for rise in rises]
    full = [following.until(rise, rise + half, least=enough) for rise in rises]
    falls = [rise + half for rise in rises[:-1]]
    down = [following.until(fall, fall + half, most=takes - 1) for fall in falls]
    print(f"seconds after a rise until {takes} served, which just take the load: {_texts(up)}")
    print(f"seconds after a rise until {enough} served: {_texts(full)}")
    print(f"seconds after a fall until fewer than {takes} served: {_texts(down)}")
    print("\n".join(run.text() for run in (following, fixed)))
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "square-wave.svg").write_text(_picture(given, following, fixed), encoding="utf-8")
    print(f"plot: {folder}/square-wave.svg; {load_of_machine()}")
    return not any(run.failures or run.wrong for run in (following, fixed))


def _run(given: argparse.Namespace, instances: Any) -> Run:
    service = given.service

    def infer(requests: Any) -> Any:
        time.sleep(service)
        return [{"y": one["x"] + 1} for one in requests]

    shape = shapes.square(given.rate, given.seconds, given.period)
    dice = random.Random(given.seed)
    moments = shapes.arrivals(shape.rates["model"], shape.most, given.seconds, dice)
    run = Run()
    with RunningDaemon.start() as daemon:
        daemon.client.register(
            infer, _MODEL, _ONE, _OTHER, ModelConfig(max_batch_size=1),
            instances=instances, progress=False,
        )  # fmt: skip
        watching = threading.Thread(target=run.watch, args=(daemon,))
        watching.start()
        try:
            run.load(daemon.http, ((moment, _MODEL) for moment in moments))
        finally:
            run.over.set()
            watching.join()
    return run


def _texts(seconds: Sequence[float | None]) -> str:
    return (
        ", ".join("never" if one is None else f"{one:.1f}" for one in seconds) or "there was none"
    )


def _picture(given: argparse.Namespace, following: Run, fixed: Run) -> str:
    counts = [(one.at, float(one.ready)) for one in following.looks]
    moments = [n / 2 for n in range(int(given.seconds * 2))]
    rate = shapes.square(given.rate, given.seconds, given.period).rates["model"]
    return plot.svg(
        f"square wave of up to {given.rate:g} requests per second, {given.service:g} s each",
        [
            plot.Panel(
                "requests per second",
                [plot.Line("come", [(moment, rate(moment)) for moment in moments], steps=True)],
            ),
            plot.Panel("instances", [plot.Line("serve", counts, steps=True)]),
            plot.Panel(
                "answers, ms",
                [
                    plot.Line(name, [(when, 1000 * took) for when, took in sorted(run.took)])
                    for name, run in (("following the load", following), ("fixed", fixed))
                ],
            ),
        ],
    )
