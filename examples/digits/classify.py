"""Classify the held-out digits with the daemon, over HTTP and gRPC, one after another and concurrently.

    python examples/digits/classify.py

Any Triton client can do this; here it is NVIDIA's tritonclient. Exits with an error if an answer is wrong: HTTP
and gRPC must agree on every image, and 95 % of the digits must be recognized.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from digits import MODEL_NAME, Array, load

from pytriton.daemon import connect

THREADS = 8
MIN_ACCURACY = 0.95


class Classifier:
    """The model over one protocol. Each thread has its own connection."""

    def __init__(self, module: Any, address: str) -> None:
        self._module = module
        self._address = address
        self._local = threading.local()

    def classify(self, image: Array) -> tuple[int, float]:
        """Return the label of one image (64 float32) and the seconds it took."""
        started = time.perf_counter()
        tensor = self._module.InferInput("image", [1, 64], "FP32")
        tensor.set_data_from_numpy(image[None])
        result = self._connection().infer(MODEL_NAME, [tensor])
        return int(result.as_numpy("label")[0, 0]), time.perf_counter() - started

    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._module.InferenceServerClient(self._address)
        return self._local.connection


def measure(name: str, classifier: Classifier, images: Array, labels: Array, threads: int) -> Array:
    """Classify all images with a number of threads, print a summary, and return the predicted labels."""
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        answers = list(pool.map(classifier.classify, images))
        seconds = time.perf_counter() - started
    predicted = np.array([label for label, _ in answers])
    latencies = 1000 * np.array([latency for _, latency in answers])
    p50, p99 = np.percentile(latencies, [50, 99])
    accuracy = float((predicted == labels).mean())
    print(
        f"  {name:<5}{threads:>3} thread{'s' if threads > 1 else ' '}  accuracy {accuracy:.3f}  "
        f"{len(images) / seconds:7.0f} requests/s  p50 {p50:5.1f} ms  p99 {p99:5.1f} ms"
    )
    return predicted


def main() -> int:
    """Classify all images over both protocols; return 1 if an answer is wrong."""
    _, images, _, labels = load()
    server = connect().status().server
    protocols = {
        "HTTP": Classifier(tritonclient.http, server.http_url.rpartition("/")[2]),
        "gRPC": Classifier(tritonclient.grpc, server.grpc_url.rpartition("/")[2]),
    }
    print(f"classifying {len(images)} held-out images, one per request")
    runs = [
        measure(name, classifier, images, labels, threads)
        for threads in (1, THREADS)
        for name, classifier in protocols.items()
    ]
    if any((run != runs[0]).any() for run in runs):
        print("error: the same image got different answers", file=sys.stderr)
        return 1
    if (runs[0] == labels).mean() < MIN_ACCURACY:
        print(f"error: less than {MIN_ACCURACY:.0%} of the digits were recognized", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
