"""Creates the requests for a callable from a batch on the lane: the only copy of the inputs.

Inputs belong to the callable: writable, and valid for as long as it keeps them. If the requests
of a batch agree in an input's type and shape, the same copy gathers them: request k's
array is the slice [lo:hi] of one contiguous array along the batch axis, so `@batch` finds the
whole batch ready-made::

    Triton's memory:   …[ request 0 ]……[ request 2 ]…[ request 1 ]…
    here:              [ request 0 ][ request 1 ][ request 2 ]

A model with `zero_copy_inputs` reads Triton's memory directly, through a read-only mapping.
Its arrays are valid until the batch is answered: then Triton reuses the memory. They may be
unaligned: Triton's python backend (seen in 2.51) puts a tensor's data directly after its name.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import structs

from pytriton._protocol import numpy_types
from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestRef,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.lanes.request_records import id_at
from pytriton._protocol.lanes.tensors import Array
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.proxy.results import Pieces
from pytriton.proxy.types import Request
from pytriton.worker.request_log import Part

#: The request's index, its lane, and where its input lies.
_Placed = tuple[int, Lane, TensorRef]

_element_dtype = cache(numpy_types.element_dtype)


def read_requests(
    parts: Sequence[Part],
    *,
    batching: bool,
    zero_copy: bool = False,
    texts: Container[str] = (),
) -> list[Request]:
    """Return the requests of one batch, or of several merged, with their inputs copied from Triton's memory.

    With `zero_copy`, numeric inputs are read-only views instead. `texts` lists BYTES inputs to convert to str.

    Raises:
        LaneError, ArenaError: the references are invalid.
        TextError: an input to convert to str is not UTF-8.
    """
    refs = [request for part in parts for request in part.batch.requests]
    if zero_copy:
        return [
            _request(ref, {tensor.name: _view(tensor, part.lane, texts) for tensor in ref.inputs})
            for part in parts
            for ref in part.batch.requests
        ]
    if len(refs) == 1 or not batching:
        lane = parts[0].lane
        return [
            _request(ref, {tensor.name: _copy(tensor, lane, texts) for tensor in ref.inputs})
            for ref in refs
        ]
    requests = [_request(ref, {}) for ref in refs]
    wholes: dict[str, Array] = {}
    slices: dict[str, list[Array]] = {}
    for name, sharing in _by_input(parts).items():
        arrays, whole = _gather(sharing, texts)
        for (index, _, _), array in zip(sharing, arrays):
            requests[index].data[name] = array
        if whole is not None:
            wholes[name], slices[name] = whole, arrays
    return Pieces(requests, wholes, slices)


def _request(ref: RequestRef, data: dict[str, Array]) -> Request:
    text = ref.parameters
    parameters = _parameters(text) if len(text) > 2 else {}
    return Request(data, parameters, None, ref.requested, None, ref)


def _by_input(parts: Sequence[Part]) -> dict[str, list[_Placed]]:
    """Return, per input name, the requests that have it, in order."""
    by_name: dict[str, list[_Placed]] = {}
    index = 0
    for part in parts:
        lane = part.lane
        for request in part.batch.requests:
            for ref in request.inputs:
                placed = (index, lane, ref)
                if ref.name in by_name:
                    by_name[ref.name].append(placed)
                else:
                    by_name[ref.name] = [placed]
            index += 1
    return by_name


def _gather(sharing: list[_Placed], texts: Container[str]) -> tuple[list[Array], Array | None]:
    """Return an input of several requests. If they agree, these are slices of one array, which is returned, too."""
    first = sharing[0][2]
    row = first.shape[1:]
    datatype = first.datatype
    for _, _, ref in sharing:
        if datatype == "BYTES" or ref.datatype != datatype or not ref.shape or ref.shape[1:] != row:
            return [_copy(ref, lane, texts) for _, lane, ref in sharing], None
    dtype = _element_dtype(datatype)
    whole: Array = np.concatenate([tensors.read(lane, ref, dtype) for _, lane, ref in sharing])
    slices = []
    start = 0
    for _, _, ref in sharing:
        end = start + ref.shape[0]
        slices.append(whole[start:end])
        start = end
    return slices, whole


def _copy(ref: TensorRef, lane: Lane, texts: Container[str]) -> Array:
    if ref.datatype == "BYTES":
        return _strings(ref, lane, texts)
    copied: Array = tensors.read(lane, ref, _element_dtype(ref.datatype)).copy()
    return copied


def _view(ref: TensorRef, lane: Lane, texts: Container[str]) -> Array:
    if ref.datatype == "BYTES":
        return _strings(ref, lane, texts)
    return tensors.read(lane, ref, _element_dtype(ref.datatype))


def _strings(ref: TensorRef, lane: Lane, texts: Container[str]) -> Array:
    array = tensors.decode_bytes(tensors.read_raw(lane, ref), ref.shape)
    return tensors.as_text(ref.name, array) if ref.name in texts else array


def _parameters(text: str) -> dict[str, Any]:
    parameters: dict[str, Any] = json.loads(text)
    for ours in (CHAIN_PARAMETER, HANDLE_PARAMETER):  # of a request made by another model
        parameters.pop(ours, None)
    return parameters


# ── requests that lack an input: Triton only counts inputs, so they are refused here ─────────────────


class RequiredInputs:
    """The inputs that every request of a model must have. `names` is empty if Triton's count is sufficient."""

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        names = [entry["name"] for entry in config["input"] if not entry.get("optional")]
        self._model = model
        self.names = names if len(names) < len(config["input"]) else []

    def lacking(self, batch: Batch) -> list[str | None] | None:
        """Return the error of each request (None if valid), or None if all are valid."""
        if not self.names:
            return None
        found = [self._fault(request) for request in batch.requests]
        return found if any(found) else None

    def _fault(self, request: RequestRef) -> str | None:
        given = [ref.name for ref in request.inputs]
        for name in self.names:
            if name not in given:
                return (
                    f"the request lacks the input `{name}` of model `{self._model}`, which is not "
                    f"optional; it has {', '.join(f'`{one}`' for one in given) or 'none'}."
                )
        return None


