"""Requests that crash every worker fail; the rest of their batch and the model survive. With both proxies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.daemon_pool import DaemonPool
from support.models.inference import infer_once
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton import pb_utils
from pytriton.model_config import DynamicBatcher, ModelConfig

#: So many requests come together, and make a batch of their own; however late the last one comes, it is waited for.
TOGETHER = 4
BATCHED = ModelConfig(
    max_batch_size=TOGETHER, batcher=DynamicBatcher(max_queue_delay_microseconds=60_000_000)
)
GOOD, POISON, HANG = 1, 9, 12


@pytest.fixture(scope="module", params=["native", "python"])
def served(daemon_pool: DaemonPool, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    with daemon_pool.lend(proxy=request.param) as daemon:
        yield daemon


def infer(requests: Any) -> Any:
    for request in requests:
        if request["x"][0, 0] == POISON:
            os.kill(os.getpid(), signal.SIGSEGV)
        if request["x"][0, 0] == HANG:
            threading.Event().wait()
    return [{"y": request["x"] * 2} for request in requests]


class Fragile:
    """The same as a Triton Python model."""

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        if any(array[0, 0] == POISON for array in arrays):
            os.kill(os.getpid(), signal.SIGSEGV)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * array)]) for array in arrays]


class Late(Fragile):
    """A model that may respond at any time: it uses other messages, so the end of a batch is not known."""

    def execute(  # type: ignore[override]
        self, requests: list[pb_utils.InferenceRequest]
    ) -> None:
        for request, response in zip(requests, super().execute(requests)):
            sender = request.get_response_sender()
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def ask_together(daemon: RunningDaemon, model: str, *values: float) -> list[float | str]:
    """Return for each value the response or the error."""

    def ask(value: float) -> float | str:
        try:
            array = np.full((1, 2), value, np.float32)
            return float(
                infer_once(daemon, model, {"x": array}, "grpc", client_timeout=100)["y"][0, 0]
            )
        except InferenceServerException as error:
            return str(error)

    with ThreadPoolExecutor(TOGETHER) as threads:
        return list(threads.map(ask, values))


def assert_guilty_alone(answers: list[float | str], *values: float, why: str) -> None:
    for answer, value in zip(answers, values):
        if value == GOOD:
            assert answer == 2 * GOOD, answers
        else:
            assert why in str(answer), answers


def test_only_the_poisoned_requests_of_a_batch_fail(
    served: RunningDaemon,
) -> None:
    """With one instance, more workers in a row crash than the restart limit allows, without another response."""
    model = served.client.register(infer, "fragile", X, Y, BATCHED, progress=False)
    for values in [(POISON,) * 4, (GOOD, POISON, POISON, GOOD)]:
        answers = ask_together(served, "fragile", *values)
        assert_guilty_alone(answers, *values, why="SIGSEGV")
    assert ask_together(served, "fragile", *[GOOD] * 4) == [2.0] * 4
    model.wait_ready()
    assert model.instances[0].restarts == (1 + 4) + (1 + 2)
    model.unregister()


@pytest.mark.parametrize("kind", [Fragile, Late])
def test_only_the_poisoned_request_to_a_python_model_fails(
    served: RunningDaemon, kind: type[Fragile]
) -> None:
    config = {
        "max_batch_size": TOGETHER,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 60_000_000},
    }
    model = served.client.register_model(kind, "python", config=config)
    for values in [(GOOD, POISON, GOOD, GOOD), (GOOD, GOOD, GOOD, GOOD)]:
        answers = ask_together(served, "python", *values)
        assert_guilty_alone(answers, *values, why="SIGSEGV")
    model.unregister()


def test_only_the_request_that_hangs_fails(served: RunningDaemon) -> None:
    """On a machine that stalls, others may time out, too, but not again and again."""
    model = served.client.register(
        infer, "slow", X, Y, BATCHED, execution_timeout_s=2.0, progress=False
    )
    values = (GOOD, GOOD, HANG, GOOD)

    def fails_alone() -> bool:
        answers = ask_together(served, "slow", *values)
        hanging = answers.pop(values.index(HANG))
        assert "2 s (execution_timeout_s)" in str(hanging), hanging
        return answers == [2.0] * 3

    eventually(fails_alone, "only the one that hangs fails", 200.0)
    eventually(lambda: ask_together(served, "slow", *[GOOD] * 4) == [2.0] * 4, "all are answered")
    model.unregister()


def test_with_on_crash_fail_the_whole_batch_fails(served: RunningDaemon) -> None:
    """The crashes do not count towards the restart limit either."""
    model = served.client.register(
        infer, "once", X, Y, BATCHED, on_crash="fail", execution_timeout_s=30.0, progress=False
    )
    for _ in range(7):
        answers = ask_together(served, "once", GOOD, POISON, GOOD, GOOD)
        assert all("SIGSEGV" in str(answer) for answer in answers)
    assert ask_together(served, "once", *[GOOD] * 4) == [2.0] * 4
    model.unregister()
