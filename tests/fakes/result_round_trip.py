"""Results of a callable, written as a worker does and read as a proxy does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fakes.lane_pair import Lanes
from pytriton._protocol import numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import BatchDone, RequestRef, TensorRef
from pytriton._protocol.lanes.tensors import Array
from pytriton.worker.results import Output, ResultError, ResultWriter


def output(name: str, datatype: str = "FP32", dims: tuple[int, ...] = (-1,)) -> Output:
    return Output(name, datatype, numpy_types.element_dtype(datatype), dims)


def writer(
    *outputs: Output, batching: bool = True, strict: bool = False, chooses: bool = False
) -> ResultWriter:
    declared = outputs or [output("y")]
    return ResultWriter("digits", declared, batching=batching, strict=strict, chooses=chooses)


def request(rows: int = 1, requested: Sequence[str] = ()) -> RequestRef:
    return RequestRef([TensorRef("x", "FP32", [rows, 1], 1, 0, 4 * rows)], "", list(requested))


def responses(
    lanes: Lanes, results: Any, requests: Sequence[RequestRef], writer: ResultWriter
) -> list[dict[str, Array]]:
    """Write results as the worker does, and read them as the proxy does."""
    proxy, worker = lanes
    worker.arena.reset()
    worker.send(BatchDone(1, writer.write(results, requests, worker)))
    answer = proxy.receive()
    assert isinstance(answer, BatchDone)
    return [
        {ref.name: _read(proxy, ref).copy() for ref in response.outputs}
        for response in answer.responses
    ]


def _read(proxy: Lane, ref: TensorRef) -> Array:
    if ref.datatype == "BYTES":
        return tensors.decode_bytes(tensors.read_raw(proxy, ref), ref.shape)
    return tensors.read(proxy, ref, numpy_types.element_dtype(ref.datatype))


def respond(lanes: Lanes, value: Any, to: ResultWriter, *, rows: int = 1) -> Array:
    """Answer one request with one output `y`."""
    return responses(lanes, [{"y": value}], [request(rows)], to)[0]["y"]


def refusal(lanes: Lanes, results: Any, to: ResultWriter, *requests: RequestRef) -> str:
    """Return the error that refuses these results: one line that names the model."""
    asked = requests or [request()]
    with pytest.raises(ResultError) as caught:
        to.write(to.check(results, len(asked)), asked, lanes[1])
    text = str(caught.value)
    assert "\n" not in text
    assert "`digits`" in text
    assert len(text) < 300
    return text
