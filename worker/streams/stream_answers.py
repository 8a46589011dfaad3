"""Decoupled models: the answers to a batch go out as the callable makes them, as fast as the proxy takes them.

Parts wait in the lane's arena until the proxy has passed them on (`Credit`); no more than `_PARTS` of
them (of many streams `_EACH` for each), and about `_BYTES`. Then a generator is not asked for the next one: it waits at
its `yield`. So it does where another model asked for the stream and has enough to read (`Hold`), until that has read
(`Go`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchPart,
    Cancel,
    Credit,
    FromProxy,
    FromWorker,
    Go,
    Hold,
    Metrics,
    ResponseRef,
    Room,
)
from pytriton._protocol.lanes.request_names import id_at
from pytriton._protocol.lanes.stats_page import Gauge
from pytriton._protocol.lanes.tensors import TextError
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.one_text import OneText
from pytriton.worker.callable_errors import reason
from pytriton.worker.fault_reports import report_error, told
from pytriton.worker.outputs.results import ResultError, ResultWriter
from pytriton.worker.request_ids import trace_of
from pytriton.worker.request_log import nbytes_of, type_of
from pytriton.worker.tracing.batch_spans import NO_SPANS, NoSpans, Spans

_PARTS = 32
#: For each of many streams: one that waits for room has to be woken, and so have all beside it.
_EACH = 8
_BYTES = 8 << 20


class ExecutionTimeout(TimeoutError):
    """A batch took longer than the model's `execution_timeout_s`; the text says how long that is."""


class Outbox:
    """One lane of a decoupled model's worker: what is under way on it."""

    def __init__(self, lane: Lane, batches: int) -> None:
        """Say to the proxy how many batches it may send at once."""
        self.lane = lane
        self.streams: dict[int, Stream] = {}
        self._batches = batches
        self._parts = 0  #: that no credit was given for yet
        lane.send(Room(batches))

    @property
    def full(self) -> bool:
        """Whether the proxy has to take something first."""
        parts = self._parts
        if parts < _PARTS and self.lane.arena.used < _BYTES:
            return False
        return parts >= max(_PARTS, _EACH * len(self.streams)) or (
            parts > 0 and self.lane.arena.used >= _BYTES
        )

    def put(self, message: BatchPart | Metrics) -> None:
        """Send a part, or what else is given back by a credit."""
        self.lane.send(message)
        self._parts += 1

    def send(self, message: FromWorker) -> None:
        """Send what no credit is given for."""
        self.lane.send(message)

    def retire(self) -> bool:
        """Have the proxy send no more batches, as this worker retires; return False if the lane can just be closed.

        What comes before the proxy has heard it is to be served: with the lane, all streams on it would end.
        """
        if not self.streams:
            return False
        with contextlib.suppress(LaneClosed, LaneError):  # who sends the next part is told
            self.send(Room(0))
        return True

    def heard(self, message: FromProxy | FromWorker) -> Batch | None:
        """Take note of what the proxy says; return a batch for the caller to begin.

        Raises:
            LaneError: that is not for a worker, or a batch that there is no room for.
        """
        if isinstance(message, Batch):
            if message.id in self.streams:
                raise LaneError(f"batch {message.id} is under way already")
            if len(self.streams) >= self._batches:
                raise LaneError("there is no room for another batch")
            return message
        if isinstance(message, Credit):
            self._parts -= message.parts
            if self._parts < 0:
                raise LaneError(f"{message.parts} parts were given back, more than there were")
            if self._parts == 0:
                self.lane.arena.reset()
        elif isinstance(message, (Cancel, Hold, Go)):
            if message.id in self.streams:
                self._heard_of_request(self.streams[message.id], message)
        else:
            raise LaneError(f"{type(message).__name__} is not for a worker")
        return None

    @staticmethod
    def _heard_of_request(stream: Stream, message: Cancel | Hold | Go) -> None:
        if isinstance(message, Cancel):
            stream.cancel(message.request)
        elif isinstance(message, Hold):
            stream.hold(message.request)
        else:
            stream.go(message.request)

    def listen(self, *, wait: bool) -> None:
        """Hear what the proxy has said meanwhile; with `wait`, at least one message.

        Raises:
            LaneClosed: it is gone.
            LaneError: it sent a batch that there is no room for.
        """
        while True:
            try:
                message = self.lane.receive(wait=wait)
            except LaneSilent:
                return
            if self.heard(message) is not None:
                raise LaneError("there is no room for another batch")
            wait = False


