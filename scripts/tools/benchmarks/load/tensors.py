"""The tensors of each request and of the correct response."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.workloads import Model, Payload, Workload

Array = npt.NDArray[Any]


def values(payload: Payload) -> Array:
    """Return the first input, without a batch axis."""
    if payload.strings:
        return np.array([b"%0100d" % index for index in range(payload.strings)], dtype=object)
    return (np.arange(payload.floats) % 1024).astype(np.float32)


def inputs(workload: Workload) -> dict[str, Array]:
    """Return all inputs, in the model's order. No two are the same."""
    first = values(workload.payload)
    names = workload.model.inputs
    return {name: first if not index else first + index for index, name in enumerate(names)}


def outputs(workload: Workload) -> dict[str, bytes]:
    """Return the bytes of each output of the correct response."""
    model = workload.model
    if model.work != "add_sub":
        return {name: answer(workload) for name in model.outputs}
    first, second = inputs(workload).values()
    return dict(zip(model.outputs, (raw(first + second), raw(first - second))))


def answer(workload: Workload) -> bytes:
    """Return the bytes of the only output; for a stream, those of one response."""
    sent = values(workload.payload)
    if workload.payload.answer is None or workload.payload.responses > 1:
        return raw(sent)
    if workload.model.work == "table":
        return raw((np.arange(workload.payload.answer) % 1024).astype(np.float32))
    return raw(sent[: workload.payload.answer])


def streams(workload: Workload) -> bool:
    """Return whether a request has several responses."""
    return workload.payload.responses > 1


def stream_answers(workload: Workload) -> list[bytes]:
    """Return the bytes of each response of a stream."""
    return [struct.pack("<f", index) for index in range(workload.payload.responses)]


def raw(array: Array) -> bytes:
    """Return an array's bytes in Triton's format: each string is preceded by its length."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.tolist())


def shape(model: Model, array: Array) -> list[int]:
    """Return the shape to send: with a batch axis if the model has one."""
    return [1, len(array)] if model.max_batch_size else [len(array)]
