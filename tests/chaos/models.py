"""What is served: callables whose answer depends on every request, and which misbehave when a request says so."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from pytriton import Limits
from pytriton.daemon import DaemonClient
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

#: What the second number of a request asks for.
ANSWER, HANG, LEAK, DIE = range(4)
#: Added to every answer, a different number for each model: an answer of another one is seen.
SALTS = {
    "single": 1_000_003,
    "double": 2_000_003,
    "spared": 3_000_017,
    "timed": 4_000_037,
    "bounded": 5_000_011,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "single": {},
    "double": {"instances": 2},
    "spared": {"instances": 2, "spares": 1},
    "timed": {"execution_timeout_s": 3.0, "instances": 2},
    "bounded": {"limits": Limits(memory="160MiB", memory_hard="1GiB"), "max_batches": 20_000},
}
MAX_BATCH_SIZE = 8
_X = [Tensor(name="x", dtype=np.int64, shape=(2,))]
_Y = [Tensor(name="y", dtype=np.int64, shape=(1,))]


def right_answer(model: str, number: int) -> int:
    """Return what a model has to answer to a number."""
    return number * 3 + SALTS[model]


def register(client: DaemonClient, model: str, *, replace: bool = False) -> None:
    """Serve one of the models."""
    config = ModelConfig(
        max_batch_size=MAX_BATCH_SIZE, batcher=DynamicBatcher(max_queue_delay_microseconds=500)
    )
    client.register(
        _callable(SALTS[model]),
        model,
        _X,
        _Y,
        config,
        progress=False,
        replace=replace,
        **_OPTIONS[model],
    )


def _callable(salt: int) -> Any:
    kept: list[Any] = []

    def infer(requests: Any) -> Any:
        for request in requests:
            for what in request["x"][:, 1]:
                _misbehave(what)
        return [{"y": request["x"][:, :1] * 3 + salt} for request in requests]

    def _misbehave(what: int) -> None:
        import os
        import signal

        if what == HANG:
            threading.Event().wait()
        elif what == LEAK:
            kept.append(np.ones(80 << 20, np.uint8))
        elif what == DIE:
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGSEGV)

    return infer
