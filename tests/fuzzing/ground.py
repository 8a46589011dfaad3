"""The real daemon that hostile messages are aimed at, with a model whose answers show that all is well."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from support.inference import Array, Inference
from support.running import RunningDaemon

from fuzzing.target import Finding
from pytriton.daemon import Model
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

MODEL = "fuzzed"
#: What the allocators of a process may keep of a run: not a leak, which grows with the cases.
GROWTH_BYTES = 64 << 20
_SETTLE_S = 20.0


@batch
def _increment(x: Array) -> dict[str, Array]:
    return {"y": x + 1}


class Ground:
    """A daemon with one model of one worker."""

    def __init__(self, daemon: RunningDaemon, model: Model) -> None:
        self.daemon = daemon
        self.control_socket = Path(daemon.config.runtime_dir) / "control.sock"
        info = model.info()
        self.worker_pid = info.instances[0].pid
        self.registration = info.config["parameters"]["pytriton_registration"]["string_value"]
        (lane,) = (Path(daemon.config.runtime_dir) / "l").iterdir()
        self.lane_path = str(lane)
        self.worker = lane.stem
        self._inference = Inference("grpc", daemon.grpc)
        self._asked = 0
        self._before: dict[str, int] = {}

    def check(self) -> None:
        """See that the daemon answers, its model too, with the same worker, and nothing has grown.

        Raises:
            Finding: something is not as it was.
        """
        if self.daemon.process.poll() is not None:
            raise Finding(f"the daemon ended with {self.daemon.process.returncode}")
        status = self.daemon.client.status()
        (model,) = status.models
        if (model.name, model.state, model.instances[0].pid) != (MODEL, "ready", self.worker_pid):
            raise Finding(f"the model is not as it was: {model}")
        self._asked += 1
        x = np.full((1, 3), self._asked, np.float32)
        answer = self._inference.infer(MODEL, {"x": x}, client_timeout=30.0)["y"]
        if answer.tolist() != (x + 1).tolist():
            raise Finding(f"the model answered {answer} to {x}")
        self._check_footprint()

    def close(self) -> None:
        """Close the connection to the model."""
        self._inference.close()

    def _check_footprint(self) -> None:
        if not self._before:  # the first block warms everything up
            self._before = self._footprint()
            return
        deadline = time.monotonic() + _SETTLE_S
        while True:
            now = self._footprint()
            grown = {
                what: f"{before} -> {now[what]}"
                for what, before in self._before.items()
                if now[what] > before + (GROWTH_BYTES if what.endswith("memory") else 0)
            }
            if not grown:
                return
            if time.monotonic() > deadline:
                raise Finding(f"there is more than before: {grown}")
            time.sleep(0.1)  # no event tells that another process has closed a descriptor

    def _footprint(self) -> dict[str, int]:
        found = {}
        for name, pid in (("dispatcher", self.daemon.process.pid), ("worker", self.worker_pid)):
            process = psutil.Process(pid)
            found[f"{name} descriptors"] = process.num_fds()
            found[f"{name} threads"] = process.num_threads()
            found[f"{name} memory"] = process.memory_info().rss
        found["processes"] = len(self.daemon.children())
        found["lane sockets"] = len(os.listdir(Path(self.daemon.config.runtime_dir) / "l"))
        return found


@contextmanager
def standing_ground() -> Iterator[Ground]:
    """Yield a running daemon with its model; at the end both must go in order.

    Raises:
        Finding: the model could not be unregistered, or the daemon did not stop in order.
    """
    with RunningDaemon.start() as daemon:
        model = daemon.client.register(
            _increment,
            MODEL,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=8),
            progress=False,
        )
        ground = Ground(daemon, model)
        try:
            yield ground
            model.unregister()
            code = daemon.stop()
            if code:
                raise Finding(f"the daemon ended with {code} when it was told to stop")
        finally:
            ground.close()
