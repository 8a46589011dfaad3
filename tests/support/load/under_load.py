"""Clients that ask a model again and again while a test does something to it."""

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
#: Between a client's requests. Without, they have all CPU time, and what the test does takes several times as long.
_PAUSE_S = 0.01


class Load:
    """The answers to the clients.

    Attributes:
        answers: first element of each answer's `y`, in the order of their arrival
        errors: texts of what Triton answered instead, if that is tolerated
    """

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.errors: list[str] = []
        self._asking: list[Future[None]] = []

    def wait(self, more: int) -> None:
        """Wait until so many more requests have been answered, or a client has given up."""
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
    """Ask `model` with x = [[1, 1]] over gRPC until the block ends.

    Raises:
        InferenceServerException: a request failed; `tolerant` clients note that, and go on.
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
