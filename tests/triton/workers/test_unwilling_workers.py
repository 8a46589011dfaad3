"""Workers that would not end by themselves: unregistering their models does not take the whole grace period."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.models.inference import Array, Inference
from support.running import RunningDaemon

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


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_leaves_a_thread, "(left behind)"),
        (_ignores_sigterm, "takes no notice of SIGTERM"),
    ],
)
def test_a_model_is_unregistered(
    patient: RunningDaemon, act: Callable[[], None], said: str
) -> None:
    @batch
    def infer(x: Array) -> dict[str, Array]:
        act()
        return {"y": x}

    name = act.__name__.strip("_")
    x, y = Tensor(name="x", **TENSOR), Tensor(name="y", **TENSOR)  # type: ignore[arg-type]
    patient.client.register(infer, name, [x], [y], ModelConfig(max_batch_size=1), progress=False)
    connection = Inference("grpc", patient.grpc)
    assert connection.infer(name, {"x": np.ones((1, 2), np.float32)})["y"].shape == (1, 2)
    connection.close()
    with ThreadPoolExecutor(1) as threads:
        done: Any = threads.submit(patient.client.unregister, name)
        try:
            done.result(SOON_S)
        except BaseException:
            patient.process.kill()  # else this test waits for the grace period
            raise
    assert [line for line in patient.said().splitlines() if said in line and name in line]
