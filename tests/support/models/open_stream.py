"""A gRPC stream that stays open as long as a test wants."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tritonclient.grpc

from pytriton.model_config import ModelConfig
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon


class OpenStream:
    """A stream whose first response, the request's x, has arrived, and whose second waits for `finish`."""

    def __init__(
        self, client: tritonclient.grpc.InferenceServerClient, answers: queue.Queue[Any], gate: Path
    ) -> None:
        self.client = client
        self._answers = answers
        self._gate = gate

    @property
    def is_held(self) -> bool:
        """Whether nothing has arrived after the first response."""
        return self._answers.empty()

    def finish(self) -> None:
        """Release the second response: twice the request's x."""
        self._gate.touch()
        assert self._answers.get(timeout=60).tolist() == (ONES * 2).tolist()


@contextlib.contextmanager
def open_stream(daemon: RunningDaemon, folder: Path) -> Iterator[OpenStream]:
    """Register the model "stream", start a stream, and wait for its first response."""
    gate = folder / "gate"

    def count(requests: Any) -> Any:
        yield [{"y": requests[0]["x"]}]
        while not gate.exists():
            threading.Event().wait(0.02)
        yield [{"y": requests[0]["x"] * 2}]

    config = ModelConfig(max_batch_size=1, decoupled=True)
    daemon.client.register(count, "stream", X, Y, config, progress=False)
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(daemon.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error or result.as_numpy("y")))
        tensor = tritonclient.grpc.InferInput("x", ONES.shape, "FP32")
        client.async_stream_infer("stream", [tensor.set_data_from_numpy(ONES)])
        assert answers.get(timeout=60).tolist() == ONES.tolist()
        yield OpenStream(client, answers, gate)
