"""Crash a model under load with a segmentation fault: in Triton's own python backend, and in pytriton-daemon."""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.models.inference import Inference
from support.plain_triton import plain_triton
from support.real_daemon import AS_SHIPPED, RunningDaemon

CONFIG = """
backend: "python"
input [ { name: "code" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "echo" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: COUNT } ]
"""
CODE = """
import ctypes
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            code = request.inputs()[0].as_numpy()
            if code[0] == 13:
                ctypes.string_at(0)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("echo", code)]))
        return responses
"""
_CLIENTS = 8
#: Seconds before the bad request is sent.
_WARM_UP_S = 2.0


class Outcome(NamedTuple):
    """One request: the seconds from its start to the end of the run, and its error or ""."""

    left_s: float
    error: str


def measure(address: str, seconds: float) -> list[Outcome]:
    """Send requests from eight clients, crash one instance, and return the outcomes of all other requests."""
    outcomes: list[Outcome] = []
    end = time.monotonic() + _WARM_UP_S + seconds

    def send() -> None:
        inference = Inference("http", address)
        while (left_s := end - time.monotonic()) > 0:
            error = infer(inference, 1)
            outcomes.append(Outcome(left_s, error))
            if error:
                time.sleep(0.01)  # a fast failure must not crowd out the other clients
        inference.close()

    def crash() -> None:
        inference = Inference("http", address)
        print(f"the bad request: {infer(inference, 13)}")
        inference.close()

    threads = [threading.Thread(target=send) for _ in range(_CLIENTS)]
    threads.append(threading.Timer(_WARM_UP_S, crash))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def infer(inference: Inference, code: int) -> str:
    """Send a request. Return its error or ""."""
    try:
        inference.infer("crash", {"code": np.array([code], np.int32)})
    except Exception as error:  # whatever a client may get
        return str(error)[:160] or type(error).__name__
    return ""


def run_triton(seconds: float, config: str) -> list[Outcome]:
    """Measure Triton's own python backend."""
    with (
        tempfile.TemporaryDirectory() as folder,
        plain_triton(Path(folder), {"crash": (config, CODE)}) as server,
    ):
        return measure(server.http.partition("//")[2], seconds)


def run_daemon(seconds: float, config: str) -> list[Outcome]:
    """Measure pytriton-daemon."""
    with tempfile.TemporaryDirectory() as folder, RunningDaemon.start(**AS_SHIPPED) as daemon:
        version = Path(folder) / "crash" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(CODE)
        (version.parent / "config.pbtxt").write_text(config)
        daemon.client.register_model(version.parent, on_crash="fail")
        return measure(daemon.http, seconds)


def main() -> None:
    """Run all cases and print a table in Markdown."""
    seconds = float(sys.argv[1])
    results = {}
    for count in (1, 2):
        config = CONFIG.replace("COUNT", str(count))
        for name, system in (
            ("Triton's python backend", run_triton),
            ("pytriton-daemon", run_daemon),
        ):
            results[f"{name}, {count} instance{'s' * (count > 1)}"] = system(seconds, config)
    print("| | " + " | ".join(results) + " |\n|---|" + "--:|" * len(results))
    for when, longest_s in (("", math.inf), (" in the last second", 1.0)):
        for what, failed in (("answered", False), ("failed", True)):
            counts = (
                sum(one.left_s < longest_s and bool(one.error) == failed for one in outcomes)
                for outcomes in results.values()
            )
            print(f"| {what}{when} | " + " | ".join(f"{count:,}" for count in counts) + " |")


if __name__ == "__main__":
    main()
