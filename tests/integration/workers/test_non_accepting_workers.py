"""Workers that do not exit when asked: unregistering their models does not take the whole grace period."""

from __future__ import annotations

import asyncio
import atexit
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.models.inference import Array, infer_once
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon, halt

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

TENSOR = {"dtype": np.float32, "shape": (-1,)}
#: Longer than a test may take.
GRACE_S = 3000.0
#: Far more than it takes, and less than a test may.
SOON_S = 150.0


@pytest.fixture(scope="module")
def patient() -> Iterator[RunningDaemon]:
    with RunningDaemon.start(grace_period_s=GRACE_S) as running:
        yield running


def _leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(1e6,), name="left behind").start()


def _ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(print, "it has cleaned up")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_leaves_a_thread, "still running: left behind"),
        (_ignores_sigterm, "it has cleaned up"),
    ],
)
def test_a_model_with_a_stuck_worker_is_unregistered_quickly(
    patient: RunningDaemon, act: Callable[[], None], said: str
) -> None:
    @batch
    def infer(x: Array) -> dict[str, Array]:
        act()
        return {"y": x}

    name = act.__name__.strip("_")
    x, y = Tensor(name="x", **TENSOR), Tensor(name="y", **TENSOR)  # type: ignore[arg-type]
    patient.client.register(infer, name, [x], [y], ModelConfig(max_batch_size=1), progress=False)
    assert infer_once(patient, name, {"x": np.ones((1, 2), np.float32)}, "grpc")["y"].shape == (
        1,
        2,
    )
    _unregister(patient, name)
    assert _said(patient, said, name)


def test_a_stream_that_handles_sigterm_itself_ends_gracefully(patient: RunningDaemon) -> None:
    """Its event loop hides the signal from the worker."""

    async def infer(requests: Any) -> AsyncIterator[Any]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print, "that is mine")
        atexit.register(print, "it has cleaned up")
        yield [{"y": request["x"]} for request in requests]

    config = ModelConfig(batching=False, decoupled=True)
    x, y = Tensor(name="x", **TENSOR), Tensor(name="y", **TENSOR)  # type: ignore[arg-type]
    patient.client.register(infer, "streams", [x], [y], config, progress=False)
    with Streaming(patient.grpc, "streams", {"x": np.ones(2, np.float32)}) as stream:
        assert len(list(stream)) == 1
    _unregister(patient, "streams")
    assert _said(patient, "it has cleaned up", "streams")
    assert not _said(patient, "did not react to SIGTERM", "streams")


def test_an_unresponsive_idle_worker_is_killed(patient: RunningDaemon) -> None:
    x, y = Tensor(name="x", **TENSOR), Tensor(name="y", **TENSOR)  # type: ignore[arg-type]
    patient.client.register(lambda requests: [], "halted", [x], [y], progress=False)
    pid = (
        next(one for one in patient.client.status().models if one.name == "halted").instances[0].pid
    )
    assert pid is not None
    halt(pid)
    _unregister(patient, "halted")
    assert _said(patient, "did not react to SIGTERM", "halted")


def _unregister(patient: RunningDaemon, name: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        done: Any = threads.submit(patient.client.unregister, name)
        try:
            done.result(SOON_S)
        except BaseException:
            patient.process.kill()  # else this test waits for the grace period
            raise


def _said(patient: RunningDaemon, said: str, name: str) -> list[str]:
    return [line for line in patient.said().splitlines() if said in line and name in line]
