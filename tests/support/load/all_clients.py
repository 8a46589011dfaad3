"""Load from clients of all kinds, for tests that replacing the frontend loses no request."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import tritonclient.grpc

from support.models.inference import Running
from support.real_daemon import eventually

#: How long a frontend that ends keeps a connection without a request (IDLE_CLOSE_MS).
_IDLE_CLOSE_S = 0.5


class AllClients:
    """Clients of all kinds, each in a thread, until stopped; counts successes and records failures.

    Args:
        running: a daemon with the model "double", which takes x
        doubles: sends it a request over HTTP, and returns whether the answer was right
    """

    def __init__(
        self, running: Running, doubles: Callable[[http.client.HTTPConnection], bool]
    ) -> None:
        self.well: dict[str, int] = {}
        self.wrong: list[str] = []
        self._doubles = doubles
        self._stop = threading.Event()
        self._http, self._grpc = running.http, running.grpc
        kinds = (self._new_connections, self._kept_connection, self._over_grpc)
        self._threads = [
            threading.Thread(target=self._run, args=(kind,), name=kind.__name__)
            for kind in kinds * 2
        ]

    def __enter__(self) -> AllClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_progress(self) -> None:
        """Return once each kind of client has had some more answers, or one has failed."""
        before = dict(self.well)
        kinds = {thread.name for thread in self._threads}

        def go_on() -> bool:
            return bool(self.wrong) or all(
                self.well.get(kind, 0) > before.get(kind, 0) + 5 for kind in kinds
            )

        eventually(go_on, "all clients go on")

    def _run(self, kind: Callable[[], Iterator[bool]]) -> None:
        name = kind.__name__
        try:
            for well in kind():
                if not well:
                    self.wrong.append(f"{name}: a wrong answer")
                self.well[name] = self.well.get(name, 0) + 1
                if self._stop.is_set():
                    return
        except Exception as error:
            self.wrong.append(f"{name}: {type(error).__name__}: {error}")

    def _new_connections(self) -> Iterator[bool]:
        while True:
            with closing(http.client.HTTPConnection(self._http, timeout=60)) as client:
                yield self._doubles(client)

    def _kept_connection(self) -> Iterator[bool]:
        """Reuse a connection; reconnect if the server's answer announced that it closes it, or after a long pause."""
        client = http.client.HTTPConnection(self._http, timeout=60)
        began = time.monotonic()
        with closing(client):
            while True:
                former, began, is_kept = began, time.monotonic(), client.sock is not None
                try:
                    well = self._doubles(client)
                except ConnectionError:
                    if not is_kept or time.monotonic() - former < _IDLE_CLOSE_S:
                        raise
                    client.close()
                    well = self._doubles(client)
                yield well

    def _over_grpc(self) -> Iterator[bool]:
        tensor = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
        # A connection waits in the listening socket until the next daemon accepts it. gRPC gives up after 20 s, which a
        # daemon on a busy machine may need to start.
        patient = [("grpc.min_reconnect_backoff_ms", 60_000)]
        with tritonclient.grpc.InferenceServerClient(self._grpc, channel_args=patient) as client:
            while True:
                answer = client.infer("double", [tensor], client_timeout=60)
                yield answer.as_numpy("y").tolist() == [[2.0, 2.0]]
