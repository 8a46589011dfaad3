"""Models that call other models: cycles are refused, other chains are answered."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.calling_models import (
    STREAMS,
    UNBATCHED,
    Ask,
    Serve,
)
from support.models.inference import infer_once
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon
from tritonclient.utils import InferenceServerException

import pytriton


class CountsDown:
    """Calls `model`, which calls this model back, until the number is 0."""

    def __init__(self, model: str) -> None:
        self._model = model

    def __call__(self, requests: Any) -> Any:
        x = requests[0]["x"]
        if x.item() <= 0:
            return [{"y": np.zeros(1, np.float32)}]
        return [{"y": 1 + pytriton.infer(self._model, x=x - 1)["y"]}]


def test_a_cycle_is_refused_and_named(serve: Serve, ask: Ask) -> None:
    serve(CountsDown("itself"), "itself", config=UNBATCHED)
    serve(CountsDown("pong"), "ping", config=UNBATCHED)
    serve(CountsDown("ping"), "pong", config=UNBATCHED)
    x = {"x": np.array([5], np.float32)}
    with pytest.raises(
        InferenceServerException, match=r"itself → itself.*1 worker of model itself"
    ):
        ask("itself", x)
    with pytest.raises(InferenceServerException, match="ping → pong → ping"):
        ask("ping", x)
    for model in ("itself", "ping", "pong"):  # nothing is stuck
        assert ask(model, {"x": np.zeros(1, np.float32)})["y"].tolist() == [0]


class Meets:
    """Waits until the other model has a request, too, and then calls it."""

    def __init__(self, name: str, other: str, folder: str) -> None:
        self._name, self._other, self._folder = name, other, folder

    def __call__(self, requests: Any) -> Any:
        x = requests[0]["x"]
        if x.item() > 0:
            open(f"{self._folder}/{self._name}", "w").close()
            while not os.path.exists(f"{self._folder}/{self._other}"):
                time.sleep(0.002)
            return [{"y": 1 + pytriton.infer(self._other, x=x - 1)["y"]}]
        return [{"y": np.zeros(1, np.float32)}]


def test_two_requests_that_wait_for_each_other_do_not_deadlock(
    daemon: RunningDaemon, serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    """Neither chain is a cycle: one request occupies `left` and calls `right`, the other one does the opposite."""
    names = ("left", "right")
    for name, other in (names, names[::-1]):
        serve(Meets(name, other, str(tmp_path)), name, config=UNBATCHED)

    def one(name: str) -> str:
        try:
            return str(infer_once(daemon, name, {"x": np.ones(1, np.float32)}, "grpc")["y"].item())
        except InferenceServerException as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        said = sorted(threads.map(one, names), key=len)
    assert said[0] == "1.0"  # that it was called by the other was undone in time
    assert "wait for each other in a cycle" in said[1]
    for name in names:
        assert ask(name, {"x": np.zeros(1, np.float32)})["y"].tolist() == [0]


@pytest.mark.parametrize("lanes", [1, 2])
def test_recursion_goes_as_deep_as_there_are_instances(serve: Serve, ask: Ask, lanes: int) -> None:
    name = f"deep{lanes}"
    serve(CountsDown(name), name, config=UNBATCHED, instances=3, max_inflight_batches=lanes)
    for _ in range(3):
        for depth in range(3):
            x = {"x": np.array([depth], np.float32)}
            assert ask(name, x)["y"].tolist() == [depth]
    with pytest.raises(InferenceServerException, match="3 workers of model deep"):
        ask(name, {"x": np.array([3], np.float32)})


async def _counts_down_async(requests: Any) -> Any:
    x = requests[0]["x"]
    if x.item() > 0:
        (answer,) = [one async for one in pytriton.async_stream("descends", x=x - 1)]
        yield [{"y": answer["y"] + 1}]
    else:
        yield [{"y": np.zeros(1, np.float32)}]


def test_recursion_of_an_asynchronous_model_ends_at_the_depth_limit(
    daemon: RunningDaemon, serve: Serve
) -> None:
    """A worker of an asynchronous model serves other batches while one of them waits."""
    serve(_counts_down_async, "descends", config=STREAMS)
    with Streaming(daemon.grpc, "descends", {"x": np.array([15], np.float32)}) as stream:
        assert [answer["y"].item() for answer in stream] == [15]
    with (
        pytest.raises(InferenceServerException, match="nested more than 16 deep"),
        Streaming(daemon.grpc, "descends", {"x": np.array([50], np.float32)}) as stream,
    ):
        list(stream)
