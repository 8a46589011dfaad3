"""The answers to clients when an instance segfaults: with Triton's own python backend, and with our workers."""

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
input [ { name: "what" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "told" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: COUNT } ]
"""
CODE = """
import ctypes
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            what = request.inputs()[0].as_numpy()
            if what[0] == 13:
                ctypes.string_at(0)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("told", what)]))
        return responses
"""
_CLIENTS = 8
#: Seconds after which the bad request is sent.
_CALM_S = 2.0


@dataclass
class Tally:
    """The answers to the clients of one system."""

    answered: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    answered_late: int = 0
    last_failure_s: float = 0.0
    at_the_end: int = 0


def watch(address: str, seconds: float) -> Tally:
    """Have eight clients ask for a while; tell one instance to crash; count what comes back."""
    tally, lock = Tally(), threading.Lock()
    begun = time.monotonic()
    end = begun + _CALM_S + seconds

    def ask() -> None:
        inference = Inference("http", address)
        while (now := time.monotonic()) < end:
            try:
                inference.infer("crash", {"what": np.array([1], np.int32)})
            except Exception as error:  # noqa: PERF203, whatever a client can meet is counted
                with lock:
                    tally.failed += 1
                    tally.errors[str(error)[:90]] += 1
                    tally.last_failure_s = now - begun - _CALM_S
                    tally.at_the_end += end - now < 1
                time.sleep(0.01)  # a client that fails at once would count itself only
            else:
                with lock:
                    tally.answered += 1
                    tally.answered_late += end - now < 1
        inference.close()

    def crash() -> None:
        inference = Inference("http", address)
        try:
            inference.infer("crash", {"what": np.array([13], np.int32)})
        except Exception as error:
            tally.errors[f"the bad request: {str(error)[:160]}"] += 1
        inference.close()

    threads = [threading.Thread(target=ask) for _ in range(_CLIENTS)]
    threads.append(threading.Timer(_CALM_S, crash))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def stock(seconds: float, config: str) -> Tally:
    """Watch Triton's own python backend."""
    with (
        tempfile.TemporaryDirectory() as folder,
        plain_triton(Path(folder), {"crash": (config, CODE)}) as server,
    ):
        return watch(server.http.partition("//")[2], seconds)


def ours(seconds: float, config: str) -> Tally:
    """Watch our workers."""
    with tempfile.TemporaryDirectory() as folder, RunningDaemon.start(**AS_SHIPPED) as daemon:
        version = Path(folder) / "crash" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(CODE)
        (version.parent / "config.pbtxt").write_text(config)
        daemon.client.register_model(version.parent, on_crash="fail")
        return watch(daemon.http, seconds)


def main() -> None:
    """Print a table in Markdown."""
    seconds = float(sys.argv[1])
    tallies = {}
    for count in (1, 2):
        config = CONFIG.replace("COUNT", str(count))
        for name, system in (("Triton's python backend", stock), ("pytriton-daemon", ours)):
            tallies[f"{name}, {count} instance{'s' * (count > 1)}"] = system(seconds, config)
    print("| | " + " | ".join(tallies) + " |\n|---|" + "--:|" * len(tallies))
    rows: dict[str, Callable[[Tally], str]] = {
        "requests answered": lambda one: f"{one.answered:,}",
        "requests failed": lambda one: f"{one.failed:,}",
        "answered in the last second": lambda one: f"{one.answered_late:,}",
        "failed in the last second": lambda one: f"{one.at_the_end:,}",
        "last failure, seconds after the crash": lambda one: (
            f"{one.last_failure_s:.1f}" if one.failed else "only the bad request failed"
        ),
    }
    for what, report in rows.items():
        print(f"| {what} | " + " | ".join(report(one) for one in tallies.values()) + " |")
    for name, one in tallies.items():
        for text, count in one.errors.most_common(4):
            print(f"\n{name}, {count} times: {text!r}")


if __name__ == "__main__":
    main()
