"""Streams that end because their worker is scaled away or their daemon stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.daemon_pool import DaemonPool
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol.exit_codes import ExitCode
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import ModelConfig, Tensor

N = [Tensor(name="n", dtype=np.int32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.int32, shape=(1,))]


def test_streams_finish_when_their_model_is_scaled_down(
    daemon_pool: DaemonPool,
) -> None:
    def infer(requests: Any) -> Iterator[list[Any]]:
        for i in range(50):
            time.sleep(0.02)
            yield [{"y": np.full_like(request["n"], i)} for request in requests]

    def ask(started: threading.Barrier) -> list[int]:
        with Streaming(daemon.grpc, model.name, {"n": np.array([3], np.int32)}) as stream:
            answers = iter(stream)
            first = next(answers)
            started.wait(timeout=60)
            return [answer["y"].item() for answer in [first, *answers]]

    # The Python proxy's streams may stay open for ever then: Triton ends its process.
    with daemon_pool.lend(proxy="native") as daemon, ThreadPoolExecutor(3) as threads:
        config = ModelConfig(decoupled=True, batching=False)
        model = daemon.client.register(infer, "m", N, Y, config, instances=3, progress=False)
        started = threading.Barrier(4)
        asked = [threads.submit(ask, started) for _ in range(3)]
        started.wait(timeout=60)
        model.scale(1)
        assert [one.result() for one in asked] == [list(range(50))] * 3
        eventually(lambda: len(model.instances) == 1, "the others have ended")


def test_an_unrecoverable_error_in_a_generator_stops_the_daemon() -> None:
    def infer(requests: Any) -> Iterator[list[Any]]:
        yield [{"y": request["n"]} for request in requests]
        raise PyTritonUnrecoverableError("the device is gone")

    with RunningDaemon.start() as daemon:
        model = daemon.client.register(
            infer, "model", N, Y, ModelConfig(decoupled=True), progress=False
        )
        with (
            Streaming(daemon.grpc, model.name, {"n": np.array([[1]], np.int32)}) as stream,
            pytest.raises(InferenceServerException, match="the device is gone"),
        ):
            list(stream)
        assert daemon.process.wait(timeout=60) == ExitCode.UNRECOVERABLE
