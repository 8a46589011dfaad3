"""Starts a daemon of this checkout, registers the model, and waits until the daemon exits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import work

from pytriton.daemon import DaemonClient, connect
from pytriton.decorators import batch
from pytriton.exceptions import DaemonNotRunningError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

HERE = str(Path(__file__).parent)


def callable_of(model: dict[str, Any]) -> Any:
    """Return the callable as a user would write it."""
    sys.path.insert(0, HERE)
    compute = work.function(model) if not model["decoupled"] else None

    if model["decoupled"]:

        def stream(requests: Any) -> Iterator[Any]:
            for token in work.tokens(model):
                yield [{"y": token} for _ in requests]

        return stream
    assert compute is not None
    if model["max_batch_size"]:

        @batch
        def batched(x: Any) -> dict[str, Any]:
            return {"y": compute(x)}

        return batched

    def single(requests: Any) -> list[dict[str, Any]]:
        return [{"y": compute(request["x"])} for request in requests]

    return single


def config_of(model: dict[str, Any]) -> ModelConfig:
    """Return the model's configuration: dynamic batching without a delay, or no batch axis."""
    if model["max_batch_size"]:
        return ModelConfig(max_batch_size=model["max_batch_size"], batcher=DynamicBatcher())
    return ModelConfig(batching=False, decoupled=model["decoupled"])


def uncounted(model: dict[str, Any]) -> Any:
    """Return a factory of the callable that turns off the counters of its worker."""

    def make() -> Any:
        import reduced_counters

        reduced_counters.install()
        return callable_of(model)

    return make


def register(
    client: DaemonClient, model: dict[str, Any], name: str | None = None, recording: str = ""
) -> None:
    """Register a model, by default under its own name. For `recording`, see systems/base.py."""
    if model["folder"]:
        client.register_model(model["folder"], name, progress=False)
        return
    dtype: Any = bytes if model["dtype"] == "BYTES" else "float32"
    client.register(
        uncounted(model) if recording == "off" else callable_of(model),
        factory=recording == "off",
        access_log=recording == "all",
        model_name=name or model["name"],
        inputs=[Tensor(name="x", dtype=dtype, shape=(-1,))],
        outputs=[Tensor(name="y", dtype=dtype, shape=(-1,))],
        config=config_of(model),
        instances=model["instances"],
        sys_path=[HERE],
        progress=False,
    )


def launch(spec: dict[str, Any], openai: bool = False) -> subprocess.Popen[bytes]:
    """Start a daemon on the ports of `spec`; with `openai`, serve the OpenAI API, too."""
    command = [sys.executable, "-m", "pytriton._cli", "start", "--runtime-dir", runtime_dir(spec)]
    command += ["--ephemeral", "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
    command += ["--metrics-address", "127.0.0.1"]
    if spec["recording"] == "all":
        command += ["--management-address", "127.0.0.1:0"]
    if spec["frontend"]:
        command += ["--frontend", spec["frontend"]]
    for name in ("http", "grpc"):
        if spec.get("unix"):
            command += [f"--{name}-unix", str(Path(spec["folder"]) / f"{name}.sock")]
    for name in ("http", "grpc", "metrics", *(["openai"] if openai else [])):
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


def run(register: Callable[[DaemonClient, dict[str, Any]], None], openai: bool = False) -> int:
    """Start a daemon, register, and wait until the daemon exits or the benchmark stops this process."""
    emit("begun")
    spec = work.spec()
    # SIGTERM is how the benchmark stops it; as an exception it passes through the `finally` below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    process = launch(spec, openai)
    try:
        client = wait_ready(spec, process)
        emit("ready", pid=process.pid)
        register(client, spec)
        emit("registered")
        if spec["recording"] == "all":
            url = f"{client.status().management_urls[0]}/metrics"
            threading.Thread(target=scrape, args=(url,), daemon=True).start()
        client.close()
        return process.wait()
    finally:  # killed, the daemon would leave memory of tritonserver behind
        process.terminate()
        process.wait()


def register_copies(client: DaemonClient, spec: dict[str, Any]) -> None:
    """Register the model, under several names if the specification has `copies`."""
    for index in range(spec.get("copies", 1)):
        name = f"{spec['model']['name']}{index or ''}"
        register(client, spec["model"], name, spec["recording"])


def scrape(url: str) -> None:
    """Scrape every second, as Prometheus can. Runs until the process exits."""
    while True:
        with urllib.request.urlopen(url, timeout=10) as answer:
            answer.read()
        time.sleep(1)


if __name__ == "__main__":
    raise SystemExit(run(register_copies))