def complete(batch: Batch, faults: list[str | None]) -> Batch:
    """Return a batch without the invalid requests; the others keep their ids, which count positions."""
    places = [place for place, fault in enumerate(faults) if fault is None]
    right = [
        structs.replace(batch.requests[place], request_id=id_at(batch, place)) for place in places
    ]
    trace = batch.trace
    if trace is not None:
        contexts = dict(enumerate(trace.contexts))
        trace = BatchTrace(trace.begun_ns, [contexts.get(place, "") for place in places])
    return Batch(batch.id, right, trace, batch.reads, batch.alone, batch.taken_ns)


def one_by_one(batch: Batch) -> Iterator[Batch]:
    """Yield a batch for each request, which keeps its id."""
    for place, request in enumerate(batch.requests):
        alone = structs.replace(request, request_id=id_at(batch, place))
        yield structs.replace(batch, requests=[alone], trace=None, rows=0)


def with_faults(
    answer: BatchDone | BatchFailed, faults: list[str | None], batch: Batch
) -> BatchDone:
    """Return the answer to the whole batch from the answer to its `complete` part."""
    return BatchDone(answer.id, list(_responses(answer, faults, batch)))


def _responses(
    answer: BatchDone | BatchFailed, faults: list[str | None], batch: Batch
) -> Iterator[ResponseRef]:
    given = iter(answer.responses if isinstance(answer, BatchDone) else ())
    failed = answer.text if isinstance(answer, BatchFailed) else None
    for place, fault in enumerate(faults):
        text = fault or failed
        if text is None:
            yield next(given)
        else:
            yield ResponseRef([], with_id(text, id_at(batch, place)))
