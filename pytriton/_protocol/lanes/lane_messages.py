"""Messages on a lane; lane.py describes when each is sent.

They are MessagePack arrays (msgspec), tagged by type. Fields added later are at the end and may be missing; elements
that are not declared come from a later version and are ignored. The compiled proxy uses the same declarations
(scripts/generate).
"""

from __future__ import annotations

from typing import Optional, Union

import msgspec

#: The segment number of a sender's own arena.
ARENA = 0
#: The segment number of the worker's own memory, in which an offset is an address in its process.
OWN = -1


class _Descriptor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of the structures inside messages."""


class TensorRef(_Descriptor, frozen=True):
    """A tensor in shared memory: C-contiguous, little-endian. BYTES tensors are in Triton's serialized form.

    `datatype` is Triton's name, such as "FP32". `shape` includes the batch axis. `nbytes` is the size in
    memory segment `memory`. In BYTES tensors, each element is preceded by its length in 4 bytes
    (KServe v2, binary tensor data extension).
    """

    name: str
    datatype: str
    shape: list[int]
    memory: int
    offset: int
    nbytes: int


class RequestDetails(_Descriptor, frozen=True):
    """Request properties that only Triton Python models (`model.py`) use.

    `timeout` is in microseconds; `trace` is the context of a traced request, JSON.
    """

    correlation_id: Union[int, str] = 0
    flags: int = 0
    timeout: int = 0
    trace: Optional[str] = None


class RequestRef(_Descriptor, frozen=True):
    """One request of a batch. `parameters` is JSON; `requested` lists the requested outputs."""

    inputs: list[TensorRef]
    parameters: str
    requested: list[str]
    request_id: str = ""
    details: Optional[RequestDetails] = None


class ResponseDetails(_Descriptor, frozen=True):
    """Response properties that only Triton Python models set.

    `code` is the name of a Triton error code, such as "NOT_FOUND"; empty means INTERNAL. `parameters` is
    JSON. `final` marks the last response to the request. With `empty`, there is no response, only the final
    flag. With `reschedule`, there is no response either: Triton queues the request again.
    """

    code: str = ""
    parameters: str = ""
    final: bool = False
    empty: bool = False
    reschedule: bool = False


class ResponseRef(_Descriptor, frozen=True):
    """The response to one request: its outputs, or an error that affects only this request."""

    outputs: list[TensorRef]
    error: Optional[str] = None
    details: Optional[ResponseDetails] = None


class BatchTrace(_Descriptor, frozen=True):
    """The trace contexts of a batch, one for each request; "" for an untraced request.

    An entry comes from Triton (`request.trace().get_context()`): a JSON object of W3C Trace Context
    headers. `begun_ns` is when the proxy received the batch, in nanoseconds since 1970.
    """

    begun_ns: int
    contexts: list[str]


class _LaneMessage(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base class of the messages on a lane."""


class Announce(_LaneMessage, frozen=True):
    """Announcement of memory segment `memory`, whose descriptor is in the next packet."""

    memory: int


class Batch(_LaneMessage, frozen=True):
    """proxy → worker: run the callable on these requests.

    `trace` is None if the batch is not traced. With `reads`, the proxy can read outputs from the worker's own memory.
    With `alone`, the batch must not be merged: an earlier worker was lost with this batch and others. `taken_ns` is
    when tritonserver passed the batch to the proxy (CLOCK_MONOTONIC; 0: unknown); `rows` is the total number of rows.
    """

    id: int
    requests: list[RequestRef]
    trace: Optional[BatchTrace] = None
    reads: bool = False
    alone: bool = False
    taken_ns: int = 0
    rows: int = 0


class BatchDone(_LaneMessage, frozen=True):
    """worker → proxy: the responses of a batch, one for each request, in order."""

    id: int
    responses: list[ResponseRef]


