"""The memory of four instances of one model, with weights of their own and with pytriton.shared."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from support.real_daemon import RunningDaemon

from elastic_bench.http_load import ask, load_of_machine
from elastic_bench.memory import pss, resident
from pytriton.model_config import ModelConfig, Tensor

_MIB = 1 << 20
_ONE = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_OTHER = [Tensor(name="y", dtype=np.float32, shape=(1,))]


def show(given: argparse.Namespace) -> bool:
    """Print the table; whether all answers were right."""
    print(
        "| 4 instances of a model of 256 MiB | PSS of the workers, MiB | resident, summed, MiB |\n|---|--:|--:|"
    )
    right = True
    for name, factory in (("each its own", _of_its_own), ("`pytriton.shared`", _shared)):
        with RunningDaemon.start() as daemon:
            model = daemon.client.register(
                factory(), "m", _ONE, _OTHER, ModelConfig(max_batch_size=8), progress=False,
                factory=True, instances=4,
            )  # fmt: skip
            answers = [ask(daemon.http, "m", number)[0] for number in range(64)]
            right = right and answers == [number + 1.0 for number in range(64)]
            pids = [one.pid for one in model.info().instances if one.pid is not None]
            print(
                f"| {name} | {sum(map(pss, pids)) / _MIB:.0f} | {sum(map(resident, pids)) / _MIB:.0f} |",
                flush=True,
            )
    print(load_of_machine())
    return right


def _of_its_own() -> Any:
    def load() -> Any:
        weights = np.ones((64, 1 << 20), np.float32)

        def infer(requests: Any) -> Any:
            return [{"y": one["x"] + weights[:, :1].mean()} for one in requests]

        return infer

    return load


def _shared() -> Any:
    def load() -> Any:
        import pytriton

        weights = pytriton.shared(lambda: np.ones((64, 1 << 20), np.float32), key="ones, 256 MiB")
        weights.sum()  # has it all in memory, as calls would

        def infer(requests: Any) -> Any:
            return [{"y": one["x"] + weights[:, :1].mean()} for one in requests]

        return infer

    return load
