"""Models that share a memory budget, and instances that share their weights, with the real tritonserver."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.models.inference import Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton._protocol.files import shared_entries
from pytriton.exceptions import PyTritonError

NAMES = [f"m{number}" for number in range(6)]


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon.start(memory_budget="1000MiB", prestarted_workers=0) as running:
        yield running


def times(factor: int) -> Any:
    def infer(requests: Any) -> Any:
        return [{"y": factor * request["x"]} for request in requests]

    return infer


class _Watch:
    """Samples the number of models that have workers."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.most = 0
        self._daemon = daemon
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, len(self._daemon.workers()))


def test_six_models_take_turns_in_the_memory_of_three(daemon: RunningDaemon) -> None:
    for number, name in enumerate(NAMES):
        daemon.client.register(
            times(number), name, X, Y, lazy=True, memory_request="300MiB", progress=False
        )

    def ask(number: int) -> list[float]:
        inference = Inference(["http", "grpc"][number % 2], [daemon.http, daemon.grpc][number % 2])
        answers = [
            inference.infer(NAMES[(number + turn) % 6], {"x": ONES})["y"].reshape(-1)[0]
            for turn in range(6)
        ]
        inference.close()
        return answers

    with _Watch(daemon) as watch, ThreadPoolExecutor(6) as threads:
        found = list(threads.map(ask, range(6)))
    assert found == [[float((number + turn) % 6) for turn in range(6)] for number in range(6)]
    assert 2 <= watch.most <= 3
    (reported,) = daemon.client.status().memory
    assert reported.budget == 1000 << 20
    assert reported.used <= reported.budget
    assert daemon.client.events(kinds=["suspended"])[-1].reason.startswith("model m")
    with pytest.raises(PyTritonError, match="needs 1,200 MiB, but memory_budget is 1,000"):
        daemon.client.register(
            times(1), "large", X, Y, lazy=True, memory_request="1200MiB", progress=False
        )
    for name in NAMES:
        daemon.client.unregister(name)


def test_instances_share_one_copy_of_their_weights(daemon: RunningDaemon) -> None:
    def load() -> Any:
        import pytriton

        weights = pytriton.shared(lambda: {"w": np.full(8 << 20, 3, np.uint8)}, key="threes")["w"]

        def infer(requests: Any) -> Any:
            return [{"y": request["x"] * weights[-1]} for request in requests]

        return infer

    model = daemon.client.register(load, "sharing", X, Y, factory=True, instances=2, progress=False)
    folder = daemon.config.rundir.shared
    (entry,) = shared_entries.all_of(folder).values()
    pids = {one.pid for one in model.instances}
    assert {one.pid for one in entry.holders} == pids
    assert entry.size >= 8 << 20
    inference = Inference("http", daemon.http)
    assert inference.infer("sharing", {"x": ONES})["y"].reshape(-1)[0] == 3.0
    for pid in pids:
        os.kill(int(pid or 0), signal.SIGKILL)
    assert inference.infer("sharing", {"x": ONES})["y"].reshape(-1)[0] == 3.0
    inference.close()
    eventually(lambda: daemon.client.status().memory[0].used >= 8 << 20, "it counts")
    daemon.client.unregister("sharing")
    eventually(
        lambda: not shared_entries.all_of(folder) and not [*folder.glob("*.json")],
        lambda: f"nothing is left: {[*folder.iterdir()]}",
    )
