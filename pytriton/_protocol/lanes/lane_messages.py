"""The messages on a lane and what they are made of; lane.py says when each is sent.

They are MessagePack arrays (msgspec), tagged by type. Fields that were added later are at the end and
may be missing; an element that is not declared is a later version's, and not looked at. The compiled proxy has
these declarations, too (scripts/generate).
"""

from __future__ import annotations

from typing import Optional, Union

import msgspec

#: The memory number of a sender's own arena.
ARENA = 0
#: The worker's own memory: the offset is an address in its process.
OWN = -1


class _Descriptor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what messages are made of."""


class TensorRef(_Descriptor, frozen=True):
    """A tensor in shared memory: C-contiguous, little-endian; BYTES as Triton serializes them.

    `datatype` is Triton's name ("FP32"), `shape` includes the batch axis, `nbytes` is the size in
    `memory`. BYTES: every element is preceded by its length in 4 bytes (KServe v2, binary tensor
    data extension).
    """

    name: str
    datatype: str
    shape: list[int]
    memory: int
    offset: int
    nbytes: int


class RequestDetails(_Descriptor, frozen=True):
    """The details of a request that only a Triton Python model (`model.py`) asks for.

    `timeout` is microseconds; `trace` the context of a traced request, JSON.
    """

    correlation_id: Union[int, str] = 0
    flags: int = 0
    timeout: int = 0
    trace: Optional[str] = None


class RequestRef(_Descriptor, frozen=True):
    """One request of a batch. `parameters` is JSON; `requested` names the outputs that the client wants."""

    inputs: list[TensorRef]
    parameters: str
    requested: list[str]
    request_id: str = ""
    details: Optional[RequestDetails] = None


class ResponseDetails(_Descriptor, frozen=True):
    """The details of a response that only a Triton Python model gives.

    `code` is the name of one of Triton's error codes ("NOT_FOUND", empty: INTERNAL), `parameters`
    JSON. `final`: no more comes for this request. `empty`: there is no response, just the final flag.
    `reschedule`: no response either; Triton shall queue the request again.
    """

    code: str = ""
    parameters: str = ""
    final: bool = False
    empty: bool = False
    reschedule: bool = False


class ResponseRef(_Descriptor, frozen=True):
    """The answer to one request: outputs, or the error of this request alone."""

    outputs: list[TensorRef]
    error: Optional[str] = None
    details: Optional[ResponseDetails] = None


class BatchTrace(_Descriptor, frozen=True):
    """The traces of a batch: `contexts` has one entry per request, "" for one that is not traced.

    An entry is what Triton gives (`request.trace().get_context()`): a JSON object of the headers of W3C
    Trace Context. `begun_ns` is when the proxy took the batch, in nanoseconds since 1970.
    """

    begun_ns: int
    contexts: list[str]


class _LaneMessage(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of the messages on a lane."""


class Announce(_LaneMessage, frozen=True):
    """The descriptor in the packet behind this message is memory number `memory` from now on."""

    memory: int


class Batch(_LaneMessage, frozen=True):
    """proxy → worker: run the callable on these requests.

    `trace` is None when nobody traces them. `reads`: outputs may lie in the worker's own memory. `alone`: a
    worker was lost with it and others, so it is merged with none. `taken_ns` is when tritonserver handed it to the
    proxy (CLOCK_MONOTONIC; 0: nobody says), `rows` what it counts in all.
    """

    id: int
    requests: list[RequestRef]
    trace: Optional[BatchTrace] = None
    reads: bool = False
    alone: bool = False
    taken_ns: int = 0
    rows: int = 0


class BatchDone(_LaneMessage, frozen=True):
    """worker → proxy: one response per request, in order."""

    id: int
    responses: list[ResponseRef]


class BatchLent(_LaneMessage, frozen=True):
    """worker → proxy: as `BatchDone`, with outputs in the worker's own memory, or much in its arena.

    The worker waits for a `Credit`, which comes when they have been read.
    """

    id: int
    responses: list[ResponseRef]


class BatchFailed(_LaneMessage, frozen=True):
    """worker → proxy: the whole batch failed with `text`, which is for the client."""

    id: int
    text: str


class Room(_LaneMessage, frozen=True):
    """worker → proxy: so many batches may be under way at once (decoupled models).

    0, after there was room: this worker retires. It answers what it has, and the next batch goes over another lane.
    """

    batches: int


class BatchBegun(_LaneMessage, frozen=True):
    """worker → proxy: the inputs have been copied; another batch may be sent, if there is room."""

    id: int


class BatchPart(_LaneMessage, frozen=True):
    """worker → proxy: one response each to some of the requests; more may follow."""

    id: int
    responses: list[Optional[ResponseRef]]


class PartRef(_Descriptor, frozen=True):
    """A part of one batch among those of others, as `BatchPart` has it."""

    id: int
    responses: list[Optional[ResponseRef]]


class BatchParts(_LaneMessage, frozen=True):
    """worker → proxy: as a `BatchPart` for each of these, in order. Each counts by itself for `Credit`."""

    parts: list[PartRef]


class BatchReturned(_LaneMessage, frozen=True):
    """worker → proxy: the `execute` of a Triton Python model has returned; its answers may still come.

    Triton shall queue the requests of `reschedule` again: places in the batch.
    """

    id: int
    reschedule: list[int] = []


#: A proxy takes metrics with at most so many.
MOST_LABELS = 64
MOST_BUCKETS = 1024
#: A proxy makes so many at most.
MOST_METRICS = 4096


#: What the names of tritonserver's own metrics begin with: no custom one may.
TRITONS_METRICS = "nv_"


#: The `change` of a metric that its worker has deleted: a proxy that holds it lets it go.
DELETE = "delete"


class MetricUpdate(_Descriptor, frozen=True):
    """One change of a metric: `change` is "" (made), "increment", "set" or "observe", by `value`, or `DELETE`."""

    family: str
    description: str
    kind: str
    labels: dict[str, str]
    buckets: Optional[list[float]] = None
    change: str = ""
    value: float = 0.0


class Metrics(_LaneMessage, frozen=True):
    """worker → proxy: changes of custom metrics, in order. Is given back by a `Credit`, as a part is."""

    updates: list[MetricUpdate]


class Credit(_LaneMessage, frozen=True):
    """proxy → worker: the memory of so many parts, or of a `BatchLent`, may be used again."""

    parts: int


class Cancel(_LaneMessage, frozen=True):
    """proxy → worker: the client of this request has gone; `request` is its place in the batch."""

    id: int
    request: int


class Hold(_LaneMessage, frozen=True):
    """proxy → worker: who asked for this stream has enough to read; make nothing more for it until `Go`."""

    id: int
    request: int


class Go(_LaneMessage, frozen=True):
    """proxy → worker: who asked for this stream has read; go on with it."""

    id: int
    request: int


class Spilled(_LaneMessage, frozen=True):
    """The message itself lies in the sender's arena."""

    offset: int
    nbytes: int


FromWorker = Union[
    BatchDone,
    BatchLent,
    BatchFailed,
    BatchPart,
    BatchParts,
    BatchBegun,
    Room,
    BatchReturned,
    Metrics,
]
FromProxy = Union[Batch, Credit, Cancel, Hold, Go]
LaneMessage = Union[
    Announce,
    Batch,
    BatchDone,
    BatchLent,
    BatchFailed,
    BatchPart,
    BatchParts,
    BatchBegun,
    Room,
    BatchReturned,
    Metrics,
    Credit,
    Cancel,
    Hold,
    Go,
    Spilled,
]