class BatchLent(_LaneMessage, frozen=True):
    """worker → proxy: like `BatchDone`, but outputs are in the worker's own memory, or are large and in its arena.

    The worker waits for a `Credit`, which the proxy sends after reading them.
    """

    id: int
    responses: list[ResponseRef]


class BatchFailed(_LaneMessage, frozen=True):
    """worker → proxy: the whole batch failed; `text` is the error for the client."""

    id: int
    text: str


class Room(_LaneMessage, frozen=True):
    """worker → proxy: the maximum number of batches in flight (decoupled models).

    0 after a positive number means that the worker retires: it answers its current batches and accepts no others.
    """

    batches: int


class BatchBegun(_LaneMessage, frozen=True):
    """worker → proxy: the inputs have been copied; the next batch may be sent if `Room` allows it."""

    id: int


class BatchPart(_LaneMessage, frozen=True):
    """worker → proxy: one response each for some of a batch's requests; more may follow."""

    id: int
    responses: list[Optional[ResponseRef]]


class PartRef(_Descriptor, frozen=True):
    """An element of `BatchParts` with the content of one `BatchPart`."""

    id: int
    responses: list[Optional[ResponseRef]]


class BatchParts(_LaneMessage, frozen=True):
    """worker → proxy: several `BatchPart`s in order. Each counts separately for `Credit`."""

    parts: list[PartRef]


class BatchTexts(_LaneMessage, frozen=True):
    """worker → proxy: one response each to batches with a single request. Each is a single string, the only output.

    Like `BatchPart`s whose output is a BYTES tensor of the shape [1], but without shared memory. Used for short strings.
    `ids` and `texts` have the same length. Each text counts separately for `Credit`.
    """

    output: str
    ids: list[int]
    texts: list[str]


class BatchReturned(_LaneMessage, frozen=True):
    """worker → proxy: `execute` of a Triton Python model has returned; its responses may follow later.

    `reschedule` lists the requests that Triton must queue again, by their positions in the batch.
    """

    id: int
    reschedule: list[int] = []


#: Maximum number of labels of a metric that a proxy accepts.
MAX_LABELS = 64
MAX_BUCKETS = 1024
#: Maximum number of metrics that a proxy creates.
MAX_METRICS = 4096


#: Prefix of tritonserver's own metrics, not allowed for custom ones.
TRITONS_METRICS = "nv_"


#: The `change` with which a worker deletes a metric: the proxy deletes it, too.
DELETE = "delete"


class MetricUpdate(_Descriptor, frozen=True):
    """One change to a metric. `change` is "" (create), "increment", "set" or "observe", with `value`; or `DELETE`."""

    family: str
    description: str
    kind: str
    labels: dict[str, str]
    buckets: Optional[list[float]] = None
    change: str = ""
    value: float = 0.0


class Metrics(_LaneMessage, frozen=True):
    """worker → proxy: changes to custom metrics, in order. Acknowledged with a `Credit`, like a `BatchPart`."""

    updates: list[MetricUpdate]


class Credit(_LaneMessage, frozen=True):
    """proxy → worker: the memory of the oldest `parts` parts, or of a `BatchLent`, may be reused."""

    parts: int


class Cancel(_LaneMessage, frozen=True):
    """proxy → worker: the client is no longer waiting for this request; `request` is its position in the batch."""

    id: int
    request: int


class Hold(_LaneMessage, frozen=True):
    """proxy → worker: the client of this stream is not reading; pause the stream until `Go`."""

    id: int
    request: int


class Go(_LaneMessage, frozen=True):
    """proxy → worker: the client of this stream has read; resume the stream."""

    id: int
    request: int


class Spilled(_LaneMessage, frozen=True):
    """Reference to a message that is too large for a packet and is therefore in the sender's arena."""

    offset: int
    nbytes: int


FromWorker = Union[
    BatchDone,
    BatchLent,
    BatchFailed,
    BatchPart,
    BatchParts,
    BatchTexts,
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
    BatchTexts,
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
