"""Outputs computed directly in the memory from which the response is sent, with the real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.models.inference import PROTOCOLS, Array, Inference
from support.real_daemon import RunningDaemon

import pytriton
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

X = Tensor(name="x", dtype=np.int32, shape=(2,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))
REQUESTS = 30
LARGE = 1_500_000  # float32: 6 MB


def _mapping(address: int) -> str:
    """Return the file of the mapping that contains an address (proc(5))."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            edges, *rest = line.split(maxsplit=5)
            start, end = (int(edge, 16) for edge in edges.split("-"))
            if start <= address < end:
                return rest[-1].strip()
    return ""


class _Filled:
    """Returns the requested outputs, the file that contains them, and the number of addresses used so far."""

    def __init__(self) -> None:
        self.addresses: set[int] = set()

    def __call__(self, requests: Any) -> Any:
        return [self._answer(*request["x"][0]) for request in requests]

    def _answer(self, value: int, columns: int) -> dict[str, Array]:
        y = pytriton.empty_output((1, int(columns)), np.float32)
        y[:] = value
        self.addresses.add(y.ctypes.data)
        facts = [[_mapping(y.ctypes.data), str(len(self.addresses))]]
        return {"y": y, "facts": np.array(facts, object)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_outputs_reuse_their_memory(daemon: RunningDaemon, protocol: str) -> None:
    model = daemon.client.register(
        _Filled,
        f"filled-{protocol}",
        inputs=[X],
        outputs=[Y, Tensor(name="facts", dtype=bytes, shape=(-1,))],
        config=ModelConfig(max_batch_size=2),
        progress=False,
    )
    connection = Inference(protocol, getattr(daemon, protocol))
    for number in range(20):
        x = np.array([[number, LARGE]], np.int32)
        answer = connection.infer(model.name, {"x": x})
        assert answer["y"].shape == (1, LARGE)
        assert (answer["y"] == number).all()
        path, places = answer["facts"][0]
        assert b"pytriton-outputs" in path
        assert places == b"1"
    connection.close()


@batch
def _rows(x: Array) -> dict[str, Array]:
    y = pytriton.empty_output((len(x), int(x[0, 1])), np.float32)
    y[:] = x[:, :1]
    return {"y": y}


def _all_right(address: str, protocol: str, model: str, first: int) -> int:
    connection = Inference(protocol, address)
    for number in range(REQUESTS):
        values = np.arange(1 + number % 3) + first + 10 * number
        x = np.stack([values, np.full_like(values, LARGE // 4)], axis=1).astype(np.int32)
        y = connection.infer(model, {"x": x})["y"]
        assert (y == values[:, None]).all()
    connection.close()
    return REQUESTS


@pytest.mark.parametrize("lanes", [1, 2])
def test_each_of_many_clients_gets_its_own_output(daemon: RunningDaemon, lanes: int) -> None:
    """With batches of several requests, on one lane or merged from two."""
    batcher = DynamicBatcher(max_queue_delay_microseconds=1000)
    model = daemon.client.register(
        _rows, f"rows-{lanes}", inputs=[X], outputs=[Y], max_inflight_batches=lanes,
        config=ModelConfig(max_batch_size=8, batcher=batcher), progress=False,
    )  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(
                _all_right, getattr(daemon, protocol), protocol, model.name, 10_000 * number
            )
            for number, protocol in enumerate(PROTOCOLS * 2)
        ]
        assert [each.result() for each in running] == [REQUESTS] * 4
