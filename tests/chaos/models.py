"""The served callables: their responses depend on every request, and they misbehave on request."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from pytriton import Autoscale, Limits
from pytriton.daemon import DaemonClient
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

#: What the second number of a request asks for.
ANSWER, HANG, LEAK, DIE, HUGE = range(5)
#: Added to every answer, a different number for each model: an answer of another one is seen.
SALTS = {
    "single": 1_000_003,
    "double": 2_000_003,
    "spared": 3_000_017,
    "timed": 4_000_037,
    "bounded": 5_000_011,
    "batched": 6_000_011,
    "merged": 7_000_003,
    "slow": 8_000_009,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "single": {},
    "double": {"instances": 2},
    "spared": {"instances": 2, "standby_workers": 1},
    "timed": {"execution_timeout_s": 3.0, "instances": 2},
    "bounded": {
        "limits": Limits(recycle_above="160MiB", memory_limit="1GiB"),
        "max_batches": 20_000,
    },
    "batched": {},
    "merged": {"max_inflight_batches": 2},
    "slow": {"factory": True},
}
#: With `--elastic` there are these, too: they follow their load, are suspended, and have not enough memory for all of them.
ELASTIC = {**{f"sleepy{number}": 9_000_011 + number for number in range(4)}, "scaled": 9_100_033}
_SLEEPY: dict[str, Any] = {
    "instances": Autoscale(min=0, max=2, up_after=0.5, down_after=2.0, idle_after=1.0),
    "memory_request": "100MiB",
}
_ELASTIC_OPTIONS: dict[str, dict[str, Any]] = {
    **{name: _SLEEPY for name in ELASTIC},
    "scaled": {
        "instances": Autoscale(min=1, max=3, up_after=0.5, down_after=2.0),
        "memory_request": "50MiB",
    },
}
#: Of the daemon then: the others take 12 workers, one of which leaks, and a replacement now and then.
ELASTIC_SETTINGS = {"memory_budget": "1000MiB", "prestarted_workers": 2}
#: Workers that such models have at most, with those that are prestarted.
ELASTIC_WORKERS = 4 * 2 + 3 + 2
MAX_BATCH_SIZE = 8
#: What requests wait for others in Triton's queue, so that those that are sent together are one batch.
_DELAYS_US = {"batched": 50_000}
#: What a worker of the slow model takes to load.
_LOAD_S = 0.5
#: Elements of an output that no machine of ours has the memory for: 200 GB.
_HUGE = 25_000_000_000
INPUTS = [Tensor(name="x", dtype=np.int64, shape=(2,))]
OUTPUTS = [Tensor(name="y", dtype=np.int64, shape=(-1,))]


def add_elastic() -> None:
    """Also serve the elastic models."""
    SALTS.update(ELASTIC)
    _OPTIONS.update(_ELASTIC_OPTIONS)


def is_elastic(model: str) -> bool:
    """Return whether a model may have any number of workers at any moment."""
    return model in ELASTIC


def right_answer(model: str, number: int) -> int:
    """Return the correct response of a model to a number."""
    return number * 3 + SALTS[model]


def lanes(model: str) -> int:
    """Return the number of proxies of each worker of a model."""
    return int(_OPTIONS[model].get("max_inflight_batches", 1))


def register(client: DaemonClient, model: str, *, replace: bool = False) -> None:
    """Serve one of the models."""
    delay_us = _DELAYS_US.get(model, 500)
    config = ModelConfig(
        max_batch_size=MAX_BATCH_SIZE, batcher=DynamicBatcher(max_queue_delay_microseconds=delay_us)
    )
    infer = callable_of(model)
    client.register(
        _slowly(infer) if model == "slow" else infer,
        model,
        INPUTS,
        OUTPUTS,
        config,
        progress=False,
        replace=replace,
        **_OPTIONS[model],
    )


def register_plain(client: DaemonClient, model: str, *, instances: int) -> None:
    """Serve a model that no client calls."""

    def infer(requests: Any) -> Any:
        return [{"y": request["x"]} for request in requests]

    config = ModelConfig(max_batch_size=MAX_BATCH_SIZE)
    client.register(infer, model, INPUTS, OUTPUTS, config, instances=instances, progress=False)


def register_broken(client: DaemonClient, model: str, *, warms_up: bool) -> None:
    """Register, or replace a model with, a model that cannot be loaded or whose warm-up raises."""

    def infer(requests: Any = None) -> Any:
        raise ValueError("no weights")

    sample = {"data_type": "TYPE_INT64", "dims": [2], "zero_data": True}
    warmup = [{"name": "first", "batch_size": 1, "inputs": {"x": sample}}]
    config = ModelConfig(
        max_batch_size=MAX_BATCH_SIZE, extra={"model_warmup": warmup} if warms_up else {}
    )
    client.register(
        infer,
        model,
        INPUTS,
        OUTPUTS,
        config,
        factory=not warms_up,  # which is called with nothing
        replace=True,
        progress=False,
    )


def _slowly(infer: Any) -> Any:
    def factory() -> Any:
        time.sleep(_LOAD_S)
        return infer

    return factory


def callable_of(model: str) -> Any:
    """Return the callable of one of the models."""
    salt = SALTS[model]
    kept: list[Any] = []

    def infer(requests: Any) -> Any:
        for request in requests:
            for what in request["x"][:, 1]:
                _misbehave(what)
        return [{"y": _answer(request["x"])} for request in requests]

    def _answer(x: Any) -> Any:
        import tempfile

        if HUGE not in x[:, 1]:
            return x[:, :1] * 3 + salt
        with tempfile.TemporaryFile() as file:  # of no size on the disk: nothing is written to it
            return np.memmap(file, np.int64, "w+", shape=(len(x), _HUGE))

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
