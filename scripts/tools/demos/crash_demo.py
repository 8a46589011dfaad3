"""Crash a model under load with a segmentation fault: in Triton's own python backend, and in pytriton-daemon."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass
class Counts:
    """The outcomes of the requests to one system. `last_second_*` count those at the end of the run."""

    answered: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    last_second_answered: int = 0
    last_second_failed: int = 0
    last_failure_s: float = 0.0


def measure(address: str, seconds: float) -> Counts:
    """Send requests from eight clients, crash one instance, and count the outcomes."""
    counts, lock = Counts(), threading.Lock()
    begun = time.monotonic()
    end = begun + _WARM_UP_S + seconds

    def send() -> None:
        inference = Inference("http", address)
        while (now := time.monotonic()) < end:
            try:
                inference.infer("crash", {"code": np.array([1], np.int32)})
            except Exception as error:  # noqa: PERF203 - count all errors
                with lock:
                    counts.failed += 1
                    counts.errors[str(error)[:90]] += 1
                    counts.last_failure_s = now - begun - _WARM_UP_S
                    counts.last_second_failed += end - now < 1
                time.sleep(0.01)  # a fast failure must not crowd out the other clients
            else:
                with lock:
                    counts.answered += 1
                    counts.last_second_answered += end - now < 1
        inference.close()

    def crash() -> None:
        inference = Inference("http", address)
        try:
            inference.infer("crash", {"code": np.array([13], np.int32)})
        except Exception as error:
            counts.errors[f"bad request: {str(error)[:160]}"] += 1
        inference.close()

    threads = [threading.Thread(target=send) for _ in range(_CLIENTS)]
    threads.append(threading.Timer(_WARM_UP_S, crash))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def run_triton(seconds: float, config: str) -> Counts:
    """Measure Triton's own python backend."""
    with (
        tempfile.TemporaryDirectory() as folder,
        plain_triton(Path(folder), {"crash": (config, CODE)}) as server,
    ):
        return measure(server.http.partition("//")[2], seconds)


def run_daemon(seconds: float, config: str) -> Counts:
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
    rows: dict[str, Callable[[Counts], str]] = {
        "requests answered": lambda one: f"{one.answered:,}",
        "requests failed": lambda one: f"{one.failed:,}",
        "answered in the last second": lambda one: f"{one.last_second_answered:,}",
        "failed in the last second": lambda one: f"{one.last_second_failed:,}",
        "last failure, seconds after the crash": lambda one: (
            f"{one.last_failure_s:.1f}" if one.failed else "only the bad request failed"
        ),
    }
    for what, report in rows.items():
        print(f"| {what} | " + " | ".join(report(one) for one in results.values()) + " |")
    for name, one in results.items():
        for text, count in one.errors.most_common(4):
            print(f"\n{name}, {count} times: {text!r}")


if __name__ == "__main__":
    main()
