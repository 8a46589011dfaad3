"""Starts of a daemon that keeps many lazy models: until it is ready, and until one of them has answered."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib import request

import msgspec
import numpy as np
import psutil
from support.real_daemon import RunningDaemon

from elastic_bench.http_load import ask, load_of_machine
from elastic_bench.memory import pss
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.model_config import ModelConfig, Tensor

_MIB = 1 << 20
#: So many names are asked for whether they are ready.
_NAMES = 20
_ONE = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_OTHER = [Tensor(name="y", dtype=np.float32, shape=(1,))]


def show(given: argparse.Namespace) -> bool:
    """Print the table; whether the names that were asked for were ready, and the first answers right."""
    print(
        "| lazy models | ready after, s | first answer, s | a name ready, ms | CPU s of the daemon | of tritonserver "
        "| MiB of tritonserver (PSS) | its threads |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    right = True
    for count in given.models:
        for _ in range(given.times):
            with tempfile.TemporaryDirectory(prefix="starts-") as folder:
                _keep(Path(folder), count)
                right = _start(folder, count) and right
    print(load_of_machine())
    return right


def _keep(folder: Path, count: int) -> None:
    """Have the state directory hold so many models, as if each had been registered."""

    def infer(requests: Any) -> Any:
        return [{"y": one["x"] + 1} for one in requests]

    with RunningDaemon.start(state_dir=str(folder)) as daemon:
        daemon.client.register(
            infer, "m0", _ONE, _OTHER, ModelConfig(max_batch_size=8), lazy=True, progress=False
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
        own, server = psutil.Process(daemon.process.pid), daemon.server
        cpu = [sum(one.cpu_times()[:2]) for one in (own, server)]
        memory, threads = pss(server.pid) / _MIB, server.num_threads()
        answer, took = ask(daemon.http, f"m{count - 1}", 5)
        names = range(0, count, max(1, count // _NAMES))
        began = time.monotonic()
        there = all([_is_ready(daemon.http, f"m{number}") for number in names])
        name_ms = (time.monotonic() - began) * 1000 / len(names)
    print(
        f"| {count:,} | {ready_s:.2f} | {took:.2f} | {name_ms:.0f} | {cpu[0]:.2f} | {cpu[1]:.2f} "
        f"| {memory:.0f} | {threads:,} |",
        flush=True,
    )
    return there and answer == 6.0


def _is_ready(address: str, model: str) -> bool:
    with request.urlopen(f"http://{address}/v2/models/{model}/ready", timeout=60) as answer:
        return bool(answer.status == 200)
