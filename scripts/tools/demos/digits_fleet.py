"""The classifier of handwritten digits on a fleet of three nodes, and clients that ask it and check every answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from digits import MODEL_NAME, Array, load
from support.ports import lasting_port
from support.ray_nodes import FLAGS, end_balancer, start_balancer, until

from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.fleet.on_ray.client import RayFleetClient
from pytriton.fleet.on_ray.lifecycle import start_fleet, stop_fleet
from pytriton.model_config import ModelConfig, Tensor

NODES, INSTANCES = 3, 6
PATH = f"/v2/models/{MODEL_NAME}/infer"


@contextlib.contextmanager
def digits_fleet(address: str, folder: Path, say: Callable[[str], None]) -> Iterator[Any]:
    """Yield (fleet, HTTP address, gRPC address, images, labels) of a fleet that serves the classifier."""
    start_fleet("demo", address, flags=FLAGS, runtime_dir=str(folder))
    fleet = connect(fleet="demo", ray_address=address)
    try:
        until(lambda: sum(one.status is not None for one in fleet.nodes()) == NODES, "the daemons")
        say(f"{NODES} daemons run")
        images, labels = _register(fleet)
        (model,) = fleet.models()
        where = f"{model.ready} instances on {len(model.by_node)} nodes"
        say(f"{model.name} is registered: {where}")
        http_at, grpc_at = (f"127.0.0.1:{lasting_port()}" for _ in range(2))
        balancer = start_balancer(address, "demo", folder / "balancer", http_at, grpc_at)
        try:
            yield fleet, http_at, grpc_at, images, labels
        finally:
            end_balancer(balancer)
    finally:
        stop_fleet("demo", address)


def classifier() -> tuple[Callable[[Array], Array], Array, Array]:
    """Return a function from images (n, 64) to labels (n,), held-out images, and what it says of them."""
    training, held_out, labels, held_out_labels = load()
    centers = np.stack([training[labels == digit].mean(axis=0) for digit in range(10)])

    def nearest(image: Array) -> Array:
        """Return the digits whose mean images are the nearest."""
        found: Array = ((image[:, None, :] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
        return found

    expected = nearest(held_out)
    right = (expected == held_out_labels).mean()
    print(f"  accuracy on {len(held_out)} held-out images: {right:.3f}")
    return nearest, held_out, expected


def _register(fleet: RayFleetClient) -> tuple[Array, Array]:
    nearest, images, expected = classifier()

    @batch
    def classify(image: Array) -> dict[str, Array]:
        """(n, 64) float32 to (n, 1) int64."""
        return {"label": nearest(image)[:, None]}

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
    return images, expected


def placement(fleet: RayFleetClient) -> dict[str, int]:
    return {
        one.node: sum(
            each.state == "ready" and not each.standby
            for model in one.status.models
            if model.name == MODEL_NAME
            for each in model.instances
        )
        for one in fleet.nodes()
        if one.status is not None
    }


def body_of(image: Array) -> bytes:
    """Return the request for one image, as JSON."""
    tensor = {"name": "image", "shape": [1, 64], "datatype": "FP32", "data": image.tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


class Load:
    """Clients that ask without a pause, and check each answer."""

    def __init__(
        self, http_at: str, grpc_at: str, images: Array, labels: Array, path: str = PATH
    ) -> None:
        self.phase = "calm"
        self.asked: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.slowest: dict[str, float] = {}
        self._http_at, self._grpc_at, self._path = http_at, grpc_at, path
        self._images, self._labels = images, labels
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def wait_until_served(self) -> None:
        def served() -> bool:
            try:
                return (
                    self._ask_http(http.client.HTTPConnection(self._http_at, timeout=5), 0)
                    is not None
                )
            except (OSError, ValueError, KeyError, http.client.HTTPException):
                return False

        until(served, "an answer through the balancer")

    @contextlib.contextmanager
    def running(self, clients: int, *, grpc: bool = True) -> Iterator[None]:
        """Ask by so many clients, half of them over gRPC where that is wanted."""
        threads = [
            threading.Thread(
                target=self._over_grpc if grpc and number % 2 else self._over_http, args=(number,)
            )
            for number in range(clients)
        ]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self._stop.set()
            for one in threads:
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
        connection.request("POST", self._path, body_of(self._images[index]))
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
