"""`scripts/fleet-demo`: three nodes on this machine, one killed, one drained, while clients ask through one address."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton
from digits import MODEL_NAME, Array, load

from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.fleet.on_ray.client import RayFleetClient
from pytriton.fleet.on_ray.starting import start_fleet, stop_fleet
from pytriton.model_config import ModelConfig, Tensor
from support.ports import lasting_port

NODES, INSTANCES = 3, 6
#: What Ray believes each node to have: enough for all instances on one.
_DECLARED_CPUS = 8
_CALM_S = 5.0
_PATIENCE_S = 120.0
_FLAGS = [
    "--http-port",
    "0",
    "--grpc-port",
    "0",
    "--metrics-port",
    "0",
    "--openai-port",
    "0",
    "--http-address",
    "127.0.0.1",
]
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def main() -> None:
    """Play it, and print what happened."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=4, help="half over HTTP, half over gRPC")
    arguments = options.parse_args()
    begun = time.monotonic()
    with contextlib.suppress(OSError):  # not in a namespace of our own: it is up
        _loopback_up()
    folder = Path(tempfile.mkdtemp(prefix="ptf-"))
    try:
        with _cluster() as cluster:
            _play(cluster, folder, arguments.clients, begun)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _say(begun, "done")


def _play(cluster: Any, folder: Path, clients: int, begun: float) -> None:
    address = cluster.address
    _say(begun, f"a Ray cluster of {NODES} nodes runs at {address}")
    start_fleet("demo", address, flags=_FLAGS, runtime_dir=str(folder))
    fleet = connect(fleet="demo", ray_address=address)
    try:
        _until(lambda: sum(one.status is not None for one in fleet.nodes()) == NODES, "the daemons")
        _say(begun, f"{NODES} daemons run")
        images, labels = _register(fleet)
        (model,) = fleet.models()
        where = f"{model.ready} instances on {len(model.by_node)} nodes"
        _say(begun, f"{model.name} is registered: {where}")
        with _balancer(address, folder) as (http_at, grpc_at):
            load_ = Load(http_at, grpc_at, images, labels)
            load_.wait_until_served()
            _say(begun, f"asking through http {http_at}, grpc {grpc_at}")
            placements = [("at first", _placement(fleet))]
            load_.start(clients)
            time.sleep(_CALM_S)
            placements.append(_kill(cluster, fleet, folder, load_, begun))
            time.sleep(_CALM_S)
            placements.append(_drain(cluster, fleet, load_, begun))
            time.sleep(_CALM_S)
            load_.stop()
        _print(placements, load_, clients)
    finally:
        stop_fleet("demo", address)


