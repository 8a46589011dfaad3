"""First answers of a suspended model: with a new worker, a fork, a prestarted one, and a standby worker."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import psutil
from support.real_daemon import RunningDaemon, eventually

from elastic_bench.http_load import ask, at, load_of_machine
from pytriton import Autoscale
from pytriton.model_config import ModelConfig, Tensor

_WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a new worker (`prestarted_workers = 0`, `max_fork_servers = 0`)": (
        {"prestarted_workers": 0, "max_fork_servers": 0},
        {},
    ),
    "a fork (`prestarted_workers = 0`)": ({"prestarted_workers": 0}, {}),
    "a prestarted worker": ({}, {}),
    "`standby_workers=1`": ({}, {"standby_workers": 1}),
}
#: Between two looks at CPU times, which the kernel counts in hundredths of a second.
_POLL_INTERVAL_S = 0.2
_ONE = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_OTHER = [Tensor(name="y", dtype=np.float32, shape=(1,))]


def show(given: argparse.Namespace) -> bool:
    """Print the table; whether all answers were right."""
    print("| first answer, ms | p50 | p90 | p99 | worst | resumes |\n|---|--:|--:|--:|--:|--:|")
    right = True
    for name, (settings, options) in _WAYS.items():
        with RunningDaemon.start(**settings) as daemon:
            took, correct = _resumes(daemon, given.resumes, options)
        right = right and correct
        figures = " | ".join(f"{at(took, share):.0f}" for share in (0.5, 0.9, 0.99, 1.0))
        print(f"| {name} | {figures} | {len(took)} |", flush=True)
    print(load_of_machine())
    return right


def _resumes(
    daemon: RunningDaemon, resumes: int, options: dict[str, Any]
) -> tuple[list[float], bool]:
    def echo(requests: Any) -> Any:
        return [{"y": one["x"]} for one in requests]

    model = daemon.client.register(
        echo, "m", _ONE, _OTHER, ModelConfig(max_batch_size=8), progress=False,
        instances=Autoscale(min=0, max=1, idle_after=0.2), **options,
    )  # fmt: skip
    address, took, right = daemon.http, [], True
    for number in range(resumes):
        eventually(lambda: model.info().state == "suspended", "it is suspended")
        _until_at_rest(daemon)
        answer, seconds = ask(address, "m", number)
        right = right and answer == number
        took.append(seconds)
    return took, right


def _until_at_rest(daemon: RunningDaemon) -> None:
    """Return when workers take no CPU time any more: a prestarted one has started then."""
    seen = [-1.0]

    def at_rest() -> bool:
        time.sleep(_POLL_INTERVAL_S)
        seen.append(sum(map(_cpu_s, [*daemon.workers(), *daemon.fork_servers()])))
        return seen[-1] == seen[-2]

    eventually(at_rest, "workers are at rest")


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return float(times.user + times.system)
