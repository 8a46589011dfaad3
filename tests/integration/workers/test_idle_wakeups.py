"""The wake-ups of idle processes: workers and the schedulers of tritonserver sleep until a request arrives."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.models.inference import Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton import ModelConfig, batch

#: A thread that wakes up once a second wakes up so often in the measured time.
_WINDOW_S = 4.0
_MODELS = 8


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A daemon with models that use dynamic batching, each of which has answered a request."""

    @batch
    def echo(x: Any) -> Any:
        return {"y": x}

    with RunningDaemon.start() as running:
        inference = Inference("http", running.http)
        for number in range(_MODELS):
            config = ModelConfig(max_batch_size=4)
            running.client.register(echo, f"m{number}", X, Y, config=config, progress=False)
            inference.infer(f"m{number}", {"x": ONES})
        yield running


def wakeups(pid: int) -> int:
    """Return how often the threads of a process wake up while it is idle."""
    before = _switches(pid)
    time.sleep(_WINDOW_S)
    after = _switches(pid)
    return sum(count - before.get(thread, 0) for thread, count in after.items())


def _switches(pid: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
            line = next(one for one in status.splitlines() if one.startswith("voluntary_ctxt"))
            found[thread] = int(line.split()[1])
    return found


def test_an_idle_worker_sleeps(daemon: RunningDaemon) -> None:
    (instance,) = daemon.client.model("m0").info().instances
    assert instance.pid is not None
    pid = instance.pid
    eventually(lambda: wakeups(pid) == 0, "it always wakes up by itself")


def test_an_idle_dispatcher_sleeps(daemon: RunningDaemon) -> None:
    """It used to wake up five times a second. Its periodic tasks need two wake-ups or three every five seconds."""
    pid = daemon.process.pid
    eventually(lambda: wakeups(pid) < _WINDOW_S, "it always wakes up by itself")


@pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has timers of its own")
def test_schedulers_of_idle_models_sleep(daemon: RunningDaemon) -> None:
    pid = daemon.client.status().server.pid
    assert pid is not None
    # Each model's scheduler used to wake up twice a second.
    eventually(lambda: wakeups(pid) < _MODELS * _WINDOW_S, "its schedulers always wake up")