def _register(fleet: RayFleetClient) -> tuple[Array, Array]:
    training, held_out, labels, held_out_labels = load()
    centers = np.stack([training[labels == digit].mean(axis=0) for digit in range(10)])

    @batch
    def classify(image: Array) -> dict[str, Array]:
        """Return the digit whose mean image is the nearest: (n, 64) float32 to (n, 1)."""
        distances = ((image[:, None, :] - centers[None]) ** 2).sum(axis=2)
        return {"label": distances.argmin(axis=1)[:, None]}

    fleet.register(
        classify,
        MODEL_NAME,
        inputs=[Tensor(name="image", dtype=np.float32, shape=(64,))],
        outputs=[Tensor(name="label", dtype=np.int64, shape=(1,))],
        config=ModelConfig(max_batch_size=64),
        instances=INSTANCES,
        resources={"num_cpus": 1},
        progress=False,
    )
    expected = ((held_out[:, None, :] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
    print(
        f"  accuracy on {len(held_out)} held-out images: {(expected == held_out_labels).mean():.3f}"
    )
    return held_out, expected


def _kill(
    cluster: Any, fleet: RayFleetClient, folder: Path, load_: Load, begun: float
) -> tuple[str, dict[str, int]]:
    """Kill a node that is not the head: its raylet, its daemon and all that they started, at once."""
    victim = cluster.list_all_nodes()[-1]
    node = victim.node_id
    status = next(one.status for one in fleet.nodes() if one.node == node)
    assert status is not None
    family = [psutil.Process(status.pid)]
    of_ray = [one.process for ones in victim.all_processes.values() for one in ones]
    family += [psutil.Process(one.pid) for one in of_ray]
    family += [child for one in family for child in one.children(recursive=True)]
    load_.phase = "killed"
    _say(begun, f"SIGKILL to node {node[:6]}: {len(family)} processes")
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    cluster.remove_node(victim, allow_graceful=False)
    killed_at = time.monotonic()
    _until(
        lambda: _placed(fleet) == INSTANCES and node not in _nodes(fleet), "the instances elsewhere"
    )
    _say(
        begun,
        f"{INSTANCES} instances serve again, {time.monotonic() - killed_at:.0f} s after the kill",
    )
    return f"{node[:6]} was killed", _placement(fleet)


def _drain(
    cluster: Any, fleet: RayFleetClient, load_: Load, begun: float
) -> tuple[str, dict[str, int]]:
    leaving = cluster.list_all_nodes()[-1]
    load_.phase = "drained"
    started = time.monotonic()
    fleet.drain(leaving.node_id)
    _say(begun, f"node {leaving.node_id[:6]} is drained, after {time.monotonic() - started:.0f} s")
    return f"{leaving.node_id[:6]} was drained", _placement(fleet)


class Load:
    """Clients that ask without a pause, and check each answer."""

    def __init__(self, http_at: str, grpc_at: str, images: Array, labels: Array) -> None:
        self.phase = "calm"
        self.asked: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.slowest: dict[str, float] = {}
        self._http_at, self._grpc_at = http_at, grpc_at
        self._images, self._labels = images, labels
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def wait_until_served(self) -> None:
        def served() -> bool:
            try:
                return (
                    self._ask_http(http.client.HTTPConnection(self._http_at, timeout=5), 0)
                    is not None
                )
            except (OSError, ValueError, KeyError, http.client.HTTPException):
                return False

        _until(served, "an answer through the balancer")

    def start(self, clients: int) -> None:
        for number in range(clients):
            target = self._over_http if number % 2 == 0 else self._over_grpc
            self._threads.append(threading.Thread(target=target, args=(number,)))
            self._threads[-1].start()

    def stop(self) -> None:
        self._stop.set()
        for one in self._threads:
            one.join()

    def _over_http(self, number: int) -> None:
        connection = http.client.HTTPConnection(self._http_at, timeout=60)
        self._run(number, lambda index: self._ask_http(connection, index), connection.close)

    def _over_grpc(self, number: int) -> None:
        client = triton.InferenceServerClient(self._grpc_at)

        def ask(index: int) -> int:
            tensor = triton.InferInput("image", [1, 64], "FP32")
            tensor.set_data_from_numpy(self._images[index : index + 1])
            return int(
                client.infer(MODEL_NAME, [tensor], client_timeout=60).as_numpy("label")[0, 0]
            )

        self._run(number, ask, lambda: None)

    def _ask_http(self, connection: http.client.HTTPConnection, index: int) -> int:
        data = self._images[index].tolist()
        tensor = {"name": "image", "shape": [1, 64], "datatype": "FP32", "data": data}
        connection.request(
            "POST", f"/v2/models/{MODEL_NAME}/infer", json.dumps({"inputs": [tensor]})
        )
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}: {body[:80]!r}")
        return int(json.loads(body)["outputs"][0]["data"][0])

    def _run(self, number: int, ask: Callable[[int], int], forget: Callable[[], None]) -> None:
        index = number
        while not self._stop.is_set():
            index = (index + 1) % len(self._images)
            started = time.monotonic()
            cause = self._outcome(ask, index)
            took = time.monotonic() - started
            with self._lock:
                phase = self.phase  # what was inside when a node was killed counts there
                self.asked[phase] += 1
                self.slowest[phase] = max(self.slowest.get(phase, 0.0), took)
                if cause:
                    self.failed[phase, cause] += 1
            if cause:
                forget()

    def _outcome(self, ask: Callable[[int], int], index: int) -> str:
        try:
            return "" if ask(index) == self._labels[index] else "wrong answer"
        except Exception as error:  # every kind is counted
            return f"{type(error).__name__}: {str(error)[:90]}"


def _print(placements: list[tuple[str, dict[str, int]]], load_: Load, clients: int) -> None:
    nodes = list(placements[0][1])
    print("\ninstances on             " + "  ".join(node[:6] for node in nodes))
    for what, placement in placements:
        print(f"  {what:<22} " + "  ".join(f"{placement.get(node, '-'):>6}" for node in nodes))
    print(f"\n{clients} clients       requests   failed   slowest")
    for phase in ("calm", "killed", "drained"):
        failed = sum(count for (one, _), count in load_.failed.items() if one == phase)
        print(
            f"  {phase:<12} {load_.asked[phase]:>10} {failed:>8} {load_.slowest.get(phase, 0):>8.2f} s"
        )
    for (phase, cause), count in sorted(load_.failed.items()):
        print(f"    {phase}: {count} x {cause}")
    drained = sum(count for (phase, _), count in load_.failed.items() if phase == "drained")
    if drained or sum(load_.failed.values()) > clients:
        sys.exit("more failed than may: a drained node costs nothing, a killed one what was inside")


def _placement(fleet: RayFleetClient) -> dict[str, int]:
    return {
        one.node: sum(
            each.state == "ready" and not each.spare
            for model in one.status.models
            if model.name == MODEL_NAME
            for each in model.instances
        )
        for one in fleet.nodes()
        if one.status is not None
    }


def _placed(fleet: RayFleetClient) -> int:
    return sum(_placement(fleet).values())


def _nodes(fleet: RayFleetClient) -> list[str]:
    return [one.node for one in fleet.nodes()]


@contextlib.contextmanager
def _cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    of_each = {
        "num_cpus": _DECLARED_CPUS,
        "object_store_memory": 100 << 20,
        "node_ip_address": "127.0.0.1",
    }
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **of_each})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**of_each)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextlib.contextmanager
def _balancer(ray_address: str, folder: Path) -> Iterator[tuple[str, str]]:
    http_at, grpc_at = (f"127.0.0.1:{lasting_port()}" for _ in range(2))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "pytriton.cli",
        "fleet",
        "balance",
        "--fleet",
        "demo",
    ]
    command += ["--ray-address", ray_address, "--http", http_at, "--grpc", grpc_at]
    command += ["--interval", "0.5", "--folder", str(folder / "balancer")]
    process = subprocess.Popen(command)
    try:
        yield http_at, grpc_at
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_PATIENCE_S:g} s: {what}")
        time.sleep(0.2)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(channel, _SIOCGIFFLAGS, asked))
        if not flags & _IFF_UP:
            fcntl.ioctl(channel, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _say(begun: float, text: str) -> None:
    print(f"[{time.monotonic() - begun:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
