"""From a batch on the lane to the requests a callable sees: the one copy of the inputs.

Inputs belong to the callable: writable, and valid for as long as it keeps them. Where the requests
of a batch agree in an input's type and shape, they are gathered by that same copy: request k's
array is the slice [lo:hi] of one contiguous array along the batch axis, so that `@batch` finds the
whole batch ready-made::

    Triton's memory:   …[ request 0 ]……[ request 2 ]…[ request 1 ]…
    here:              [ request 0 ][ request 1 ][ request 2 ]
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pytriton.ipc import datatypes, tensors
from pytriton.ipc.lane import Lane, RequestRef, TensorRef
from pytriton.ipc.tensors import Array
from pytriton.proxy.types import Request


def read_requests(refs: list[RequestRef], lane: Lane, *, batching: bool) -> list[Request]:
    """Copy a batch's inputs out of Triton's memory and return its requests.

    Raises:
        LaneError, ArenaError: the descriptors are wrong.
    """
    data: list[dict[str, Array]] = [{} for _ in refs]
    if len(refs) == 1 or not batching:
        for inputs, request in zip(data, refs):
            for ref in request.inputs:
                inputs[ref.name] = _copy(ref, lane)
    else:
        for name, sharing in _by_input(refs).items():
            for index, array in _gather(sharing, lane):
                data[index][name] = array
    return [
        Request(inputs, _parameters(ref.parameters), None, ref.requested)
        for inputs, ref in zip(data, refs)
    ]


def _by_input(refs: list[RequestRef]) -> dict[str, list[tuple[int, TensorRef]]]:
    """Return per input name the requests that have it, in order."""
    by_name: dict[str, list[tuple[int, TensorRef]]] = {}
    for index, request in enumerate(refs):
        for ref in request.inputs:
            by_name.setdefault(ref.name, []).append((index, ref))
    return by_name


def _gather(sharing: list[tuple[int, TensorRef]], lane: Lane) -> list[tuple[int, Array]]:
    first = sharing[0][1]
    row = first.shape[1:]
    alike = all(
        ref.datatype == first.datatype and ref.shape and ref.shape[1:] == row for _, ref in sharing
    )
    if not alike or first.datatype == "BYTES":
        return [(index, _copy(ref, lane)) for index, ref in sharing]
    dtype = datatypes.element_dtype(first.datatype)
    parts = [(index, tensors.read(lane, ref, dtype)) for index, ref in sharing]
    whole: Array = np.empty([sum(len(part) for _, part in parts), *row], dtype)
    slices = []
    start = 0
    for index, part in parts:
        end = start + len(part)
        whole[start:end] = part
        slices.append((index, whole[start:end]))
        start = end
    return slices


def _copy(ref: TensorRef, lane: Lane) -> Array:
    if ref.datatype == "BYTES":
        return tensors.decode_bytes(tensors.read_raw(lane, ref), ref.shape)
    copied: Array = tensors.read(lane, ref, datatypes.element_dtype(ref.datatype)).copy()
    return copied


def _parameters(text: str) -> dict[str, Any]:
    return json.loads(text) if len(text) > 2 else {}
