"""Creates the callable's requests from a batch on the lane. Inputs are copied here, and nowhere else.

Inputs belong to the callable: they are writable, and stay valid while it keeps them. If the requests of a batch agree
in an input's type and shape, they are copied into one contiguous array, and each request gets a slice of it along the
batch axis. So `@batch` need not concatenate them::

    Triton's memory:   …[ request 0 ]……[ request 2 ]…[ request 1 ]…
    here:              [ request 0 ][ request 1 ][ request 2 ]

A model with `zero_copy_inputs` reads Triton's memory directly, through a read-only mapping. Its arrays are valid until
the batch is answered, because Triton then reuses the memory. They may be unaligned: Triton's python backend places a
tensor's data directly after its name (seen in 2.51).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
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

#: A request's index, its lane, and the reference to one of its inputs.
_Placed = tuple[int, Lane, TensorRef]

_read_parameters = msgspec.json.Decoder(dict[str, Any]).decode
_element_dtype = cache(numpy_types.element_dtype)


def read_requests(
    parts: Sequence[Part],
    *,
    batching: bool,
    zero_copy: bool = False,
    texts: Container[str] = (),
) -> list[Request]:
    """Return the requests of one batch, or of several merged ones, with their inputs copied from Triton's memory.

    Args:
        parts: the batches, with their lanes
        batching: whether the inputs have a batch axis
        zero_copy: make numeric inputs read-only views of Triton's memory instead of copies
        texts: names of the BYTES inputs to convert to str

    Raises:
        LaneError, ArenaError: a reference is invalid.
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
    """Group the inputs of all requests by name, in the order of the requests."""
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
    """Copy an input of several requests. If all have the same type and shape, return slices of one array, and that
    array.
    """
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
    parameters: dict[str, Any]
    try:
        parameters = _read_parameters(text)
    except msgspec.DecodeError:
        parameters = json.loads(text)  # with NaN or Infinity, which only Python's json reads
    for ours in (CHAIN_PARAMETER, HANDLE_PARAMETER):  # present if another model made the request
        parameters.pop(ours, None)
    return parameters


# ── requests that lack a required input: Triton only checks the number of inputs ─────────────────────


class RequiredInputs:
    """The inputs that every request of a model must have.

    Attributes:
        names: their names; empty if no input is optional, since Triton's check of the number is then sufficient
    """

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        names = [entry["name"] for entry in config["input"] if not entry.get("optional")]
        self._model = model
        self.names = names if len(names) < len(config["input"]) else []

    def find_errors(self, batch: Batch) -> list[str | None] | None:
        """Return an error text or None for each request, or just None if no request lacks an input."""
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


def without_invalid(batch: Batch, faults: list[str | None]) -> Batch:
    """Return a batch without its invalid requests. The other requests keep the ids derived from their positions in
    the whole batch.
    """
    places = [place for place, fault in enumerate(faults) if fault is None]
    right = [
        structs.replace(batch.requests[place], request_id=id_at(batch, place)) for place in places
    ]
    trace = batch.trace
    if trace is not None:
        contexts = dict(enumerate(trace.contexts))
        trace = BatchTrace(trace.begun_ns, [contexts.get(place, "") for place in places])
    return Batch(batch.id, right, trace, batch.reads, batch.alone, batch.taken_ns)


def split_requests(batch: Batch) -> Iterator[Batch]:
    """Split a batch into batches of one request each. The requests keep their ids."""
    for place, request in enumerate(batch.requests):
        alone = structs.replace(request, request_id=id_at(batch, place))
        yield structs.replace(batch, requests=[alone], trace=None, rows=0)


def with_errors(
    answer: BatchDone | BatchFailed, faults: list[str | None], batch: Batch
) -> BatchDone:
    """Merge the answer to the valid requests with the errors of the invalid ones; return the answer to the whole batch."""
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
