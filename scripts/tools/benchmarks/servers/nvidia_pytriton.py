"""Serves the model with nvidia-pytriton as documented, in its own environment."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import work


def emit(event: str, **facts: Any) -> None:
    """Print an event with its time, for footprint.py."""
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def bind(triton: Any, model: dict[str, Any], name: str) -> None:
    """Bind the model. Several instances are several callables."""
    from pytriton.decorators import batch
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

    dtype: Any = bytes if model["dtype"] == "BYTES" else np.float32
    if model["max_batch_size"]:
        config = ModelConfig(max_batch_size=model["max_batch_size"], batcher=DynamicBatcher())
    else:
        config = ModelConfig(batching=False, decoupled=model["decoupled"])
    copies = [work.callable_of(model, batch) for _ in range(model["instances"])]
    triton.bind(
        model_name=name,
        infer_func=copies if len(copies) > 1 else copies[0],
        inputs=[Tensor(name="x", dtype=dtype, shape=(-1,))],
        outputs=[Tensor(name="y", dtype=dtype, shape=(-1,))],
        config=config,
    )


def main() -> int:
    """Serve the model until the process is stopped, under several names if the specification has `copies`."""
    emit("begun", pid=os.getpid())
    from pytriton.triton import Triton, TritonConfig

    spec = work.spec()
    config = TritonConfig(
        http_address="127.0.0.1", http_port=spec["http_port"],
        grpc_address="127.0.0.1", grpc_port=spec["grpc_port"],
        metrics_address="127.0.0.1", metrics_port=spec["metrics_port"],
    )  # fmt: skip
    with Triton(config=config, workspace=f"{spec['folder']}/workspace") as triton:
        emit("ready")
        for index in range(spec.get("copies", 1)):
            bind(triton, spec["model"], f"{spec['model']['name']}{index or ''}")
        emit("registered")
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        triton.run()
        ended.wait()  # leaving the block shuts tritonserver down, which frees its shared memory
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
