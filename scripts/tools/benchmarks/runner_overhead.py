"""Measures what `runner.model.run(x)` costs, compared with the same request by tritonclient.

Both call an identity of the same daemon in turn, so other load on the machine affects both; each is first every other
time. Medians of single calls are not affected by short phases without a CPU. The responses are compared first.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Recorder
from benchmarks.workloads import IMAGE, SMALL

#: Number of elements -> pairs of calls; a quick run makes a quarter of them.
_CALLS = {SMALL: 2000, IMAGE: 400}
_QUICK = 4
_WARM_UP = 20


def measure(quick: bool, recorder: Recorder) -> None:
    """Record the overhead for each protocol and size.

    Raises:
        AssertionError: the two answers are not the same.
    """
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.runner import Runner

    tensors = [Tensor((-1,), np.float32, name) for name in ("x", "y")]
    for protocol in ("grpc", "http"):
        with (
            tempfile.TemporaryDirectory() as folder,
            Runner("bench", Path(folder), protocol) as runner,
        ):
            client = runner.link().client
            config = ModelConfig(max_batch_size=8)
            client.register(_identity, "identity", tensors[:1], tensors[1:], config, progress=False)
            for size, calls in _CALLS.items():
                array = np.arange(size, dtype=np.float32).reshape(1, -1)
                bare_us, more_us = _compare(
                    protocol, runner, array, calls // _QUICK if quick else calls
                )
                case = f"{protocol}, {size:,} float32"
                recorder.figure(f"a call by tritonclient, {case}", "ours", bare_us, "µs")
                recorder.figure(f"in addition by the runner, {case}", "ours", more_us, "µs")


def _identity(requests: Any) -> Any:
    return [{"y": request["x"]} for request in requests]


def _compare(protocol: str, runner: Any, array: Any, calls: int) -> tuple[float, float]:
    """Return the median duration of a call by tritonclient, and the median of the differences, in microseconds."""
    import tritonclient.grpc
    import tritonclient.http

    module: Any = tritonclient.grpc if protocol == "grpc" else tritonclient.http
    client = module.InferenceServerClient(runner.link().url.without_scheme)

    def bare() -> Any:
        tensor = module.InferInput("x", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return client.infer("identity", [tensor]).as_numpy("y")

    def by_runner() -> Any:
        return runner.identity.run(array).as_numpy("y")

    for call in (bare, by_runner):
        np.testing.assert_array_equal(call(), array)
        for _ in range(_WARM_UP):
            call()
    pairs = [_pair(bare, by_runner, number % 2 == 1) for number in range(calls)]
    client.close()
    bare_us = statistics.median(other for other, _ in pairs)
    return bare_us, statistics.median(own - other for other, own in pairs)


def _pair(bare: Callable[[], Any], own: Callable[[], Any], swapped: bool) -> tuple[float, float]:
    """Time both calls. Return the time of tritonclient first."""
    if swapped:
        second, first = _us(own), _us(bare)
        return first, second
    return _us(bare), _us(own)


def _us(call: Callable[[], Any]) -> float:
    """Return how long a call took, in microseconds."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e6
