"""Clients that send requests to a model continuously while a test does something to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from tritonclient.utils import InferenceServerException

from support.models.inference import Inference
from support.real_daemon import RunningDaemon, eventually

_ONES = np.ones((1, 2), np.float32)
#: Pause between a client's requests, which would otherwise starve the test of CPU time.
_PAUSE_S = 0.01


class Load:
    """The clients' answers.

    Attributes:
        answers: first element of each answer's `y`, in the order of arrival
        errors: texts of Triton's errors, if they are tolerated
    """

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.errors: list[str] = []
        self._asking: list[Future[None]] = []

    def wait(self, more: int) -> None:
        """Wait until this many more requests have been answered, or a client has failed."""
        wanted = len(self.answers) + more
        eventually(
            lambda: len(self.answers) > wanted or any(one.done() for one in self._asking),
            "requests are answered",
        )

    def _ask(self, connection: Inference, model: str, *, tolerant: bool) -> None:
        try:
            y = connection.infer(model, {"x": _ONES})["y"]
        except InferenceServerException as error:
            if not tolerant:
                raise
            self.errors.append(str(error))
        else:
            self.answers.append(float(y[0, 0]))


@contextmanager
def under_load(
    daemon: RunningDaemon, model: str = "model", clients: int = 3, *, tolerant: bool = False
) -> Iterator[Load]:
    """Send requests with x = [[1, 1]] to `model` over gRPC until the block ends.

    Raises:
        InferenceServerException: a request failed; `tolerant` clients record the error and continue.
    """
    load = Load()
    stop = threading.Event()

    def ask() -> None:
        connection = Inference("grpc", daemon.grpc)
        try:
            while not stop.wait(_PAUSE_S):
                load._ask(connection, model, tolerant=tolerant)
        finally:
            connection.close()

    with ThreadPoolExecutor(clients) as threads:
        load._asking = [threads.submit(ask) for _ in range(clients)]
        try:
            yield load
        finally:
            stop.set()
    for one in load._asking:
        one.result()