class Stream:
    """The answers to one batch."""

    def __init__(
        self,
        outbox: Outbox,
        batch: Batch,
        writer: ResultWriter,
        spans: Spans | NoSpans = NO_SPANS,
        *,
        gauge: Gauge,
    ) -> None:
        self.id = batch.id
        self.spans = spans
        #: Why it failed: one of gauge.FAILURES; "" as long as it has not.
        self.failure = ""
        #: The type of the exception that it failed by.
        self.error = ""
        #: Bytes of its answers; None where nobody wants to know.
        self.bytes_out: int | None = 0 if gauge.records.all_wanted else None
        self.begun_ns = gauge.begin(len(batch.requests), batch.rows, batch.taken_ns)
        self._last_ns = 0  #: when the last part was sent
        self._gauge = gauge
        self._outbox = outbox
        self.batch = batch
        self._requests = batch.requests
        self._writer = writer
        self._cancelled: set[int] = set()
        self._held: set[int] = set()
        self._held_since = 0.0
        self._held_s = 0.0
        outbox.streams[batch.id] = self

    @property
    def lane(self) -> Lane:
        """The lane on which the answers go out."""
        return self._outbox.lane

    def begun(self) -> None:
        """Tell the proxy that the batch has begun: its inputs have been copied."""
        self._outbox.send(BatchBegun(self.id))

    def put(self, results: Any) -> None:
        """Send one response to each request; None for a request sends it nothing.

        Raises:
            ResultError: they are not as declared.
            ArenaError: no memory for them.
            LaneClosed: the proxy is gone.
        """
        responses = self._text(results) if type(results) is OneText else None
        if responses is None:
            checked = self._writer.checked(results, len(self._requests))
            responses = [self._response(index, result) for index, result in enumerate(checked)]
            if not any(response is not None for response in responses):
                return
        self._outbox.put(BatchPart(self.id, responses))
        if self.bytes_out is not None:
            self.bytes_out += sum(map(nbytes_of, responses))
        last_ns = self._last_ns
        self._last_ns = self._gauge.responded(last_ns or self.begun_ns, first=not last_ns)

    def cancel(self, index: int) -> None:
        """Note that the client of a request has gone."""
        self._cancelled.add(index)
        self.go(index)

    def hold(self, index: int) -> None:
        """Pause the stream of a request: the model that called for it has enough to read."""
        if index not in self._cancelled and not self._held:
            self._held_since = time.monotonic()
        if index not in self._cancelled:
            self._held.add(index)

    def go(self, index: int) -> None:
        """Resume the stream of a request: the model that called for it has read."""
        if self._held == {index}:
            self._held_s += time.monotonic() - self._held_since
        self._held.discard(index)

    @property
    def must_wait(self) -> bool:
        """Whether the proxy or a calling model has to read before the next answers are made."""
        return self._outbox.full or bool(self._held)

    @property
    def held_s(self) -> float:
        """The seconds spent waiting for calling models to read; not part of the callable's time."""
        return self._held_s + (time.monotonic() - self._held_since if self._held else 0.0)

    def is_cancelled(self, index: int) -> bool:
        """Whether the client of a request has gone."""
        return index in self._cancelled

    @property
    def abandoned(self) -> bool:
        """Whether the clients of all requests have gone."""
        return len(self._cancelled) >= len(self._requests)

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing more comes."""
        del self._outbox.streams[self.id]
        end: BatchDone | BatchFailed = BatchDone(self.id, [])
        if error is not None:
            self.failure, self.error = _failure_of(error), type_of(error)
            self._gauge.failed(self.failure, len(self._requests))
            report_error(error, batches=[self.batch])
            end = BatchFailed(self.id, told(error))
            self.spans.failed(end.text)
        self.spans.end()
        if self.batch.trace is not None:
            self._gauge.traced(trace_of(self.batch), self.begun_ns)
        self._outbox.send(end)

    def forget(self) -> None:
        """Drop the stream without telling the proxy, which is gone."""
        self._outbox.streams.pop(self.id, None)
        self.spans.end()

    def _text(self, text: OneText) -> list[ResponseRef | None] | None:
        """Return the only response of a text to the only request; None where one has to look closer."""
        if self._cancelled or len(self._requests) != 1:
            return None
        response = self._writer.write_text(text, self._requests[0], self._outbox.lane)
        return None if response is None else [response]

    def _response(self, index: int, result: Any) -> ResponseRef | None:
        if result is None or index in self._cancelled:
            return None
        if type(result) is not dict and isinstance(result, BaseException):
            return self._refused(index, result)
        return self._writer.write([result], [self._requests[index]], self._outbox.lane)[0]

    def _refused(self, index: int, error: BaseException) -> ResponseRef:
        """Return the last answer to a request, an exception of its own; the others go on."""
        if isinstance(reason(error), PyTritonUnrecoverableError):
            raise error
        self._cancelled.add(index)  # nothing more is sent to it
        if len(self._requests) == 1:
            self.failure, self.error = "callable", type_of(error)
        self._gauge.failed("callable", 1)
        request_id = id_at(self.batch, index)
        report_error(error, ids=[request_id])
        return ResponseRef([], with_id(told(error), request_id))


def _failure_of(error: BaseException) -> str:
    """Return which of gauge.FAILURES the exception that ended a stream is."""
    if isinstance(reason(error), PyTritonUnrecoverableError):
        return "unrecoverable"
    if isinstance(error, ExecutionTimeout):
        return "timeout"
    if isinstance(error, TextError):
        return "input"
    return "result" if isinstance(error, (ResultError, ArenaError)) else "callable"


def parts_of(produced: Any) -> Any:
    """Return what to iterate over for what a synchronous callable returned: a list is one part.

    So is a callable, which a forgotten factory makes: the part's check says so.
    """
    is_part = isinstance(produced, Sequence) or (
        callable(produced) and not isinstance(produced, Iterable)
    )
    return iter([produced]) if is_part else produced
