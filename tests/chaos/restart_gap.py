"""How long a model does not respond after its worker is killed, with and without a standby worker.

    PYTHONPATH=tests python -m chaos.restart_gap

One client sends requests without pause; the gap is the longest time between two responses. Loading the model takes
`_LOAD_S`, like loading real weights.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import psutil
from support.models.inference import Inference
from support.real_daemon import AS_SHIPPED, RunningDaemon

from pytriton.model_config import ModelConfig, Tensor

_LOAD_S = 3.0
_ROUNDS = 5
_X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_Y = [Tensor(name="y", dtype=np.float32, shape=(1,))]
_ONE = np.ones((1, 1), np.float32)


def _factory() -> Any:
    import time

    time.sleep(_LOAD_S)
    return lambda requests: [{"y": request["x"]} for request in requests]


def _gap_s(daemon: RunningDaemon, connection: Inference) -> float:
    model = daemon.client.model("m")
    model.wait_ready()
    (pid,) = (one.pid for one in model.instances if one.lanes)
    longest = 0.0
    begun = last = time.monotonic()
    killed = False
    while time.monotonic() - begun < _LOAD_S + 1.5:
        if not killed and time.monotonic() - begun > 0.5:
            psutil.Process(pid).kill()
            killed = True
        connection.infer("m", {"x": _ONE})
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


def main() -> None:
    """Print the gaps."""
    for standby_workers in (0, 1):
        with RunningDaemon.start(**AS_SHIPPED) as daemon:
            daemon.client.register(
                _factory, "m", _X, _Y, ModelConfig(max_batch_size=8), factory=True, standby_workers=standby_workers,
                progress=False,
            )  # fmt: skip
            connection = Inference("grpc", daemon.grpc)
            gaps = sorted(_gap_s(daemon, connection) for _ in range(_ROUNDS))
            connection.close()
        print(
            f"standby_workers={standby_workers}: longest gap in ms, {_ROUNDS} kills: median {statistics.median(gaps) * 1e3:.0f}, "
            f"all {', '.join(f'{gap * 1e3:.0f}' for gap in gaps)}"
        )


if __name__ == "__main__":
    main()
