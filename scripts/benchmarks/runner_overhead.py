"""What `runner.model.run(x)` costs beside the same request with bare tritonclient.

    PYTHONPATH=scripts python -m benchmarks.runner_overhead

Both ask one model (an identity), in turns, so that what else the machine does meets both.
Prints the median of each in microseconds, and the medians' difference.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from pytriton.model_config import ModelConfig, Tensor
from pytriton.runner import Runner

ROUNDS, PER_ROUND = 40, 50
SIZES = (16, 150_000)


def identity(requests: Any) -> Any:
    """Return what came."""
    return [{"y": request["x"]} for request in requests]


def seconds(call: Callable[[], Any]) -> float:
    """Return how long one of `PER_ROUND` calls took."""
    begun = time.perf_counter()
    for _ in range(PER_ROUND):
        call()
    return (time.perf_counter() - begun) / PER_ROUND


def compare(protocol: str, runner: Runner, array: Any) -> tuple[float, float]:
    """Return the medians of bare tritonclient and of the runner, in microseconds."""
    module = tritonclient.grpc if protocol == "grpc" else tritonclient.http
    client = module.InferenceServerClient(runner.link().url.without_scheme)

    def bare() -> Any:
        tensor = module.InferInput("x", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return client.infer("identity", [tensor]).as_numpy("y")

    def by_runner() -> Any:
        return runner.identity.run(array).as_numpy("y")

    for call in (bare, by_runner):
        seconds(call)
    rounds = [(seconds(bare), seconds(by_runner)) for _ in range(ROUNDS)]
    client.close()
    medians = [1e6 * statistics.median(column) for column in zip(*rounds)]
    return medians[0], medians[1]


def main() -> None:
    """Measure both protocols and sizes, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'protocol':<10}{'floats':>8}{'tritonclient':>15}{'runner':>10}{'more':>8}  (µs)")
        for protocol in ("grpc", "http"):
            with Runner("bench", Path(folder), protocol) as runner:
                tensors = [Tensor((-1,), np.float32, name) for name in ("x", "y")]
                config = ModelConfig(max_batch_size=8)
                client = runner.link().client
                client.register(identity, "identity", tensors[:1], tensors[1:], config)
                for size in SIZES:
                    bare, own = compare(protocol, runner, np.ones((1, size), np.float32))
                    more = own - bare
                    print(f"{protocol:<10}{size:>8}{bare:>15.0f}{own:>10.0f}{more:>8.0f}")


if __name__ == "__main__":
    main()
