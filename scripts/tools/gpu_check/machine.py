"""What all rows use: the facts about the machine, a daemon of their own, and requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_check import cuda
from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import PyTritonDaemonError

_T = TypeVar("_T")
_START_S = 40.0
_POLL_S = 0.05
MIB = 1 << 20


class RowFailed(Exception):
    """A row has found that something is wrong; the text says what."""


def check(condition: object, text: str) -> None:
    """Raise RowFailed unless the condition holds."""
    if not condition:
        raise RowFailed(text)


def wait_for(look: Callable[[], _T], what: str | Callable[[], str], timeout_s: float = 20.0) -> _T:
    """Return the first true value of `look`.

    Raises:
        RowFailed: there was none in time.
    """
    began = time.monotonic()
    while not (value := look()):
        if time.monotonic() - began > timeout_s:
            raise RowFailed(
                f"not within {timeout_s:.0f} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(_POLL_S)
    return value


@dataclass(frozen=True)
class Machine:
    """The facts about this machine, and a folder for the files of a row.

    Attributes:
        has_gpu: whether there is a GPU
        torch_device: the device of torch models
    """

    facts: Mapping[str, Any]
    folder: Path

    @classmethod
    def read(cls, facts: Path, folder: Path) -> Machine:
        """Read the facts from the file that gpu_check.facts has written."""
        return cls(json.loads(facts.read_text()), folder)

    @property
    def has_gpu(self) -> bool:
        """Whether CUDA's driver finds a GPU."""
        return "error" not in self.facts["gpu"]

    @property
    def torch_device(self) -> str:
        """Where torch models run."""
        return "cuda" if "error" not in self.facts["torch_gpu"] and self.has_gpu else "cpu"

    @property
    def device(self) -> Any:
        """The GPU's name in `devices=`; "cpu" if there is none."""
        return self.facts["gpu"]["device"] if self.has_gpu else "cpu"

    @property
    def gpu_unit(self) -> int:
        """A size in bytes of which a dozen fits on the GPU."""
        return int(min(1 << 30, self.facts["gpu"]["total"] // 24))

    @contextmanager
    def daemon(self, **settings: object) -> Iterator[Daemon]:
        """Start a daemon on free ports, which ends with this block, or with this process."""
        runtime = self.folder / "run"
        runtime.mkdir(mode=0o700)
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
        chosen = {
            **ports,
            "management_address": "127.0.0.1:0",
            "frontend": "native",
            "ephemeral": "true",
            **settings,
        }
        env = {
            **os.environ,
            **{f"PYTRITON_DAEMON_{name.upper()}": str(value) for name, value in chosen.items()},
            "PYTRITON_DAEMON_RUNTIME_DIR": str(runtime),
            "PYTRITON_DAEMON_OWNER": str(os.getpid()),
        }
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytriton._cli", "start"], env=env, stdin=subprocess.DEVNULL
        )
        client = None
        try:
            client = _connect(process, runtime)
            yield Daemon(client, process, time.monotonic() - began)
        finally:
            if client is not None:
                client.close()
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _connect(process: subprocess.Popen[bytes], runtime: Path) -> DaemonClient:
    def ready() -> DaemonClient | None:
        check(
            process.poll() is None,
            f"the daemon exited with {process.poll()} while it started (see the log)",
        )
        try:
            client = connect(runtime_dir=runtime, timeout_s=30.0)
        except PyTritonDaemonError:  # its socket does not exist yet
            return None
        if client.status().state == "ready":
            return client
        client.close()
        return None

    found = wait_for(ready, "the daemon is ready (see the log)", _START_S)
    assert found is not None
    return found


@dataclass(frozen=True)
class Daemon:
    """A running daemon.

    Attributes:
        start_s: how long its start took
    """

    client: DaemonClient
    process: subprocess.Popen[bytes]
    start_s: float

    @property
    def http(self) -> str:
        """host:port of HTTP."""
        return self.client.status().server.http_url.rpartition("/")[2]

    @property
    def grpc(self) -> str:
        """host:port of gRPC."""
        return self.client.status().server.grpc_url.rpartition("/")[2]

    def pids(self, model: str) -> list[int]:
        """Return the process ids of a model's workers that serve."""
        instances = [
            one
            for served in self.client.metrics().models
            if served.name == model
            for one in served.instances
        ]
        return sorted(one.pid for one in instances if one.pid is not None and one.state == "ready")

    def infer(self, model: str, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Send one request over HTTP, and return its outputs.

        Raises:
            tritonclient.utils.InferenceServerException: the server refused it, or the model failed.
        """
        import tritonclient.http as triton

        with triton.InferenceServerClient(
            self.http, network_timeout=60.0, connection_timeout=60.0
        ) as client:
            return request(triton, client, model, inputs)

    def infer_many(
        self, model: str, batches: list[NDArray[Any]], clients: int = 16
    ) -> list[dict[str, NDArray[Any]]]:
        """Send requests with an input `x` concurrently; return their outputs in the order of the requests."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda batch: self.infer(model, x=batch), batches))


def request(
    triton: Any, client: Any, model: str, inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Send one request with a client of tritonclient.http or tritonclient.grpc."""
    from tritonclient.utils import np_to_triton_dtype

    tensors = []
    for name, value in inputs.items():
        tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        tensor.set_data_from_numpy(np.ascontiguousarray(value))
        tensors.append(tensor)
    answer = client.infer(model, tensors)
    outputs = answer.get_response()
    names = (
        [one["name"] for one in outputs["outputs"]]
        if isinstance(outputs, dict)
        else [one.name for one in outputs.outputs]
    )
    return {name: answer.as_numpy(name) for name in names}


def settle_gpu(target: int, what: str) -> int:
    """Wait until at most `target` bytes are in use on the GPU, and return how many are."""
    wait_for(
        lambda: cuda.used() <= target,
        lambda: f"{what}: {cuda.used() // MIB} MiB are in use, expected at most {target // MIB}",
        15.0,
    )
    return cuda.used()
