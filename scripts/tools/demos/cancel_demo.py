"""Cancel gRPC streams continuously: with Triton's own python backend, and with our proxies."""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import queue
import random
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.real_daemon import AS_SHIPPED, RunningDaemon, eventually

CONFIG = """
backend: "python"
input [ { name: "n" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
instance_group [ { kind: KIND_CPU count: 2 } ]
"""
CODE = """
import time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.threads = ThreadPoolExecutor(16)

    def answer(self, sender, n):
        for i in range(n):
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([i], np.int32))]))
            time.sleep(PAUSE)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "n").as_numpy()[0])
            self.threads.submit(self.answer, request.get_response_sender(), n)
"""
#: The daemon's settings for each system.
SYSTEMS: dict[str, dict[str, Any]] = {
    "compiled": {"proxy": "native"},
    "python": {"proxy": "python"},
    "triton": {"python_backend_model": ("*",)},
}
_PROCESSES, _THREADS = 4, 6
#: Answers of a stream.
_ANSWERS = 1000
#: Clients exit frequently, and starting an interpreter for each would take half of the CPU time. So they are forked from a
#: process that has imported these modules, and that has no gRPC channel, because channels do not survive a fork.
_PRELOADED = ["__main__", "numpy", "tritonclient.grpc", "pytriton.daemon", __name__]
#: Streams hang if none was cancelled for so long. A daemon notices after 10 s.
_HANG_S = 20.0
#: Time until the first cancellation, for the start of the clients on a busy machine.
_START_S = 100.0


@dataclass
class Counts:
    """The counts of one system."""

    cancelled: int
    crashed: int
    hung: int


def cancel(address: str, until: float, cancelled: Path, seed: int) -> None:
    """Start streams and cancel them after some answers. Append a byte to the file `cancelled` for each.

    Occasionally, exit with all streams open.
    """
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="stream")
    request.inputs.add(name="n", datatype="INT32", shape=[1])
    request.raw_input_contents.append(np.array([_ANSWERS], np.int32).tobytes())

    def cancel_streams(numbers: random.Random) -> None:
        channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while time.time() < until:
            requests: queue.Queue[Any] = queue.Queue()
            for _ in range(numbers.choice([1, 1, 2, 4])):
                requests.put(request)
            stream = stub.ModelStreamInfer(iter(requests.get, None))
            try:
                for answer in itertools.islice(stream, numbers.choice([1, 1, 2, 5, 20, 60])):
                    if answer.error_message:  # the model is not loaded yet
                        raise ConnectionError(answer.error_message)
                stream.cancel()
                with open(cancelled, "ab", buffering=0) as file:
                    file.write(b".")
            except (grpc.RpcError, ConnectionError):
                time.sleep(0.2)  # tritonserver is restarting
            requests.put(None)
            if numbers.random() < 0.02:
                os._exit(0)

    threads = [
        threading.Thread(target=cancel_streams, args=[random.Random(f"{seed} {i}")])
        for i in range(_THREADS)
    ]
    for thread in threads:
        thread.daemon = True  # its stream may hang
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.time()))


def _is_served(daemon: RunningDaemon) -> bool:
    return any(model.state == "ready" for model in daemon.client.status().models)


def serve(system: str, options: argparse.Namespace) -> Counts:
    """Run one system with clients that cancel streams."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    seeds = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        cancelled, repository = Path(folder) / "cancelled", Path(folder) / "models"
        cancelled.touch()
        version = repository / "stream" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(CODE.replace("PAUSE", str(options.pause_ms / 1000)))
        (version.parent / "config.pbtxt").write_text(CONFIG)
        with RunningDaemon.start(
            model_repository=(str(repository),), **AS_SHIPPED, **SYSTEMS[system]
        ) as daemon:
            eventually(lambda: _is_served(daemon), "the model is not loaded")
            until = time.time() + _START_S + options.seconds
            arguments = (daemon.grpc, until, cancelled)
            clients: list[Any] = []
            seen, changed_at, hung = 0, time.time(), 0
            while time.time() < until and not hung:
                clients = [client for client in clients if client.is_alive()]
                while len(clients) < _PROCESSES:
                    client = context.Process(target=cancel, args=(*arguments, next(seeds)))
                    client.start()
                    clients.append(client)
                time.sleep(0.2)
                if cancelled.stat().st_size != seen:
                    if not seen:
                        until = time.time() + options.seconds
                    seen, changed_at = cancelled.stat().st_size, time.time()
                hung = int(time.time() - changed_at > (_HANG_S if seen else _START_S))
            for client in clients:
                client.kill()
                client.join()
            log = [json.loads(line) for line in daemon.said().splitlines() if line[:1] == "{"]
    hung += sum("has not accepted an answer" in line["event"] for line in log)
    exits = [line["reason"] for line in log if line["event"] == "tritonserver exited unexpectedly"]
    return Counts(seen, sum("SIGKILL" not in reason for reason in exits), hung)


def main() -> None:
    """Run the systems and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="scripts/tools/cancel-demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration for each system")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="pause after each answer")
    parser.add_argument(
        "--systems", default=",".join(SYSTEMS), help="comma-separated (default: %(default)s)"
    )
    options = parser.parse_args()
    os.environ["MALLOC_PERTURB_"] = "165"  # crash on use after free
    print("| system | cancelled | crashed | hung |\n|---|--:|--:|--:|")
    for system in options.systems.split(","):
        counts = serve(system, options)
        print(f"| {system} | {counts.cancelled:,} | {counts.crashed} | {counts.hung} |", flush=True)


if __name__ == "__main__":
    main()
