"""Starts a daemon of this checkout, registers the model, and waits until the daemon exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import models_work
import work

from pytriton.daemon import DaemonClient, connect
from pytriton.decorators import batch
from pytriton.exceptions import DaemonNotRunningError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

HERE = str(Path(__file__).parent)


def config_of(model: dict[str, Any]) -> ModelConfig:
    """Return the model's configuration: dynamic batching without a delay, or no batch axis."""
    if model["max_batch_size"]:
        return ModelConfig(max_batch_size=model["max_batch_size"], batcher=DynamicBatcher())
    return ModelConfig(batching=False, decoupled=model["decoupled"])


def register(client: DaemonClient, spec: dict[str, Any]) -> None:
    """Register the model: typed, real, behind the OpenAI API, a folder, or with tensors, under several names if asked to."""
    model = spec["model"]
    name, kind = model["name"], model["work"]
    options: dict[str, Any] = {"sys_path": [HERE], "progress": False}
    if kind in ("typed", "model"):
        target = getattr(work, name) if kind == "typed" else models_work.MODELS[name]
        client.register(target, name, python=os.environ.get("BENCH_PYTHON"), **options)
    elif kind == "openai":
        api = "embeddings" if name == "embed" else "chat"
        client.register(openai_callable(name), name, openai=api, **options)
    elif model["folder"]:
        client.register_model(model["folder"], progress=False)
    else:
        dtype: Any = bytes if model["dtype"] == "BYTES" else "float32"
        for index in range(spec.get("copies", 1)):
            client.register(
                work.callable_of(model, batch),
                f"{name}{index or ''}",
                [Tensor(name="x", dtype=dtype, shape=(-1,))],
                [Tensor(name="y", dtype=dtype, shape=(-1,))],
                config_of(model),
                instances=model["instances"],
                **options,
            )


def openai_callable(name: str) -> Any:
    """Return the callable behind the OpenAI API as a user would write it."""
    if name == "embed":
        return work.embed

    async def talk(request: Any) -> AsyncIterator[str]:
        async for token in work.openai_tokens(name):
            yield token

    return talk


def launch(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a daemon on the ports of `spec`."""
    command = [sys.executable, "-m", "pytriton._cli", "start", "--runtime-dir", runtime_dir(spec)]
    command += ["--ephemeral", "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
    command += ["--metrics-address", "127.0.0.1"]
    if spec["frontend"]:
        command += ["--frontend", spec["frontend"]]
    for name in ("http", "grpc"):
        if spec.get("unix"):
            command += [f"--{name}-unix-socket", str(Path(spec["folder"]) / f"{name}.sock")]
    serves_openai = spec["model"]["work"] == "openai"
    for name in ("http", "grpc", "metrics", *(["openai"] if serves_openai else [])):
        command += [f"--{name}-port", str(spec[f"{name}_port"])]
    return subprocess.Popen(command, stdout=sys.stderr)


def runtime_dir(spec: dict[str, Any]) -> str:
    """Return the daemon's runtime directory."""
    return str(Path(spec["folder"]) / "run")


def wait_ready(spec: dict[str, Any], process: subprocess.Popen[bytes]) -> DaemonClient:
    """Wait until the daemon is ready. Return a client of it."""
    while process.poll() is None:
        try:
            client = connect(runtime_dir=runtime_dir(spec))
        except DaemonNotRunningError:
            time.sleep(0.01)  # its socket does not exist yet, and no event announces it
            continue
        if client.status().state == "ready":
            return client
        client.close()
        time.sleep(0.01)
    raise SystemExit(f"the daemon exited with {process.returncode}")


def emit(event: str, **facts: Any) -> None:
    """Print an event with its time, for footprint.py."""
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def main() -> int:
    """Start a daemon, register, and wait until the daemon exits or the benchmark stops this process."""
    emit("begun")
    spec = work.spec()
    # SIGTERM is how the benchmark stops it; as an exception it passes through the `finally` below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    process = launch(spec)
    try:
        client = wait_ready(spec, process)
        emit("ready", pid=process.pid)
        register(client, spec)
        emit("registered")
        client.close()
        return process.wait()
    finally:  # killed, the daemon would leave memory of tritonserver behind
        process.terminate()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
