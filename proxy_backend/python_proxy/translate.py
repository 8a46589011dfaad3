"""Translates between the stub's requests and responses (pb_utils) and the messages on a lane.

Inputs stay where Triton put them, and only references to them are sent. Outputs are read where the worker put them.
Triton copies them after `execute` has returned, before the next batch can overwrite them.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton._protocol import numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import MIN_SWEEP_BYTES, NoMemoryLeft, refuse_more_than_available
from pytriton._protocol.lanes.lane import Lane, LaneError
from pytriton._protocol.lanes.lane_messages import (
    BatchTrace,
    RequestDetails,
    RequestRef,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.proxy_backend.python_proxy import stub

#: No mapping, in the form of `_last`: addresses [start, end), the value to subtract from an address to get the file
#: offset, and the file's number on the lane.
_NOWHERE = (0, 0, 0, 0)
#: Maximum size of a gRPC message, which tritonserver copies. It rejects larger ones before that.
_MAX_BY_GRPC = (1 << 31) - 1
#: The error codes of pb_utils.TritonError. Later versions of Triton may have more.
_CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


class WrongSequenceId(ValueError):
    """A request has a sequence id that the model's control input cannot represent."""


class Translator:
    """Translates the batches of one instance of a model, for one lane at a time.

    Args:
        model: the model's name
        datatypes: input name -> Triton's datatype, such as "FP32"
        version: the version to add to the parameters of each request; None if the model has only one
        details: whether requests include the fields that only Triton Python models use
        batching: whether shapes have a batch axis
        max_sequence_id: the maximum that the control input for the sequence id can represent; None without such an input

    Attributes:
        lasting: whether translated answers must outlive the next message on the lane
    """

    def __init__(
        self,
        model: str,
        datatypes: dict[str, str],
        version: str | None = None,
        *,
        details: bool = False,
        batching: bool = False,
        max_sequence_id: int | None = None,
    ) -> None:
        self._model = model
        self._max_sequence_id = max_sequence_id
        self._batching = batching
        self.lasting = False
        self._version = version
        self._datatypes = datatypes
        self._details = details
        # Responses have parameters only after Triton 2.51.
        makes = getattr(pb_utils.InferenceResponse.__init__, "__doc__", "") if details else ""
        self._has_parameters = "parameters" in (makes or "")
        self._regions = Regions()
        self._bytes = stub.BytesTensors()
        self._announced: dict[str, int] = {}
        self._unchecked = 0  #: bytes of output tensors since the last check of available memory
        self._last = _NOWHERE

    def forget_lane(self) -> None:
        """Forget which regions have been announced, because the next batch goes over another lane."""
        self._announced.clear()
        self._last = _NOWHERE

    def requests(self, requests: Sequence[Any], lane: Lane) -> list[RequestRef]:
        """Convert a batch for the lane. BYTES tensors are copied into the lane's arena; others stay in Triton's memory.

        Raises:
            WrongSequenceId: a request has an invalid sequence id.
            UnicodeDecodeError: a text of a request is not valid UTF-8.
        """
        lane.arena.reset()
        if self._max_sequence_id is not None:
            for request in requests:
                if self._wrong_sequence_id(request) is not None:
                    raise WrongSequenceId
        if self._details:
            return [self._detailed(request, lane) for request in requests]
        return [
            RequestRef(
                [self._input(tensor, lane) for tensor in request.inputs()],
                request.parameters() if self._version is None else self._with_version(request),
                request.requested_output_names(),
                _id_for_the_log(request),
            )
            for request in requests
        ]

    def without_inputs(self, request: Any) -> RequestRef:
        """Convert only the fields needed to derive a request's id, for errors that occur before the request is sent."""
        details = RequestDetails(trace=_trace_context(request)) if self._details else None
        return RequestRef([], _parameters(request), [], _id_for_the_log(request), details)

    def count_rows(self, refs: Sequence[RequestRef]) -> int:
        """Count the rows of a batch. A request counts as one row if it has no inputs or the model has no batch axis."""
        if not self._batching:
            return len(refs)
        shapes = [ref.inputs[0].shape if ref.inputs else None for ref in refs]
        return sum(shape[0] if shape else 1 for shape in shapes)

    def refusals(self, requests: Sequence[Any]) -> list[str | None]:
        """Return an item per request: an error text if the request has invalid UTF-8 or a wrong sequence id, otherwise
        None.
        """
        return [self._refusal(request) for request in requests]

    def _refusal(self, request: Any) -> str | None:
        texts = {
            "a request parameter, its key or its value,": request.parameters,
            "the trace context": lambda: request.trace().get_context(),
        }
        if self._details:
            texts["the request id"] = request.request_id
            texts["the sequence id"] = request.correlation_id
        for what, ask in texts.items():
            try:
                ask()
            except UnicodeDecodeError:  # noqa: PERF203, this is the check
                return f"model {self._model}: {what} is not valid UTF-8"
        return self._wrong_sequence_id(request)

    def _wrong_sequence_id(self, request: Any) -> str | None:
        """Return an error text if a sequence id does not fit into the numeric control input for it, else None.

        Triton's core (2.51) would write uninitialized or truncated bytes to that input.
        """
        if self._max_sequence_id is None:
            return None
        given = request.correlation_id()
        if isinstance(given, str) and given:
            return (
                f"model {self._model}: the sequence id is a string, but the model's control input for it is a "
                "number: send a number, or declare the control's data_type as TYPE_STRING"
            )
        if isinstance(given, int) and given > self._max_sequence_id:
            return (
                f"model {self._model}: the sequence id {given} is too large for the model's control input, "
                f"whose maximum is {self._max_sequence_id}"
            )
        return None

    def release_inputs(self, lane: Lane) -> None:
        """Release the arena memory of inputs that the worker has read, if they take up a lot of it.

        That is rare, because only BYTES tensors are copied into the arena.
        """
        if lane.arena.large:
            lane.arena.reset()
            lane.arena.give_back(at_once=True)

    def _with_version(self, request: Any) -> str:
        parameters = json.loads(request.parameters() or "{}")
        return json.dumps({**parameters, VERSION_PARAMETER: self._version})

    def responses(self, responses: Sequence[ResponseRef], lane: Lane) -> list[Any]:
        """Convert the worker's responses to a batch into stub responses."""
        return [self.response(response, lane) for response in responses]

    def response(self, response: ResponseRef, lane: Lane) -> Any:
        """Convert one of the worker's responses into a stub response."""
        details = response.details
        if response.error is not None:
            return failure(response.error, details and error_code(details.code))
        try:
            outputs = [self.tensor(ref, lane) for ref in response.outputs]
        except NoMemoryLeft as error:  # there may be enough memory for other responses
            return unavailable(str(error))
        if details is not None and details.parameters and self._has_parameters:
            return pb_utils.InferenceResponse(outputs, parameters=json.loads(details.parameters))
        return pb_utils.InferenceResponse(outputs)

    def _detailed(self, request: Any, lane: Lane) -> RequestRef:
        return RequestRef(
            [self._input(tensor, lane) for tensor in request.inputs()],
            request.parameters(),
            sorted(request.requested_output_names()),
            request.request_id(),
            RequestDetails(
                request.correlation_id(),
                request.flags(),
                request.timeout(),
                request.trace().get_context(),
            ),
        )

    def _input(self, tensor: Any, lane: Lane) -> TensorRef:
        name = tensor.name()
        datatype = self._datatypes[name]
        if datatype == "BYTES":
            return self.serialized(name, tensor, lane)
        shape = tensor.shape()
        nbytes = math.prod(shape) * numpy_types.NUMERIC[datatype].itemsize
        if nbytes == 0:
            return TensorRef(name, datatype, shape, 0, 0, 0)
        address = stub.address_of(tensor)
        start, end, shift, memory = self._last
        if not (start <= address and address + nbytes <= end):
            start, end, shift, memory = self._last = self._find(name, address, nbytes, lane)
        return TensorRef(name, datatype, shape, memory, address - shift, nbytes)

    def _find(self, name: str, address: int, nbytes: int, lane: Lane) -> tuple[int, int, int, int]:
        mapping = self._regions.find(address, nbytes)
        if mapping is None:
            raise RuntimeError(
                f"input {name} is at {address:#x}, outside all shared memory that tritonserver maps"
            )
        memory = self._announced.get(mapping.path) or self._announce(mapping.path, lane)
        return mapping.start, mapping.end, mapping.start - mapping.offset, memory

    def _announce(self, path: str, lane: Lane) -> int:
        number = len(self._announced) + 1  # 0 is the arena
        lane.announce(number, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self._announced[path] = number
        return number

    def serialized(self, name: str, tensor: Any, lane: tensors.Writable) -> TensorRef:
        """Copy a BYTES stub tensor into the arena, and return a reference to it."""
        shape = tensor.shape()
        raw = self._bytes.serialized(tensor)
        data = tensors.encode_bytes(tensor.as_numpy()) if raw is None else raw.data
        return tensors.write_raw(lane, name, "BYTES", shape, data)

    def text_response(self, output: str, text: str) -> Any:
        """Create a stub response whose only output is one string."""
        data = text.encode()
        serialized = memoryview(len(data).to_bytes(4, "little") + data)
        try:
            self._check_memory(output, len(serialized))
        except NoMemoryLeft as error:
            return unavailable(str(error))
        return pb_utils.InferenceResponse([self._bytes_tensor(output, [1], serialized)])

    def _bytes_tensor(self, name: str, shape: list[int], data: memoryview) -> Any:
        tensor = self._bytes.make(name, shape, data)
        if tensor is None:
            tensor = pb_utils.Tensor(name, tensors.decode_bytes(data, shape))
        return tensor

    def _check_memory(self, name: str, nbytes: int) -> None:
        """Count the bytes of an output. Once enough have accumulated, check that there is enough memory for the copies of
        this output that the stub, tritonserver and gRPC will make.

        Raises:
            NoMemoryLeft: there is not enough memory. tritonserver's gRPC frontend would abort the process in that case.
        """
        self._unchecked += nbytes
        if self._unchecked < MIN_SWEEP_BYTES:
            return
        self._unchecked = 0
        try:
            refuse_more_than_available(2 * nbytes + min(nbytes, _MAX_BY_GRPC))
        except NoMemoryLeft as error:
            raise NoMemoryLeft(
                f"tensor {name} of {nbytes} bytes cannot be passed on: {error}"
            ) from None

    def tensor(self, ref: TensorRef, lane: tensors.Memories) -> Any:
        """Convert a worker's tensor to a stub tensor."""
        self._check_memory(ref.name, max(0, ref.nbytes))
        if ref.datatype == "BYTES":
            data = memoryview(bytes(tensors.read_raw(lane, ref)))  # the worker could change it
            tensors.check_bytes(data, ref.shape)
            return self._bytes_tensor(ref.name, ref.shape, data)
        dtype = numpy_types.NUMERIC.get(ref.datatype)
        if dtype is None:
            raise LaneError(
                f"the worker sent output {ref.name} with the datatype {ref.datatype!r:.40}"
            )
        array = tensors.read(lane, ref, dtype)
        if ref.datatype == "BF16":
            return stub.bf16_tensor(ref.name, array.copy())
        return pb_utils.Tensor(ref.name, array.copy() if self.lasting else array)


def error_code(name: str) -> Any | None:
    """Return the code of this name in pb_utils.TritonError; None if this version of Triton lacks it."""
    return getattr(pb_utils.TritonError, name, None) if name.isupper() else None


def failure(text: str, code: Any | None = None) -> Any:
    """Create an error response. `code` is a code of pb_utils.TritonError; None stands for INTERNAL."""
    error = pb_utils.TritonError(text) if code is None else pb_utils.TritonError(text, code)
    return pb_utils.InferenceResponse(output_tensors=[], error=error)


def refused(text: str) -> Any:
    """Create the error response to an invalid request, with the code INVALID_ARG."""
    return failure(text, error_code("INVALID_ARG"))


def unavailable(text: str) -> Any:
    """Create the error response of a model without workers, with the code UNAVAILABLE."""
    return failure(text, getattr(pb_utils.TritonError, "UNAVAILABLE", None))


def code_name(error: Any) -> str:
    """Return the name of a pb_utils.TritonError's code."""
    code = error.code()
    names = (name for name in _CODES if getattr(pb_utils.TritonError, name, None) == code)
    return next(names, "INTERNAL")


def _id_for_the_log(request: Any) -> str:
    return _text_of(request.request_id)  # a request with an invalid id is served nevertheless


def _parameters(request: Any) -> str:
    return _text_of(request.parameters)


def _trace_context(request: Any) -> str:
    return _text_of(lambda: request.trace().get_context())


def _text_of(ask: Callable[[], Any]) -> str:
    try:
        return str(ask() or "")
    except UnicodeDecodeError:
        return ""


# ── the location of a tensor: from an address in this process to a shared memory file and an offset ──

_SHARED_MEMORY = "/dev/shm/"


@dataclass(frozen=True)
class Mapping:
    """A mapping of shared memory: addresses [start, end) are the file's bytes from `offset` on."""

    start: int
    end: int
    offset: int
    path: str


class Regions:
    """This process's mappings of named shared memory."""

    def __init__(self) -> None:
        self._mappings: list[Mapping] = []

    def find(self, address: int, nbytes: int) -> Mapping | None:
        """Return the mapping that contains these bytes; None if they are not in shared memory."""
        return self._cached(address, nbytes) or self._fresh(address, nbytes)

    def paths(self) -> set[str]:
        """Return the paths of the shared memory files that are mapped now."""
        self._mappings = _read_mappings()
        return {mapping.path for mapping in self._mappings}

    def _cached(self, address: int, nbytes: int) -> Mapping | None:
        for mapping in self._mappings:
            if mapping.start <= address and address + nbytes <= mapping.end:
                return mapping
        return None

    def _fresh(self, address: int, nbytes: int) -> Mapping | None:
        self._mappings = _read_mappings()
        return self._cached(address, nbytes)


def _read_mappings() -> list[Mapping]:
    """Parse /proc/self/maps (proc(5)): "start-end perms offset device inode path"."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(_SHARED_MEMORY) and "s" in fields[1]:
                start, end = (int(edge, 16) for edge in fields[0].split("-"))
                if os.path.exists(fields[5]):  # not "… (deleted)"
                    found.append(Mapping(start, end, int(fields[2], 16), fields[5]))
    return found


# ── the trace contexts of a batch's requests: parents of the worker's OpenTelemetry spans ────────────
#
# Reading them takes some microseconds per request. So the proxy reads them only if the dispatcher reports that tritonserver
# traces with OpenTelemetry (`Attached.tracing`). tritonserver cannot change its trace mode while it runs.


def trace_of(requests: Sequence[Any]) -> BatchTrace | None:
    """Return the trace contexts of a batch's requests; None if no request is traced."""
    begun_ns = time.time_ns()
    contexts = [request.trace().get_context() or "" for request in requests]
    return BatchTrace(begun_ns, contexts) if any(contexts) else None
