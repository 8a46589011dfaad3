"""A proxy's end of a lane, and callables that return buffers of `empty_output`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import pytriton
from pytriton import buffers
from pytriton._protocol import messages, numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    ARENA,
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    TensorRef,
)
from pytriton._protocol.lanes.tensors import Array
from pytriton.model_config import ModelConfig, Tensor, to_triton_config
from pytriton.worker import event_loops, request_log
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import CallLog, Part

#: Columns of float32 that make a row large enough for a buffer in shared memory.
COLUMNS = 70_000
ROW_BYTES = 4 * COLUMNS


class Client:
    """A proxy's end of its own lane: sends batches, and reads responses from where the worker placed them."""

    def __init__(self, model: WorkerModel) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.proxy = Lane(ends[0], peer_trusted=False)
        self.worker = Lane(ends[1], peer_trusted=True)
        self._model = model
        self._answered: list[list[TensorRef]] = []

    def part(self, *requests: tuple[int, float]) -> Part:
        """Send a batch; each request has a number of rows and the value that fills them."""
        self.proxy.arena.reset()
        refs = []
        for rows, value in requests:
            x = np.full((rows, 1), value, np.float32)
            refs.append(RequestRef([tensors.write(self.proxy, "x", "FP32", x, x.dtype)], "", []))
        self.proxy.send(Batch(1, refs))
        received = self.worker.receive()
        assert isinstance(received, Batch)
        return Part(self.worker, received)

    def take(self, answer: BatchDone | BatchFailed) -> None:
        self.worker.send(answer)
        received = self.proxy.receive()
        assert isinstance(received, BatchDone), received
        self._answered = [response.outputs for response in received.responses]

    def ask(self, *requests: tuple[int, float]) -> None:
        part = self.part(*requests)
        if self._model.asynchronous:
            answer = self._model.event_loop().run_until_complete(_as_task(self._model, part))
        else:
            (answer,) = self._model.answer([part])
        self.take(answer)

    def read(self) -> list[Array]:
        """Return the last batch's outputs as they are now: a proxy may read them any time before its next batch."""
        return [
            tensors.read(self.proxy, ref, numpy_types.NUMERIC[ref.datatype]).copy()
            for refs in self._answered
            for ref in refs
        ]

    def in_place(self) -> list[bool]:
        return [ref.memory != ARENA for refs in self._answered for ref in refs]

    def refs(self) -> list[TensorRef]:
        return [ref for refs in self._answered for ref in refs]

    def close(self) -> None:
        self.proxy.close()
        self.worker.close()


async def _as_task(model: WorkerModel, part: Part) -> BatchDone | BatchFailed:
    request_log.serving.set([part])
    return await model.answer_async(part)


Serve = Callable[..., Client]


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Yield a function that loads a callable as a worker does, and returns a client with its own lane."""
    monkeypatch.setattr(buffers, "_source", buffers._source)  # restored at the end
    clients: list[Client] = []

    def serve(infer: Any, *, of: WorkerModel | None = None, strict: bool = False) -> Client:
        clients.append(Client(of or model_of(infer, strict=strict)))
        return clients[-1]

    yield serve
    for client in clients:
        client.close()
    event_loops.close()


def model_of(infer: Any, *, strict: bool = False, dtype: Any = np.float32) -> WorkerModel:
    """Load a callable as a worker does."""
    config = to_triton_config(
        "m",
        [Tensor(name="x", dtype=np.float32, shape=(1,))],
        [Tensor(name="y", dtype=dtype, shape=(-1,))],
        ModelConfig(max_batch_size=16),
        1,
    )
    world = messages.WorkerEnvironment("", [], "", {})
    return WorkerModel(messages.ModelSpec("m", 1, config, world, strict=strict), infer, CallLog())


def filled(x: Array) -> Array:
    """Return rows of an output buffer, filled with the values of `x`."""
    y = pytriton.empty_output((len(x), COLUMNS), np.float32)
    y[:] = x
    return y


def expect(client: Client, *rows: tuple[int, float], in_place: bool = True) -> None:
    """Check the number of rows and values of the last responses, and whether they were sent without a copy."""
    for array, (count, value) in zip(client.read(), rows):
        assert array.shape == (count, COLUMNS)
        assert (array == value).all()
    assert client.in_place() == [in_place] * len(rows)
