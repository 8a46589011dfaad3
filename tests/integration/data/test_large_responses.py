"""Large responses over HTTP: tritonserver allocates memory for each, which should reuse pages that it has."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import numpy as np
import psutil
from support.daemon_pool import DaemonPool
from support.models.inference import Inference
from support.real_daemon import eventually

from pytriton.model_config import Tensor

_SIZE = 1_500_000  #: float32: 6 MB, 1,465 pages
_CLIENTS, _REQUESTS = 4, 10


def test_warm_responses_touch_no_new_memory(daemon_pool: DaemonPool) -> None:
    answer = np.ones((1, _SIZE), np.float32)

    def infer(requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        return [{"y": answer} for _ in requests]

    with daemon_pool.lend(proxy="native") as daemon:
        daemon.client.register(
            infer,
            "large",
            [Tensor(name="x", dtype=np.float32, shape=(1,))],
            [Tensor(name="y", dtype=np.float32, shape=(_SIZE,))],
            progress=False,
        )
        server = psutil.Process(daemon.client.status().server.pid)
        with ThreadPoolExecutor(_CLIENTS) as clients:
            ask = partial(_ask, daemon.http)
            assert set(clients.map(ask, [_REQUESTS] * _CLIENTS)) == {_SIZE}
            eventually(partial(_few_faults, server, clients, ask), "no memory is touched anew")


def _few_faults(
    server: psutil.Process, clients: ThreadPoolExecutor, ask: Callable[[int], float]
) -> bool:
    """Return whether one more round touches only few new pages.

    A round with more responses in flight than any before allocates their memory for the first time; then another round
    follows.
    """
    before = _faults(server)
    list(clients.map(ask, [_REQUESTS] * _CLIENTS))
    return (_faults(server) - before) / (_CLIENTS * _REQUESTS) < 100


def _ask(address: str, times: int) -> float:
    """Send requests one after the other; return the sum of the last response."""
    with closing(Inference("http", address)) as inference:
        for _ in range(times):
            answer = inference.infer("large", {"x": np.zeros((1, 1), np.float32)})["y"]
    return float(answer.sum())


def _faults(process: psutil.Process) -> int:
    """Return the number of page faults of a process."""
    with open(f"/proc/{process.pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[7])
