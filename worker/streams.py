"""Sends the answers of decoupled models as the callable produces them, but no faster than the proxy forwards them.

Parts stay in the lane's arena until the proxy has forwarded them (`Credit`). When `_PARTS` of them (with many streams,
`_EACH` per stream) or about `_BYTES` are waiting, the generator is paused at its `yield`. It is also paused while the
lane's socket has no room (messages are then queued), and while another model that requested the stream has enough unread
responses (from `Hold` to `Go`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchPart,
    BatchTexts,
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
from pytriton._protocol.lanes.request_records import id_at
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.exceptions import HTTPError, PyTritonUnrecoverableError
from pytriton.proxy.results import OneText
from pytriton.worker.fault_reports import client_text, reason, report_error, response_to_error
from pytriton.worker.request_log import nbytes_of, trace_of, type_of
from pytriton.worker.results import ResultWriter, failure_kind
from pytriton.worker.tracing import NO_SPANS, NoSpans, Spans

_PARTS = 32
#: Per stream if there are many, because room for one part wakes all streams that wait for room.
_EACH = 8
_BYTES = 8 << 20
#: Maximum size in bytes of a text that is sent inside a message, and number of unread parts below which one may be.
#: Linux's default socket buffer (208 KiB) has room for 160 messages of this size.
INLINE_BYTES = 512
INLINE_PARTS = 64


class Outbox:
    """The worker's end of a lane of a decoupled model: flow control, and the batches in flight.

    Args:
        lane: the lane
        batches: how many batches the proxy may send at once, which is announced to it
        on_full: called when messages begin to wait for room in the socket: the caller must then call `lane.flush`
            when the lane becomes writable. By default, only `listen` and `drain` do that.
    """

    def __init__(
        self, lane: Lane, batches: int, on_full: Callable[[], None] = lambda: None
    ) -> None:
        self.lane = lane
        self.streams: dict[int, BatchStream] = {}
        self.cancelled = False  #: whether a client has disconnected, for the loop to reset
        self._batches = batches
        self._parts = 0  #: sent, and not yet acknowledged by a credit
        lane.queue_when_full(on_full)
        lane.send(Room(batches))

    @property
    def full(self) -> bool:
        """Return True if the worker must not send more until the proxy has read some parts."""
        parts = self._parts
        if not self.lane.is_flushed:
            return True
        if parts < _PARTS and self.lane.arena.used < _BYTES:
            return False
        return parts >= max(_PARTS, _EACH * len(self.streams)) or (
            parts > 0 and self.lane.arena.used >= _BYTES
        )

    @property
    def is_idle(self) -> bool:
        """Return True if no batch is in flight and no message is queued. The lane can then be closed."""
        return not self.streams and self.lane.is_flushed

    def put(self, message: BatchPart | Metrics) -> None:
        """Send a part, or another message that the proxy acknowledges with a credit."""
        self.lane.send(message)
        self._parts += 1

    def put_text(self, number: int, output: str, text: str) -> bool:
        """Send a part of batch `number` that is one short string. Return False if it must be sent in shared memory."""
        if self._parts >= INLINE_PARTS:
            return False
        self.lane.send(BatchTexts(output, [number], [text]))
        self._parts += 1
        return True

    def send(self, message: FromWorker) -> None:
        """Send a message that needs no credit.

        It must fit into a packet: the proxy may acknowledge all parts, which frees the arena, before it reads the message.
        """
        self.lane.send(message)

    def retire(self) -> bool:
        """If batches are in flight or messages are queued, ask the proxy to send no more batches. Otherwise return
        False: the lane can be closed.

        Batches that arrive before the proxy has read this must be served, because closing the lane would end its streams.
        """
        if self.is_idle:
            return False
        with contextlib.suppress(LaneClosed, LaneError):  # the next part raises the error
            self.send(Room(0))
        return True

    def heard(self, message: FromProxy | FromWorker) -> Batch | None:
        """Process a message from the proxy. If it is a batch, return the batch, which the caller must then begin.

        Raises:
            LaneError: the message is not for a worker, or is a batch for which there is no room.
        """
        if isinstance(message, Batch):
            if message.id in self.streams:
                raise LaneError(f"batch {message.id} is already in flight")
            if len(self.streams) >= self._batches:
                raise LaneError("there is no room for another batch")
            return message
        if isinstance(message, Credit):
            self._parts -= message.parts
            if self._parts < 0:
                raise LaneError(f"{message.parts} parts were acknowledged, more than were sent")
            if self._parts == 0 and self.lane.is_flushed:  # a queued message may refer to the arena
                self.lane.arena.reset()
        elif isinstance(message, (Cancel, Hold, Go)):
            if message.id in self.streams:
                self._on_request_message(self.streams[message.id], message)
        else:
            raise LaneError(f"unexpected message from the proxy: {type(message).__name__}")
        return None

    def _on_request_message(self, stream: BatchStream, message: Cancel | Hold | Go) -> None:
        if isinstance(message, Cancel):
            stream.cancel(message.request)
            self.cancelled = True
        elif isinstance(message, Hold):
            stream.hold(message.request)
        else:
            stream.go(message.request)

    def listen(self, *, wait: bool) -> None:
        """Process the messages that the proxy has sent, and send queued ones. With `wait`, wait until either is possible.

        Raises:
            LaneClosed: the proxy is gone.
            LaneError: the proxy sent a batch for which there is no room.
        """
        while True:
            if not self.lane.is_flushed:
                if wait:
                    self.lane.wait_until_writable(or_readable=True)
                    wait = False
                self.lane.flush()
            try:
                message = self.lane.receive(wait=wait)
            except LaneSilent:
                return
            if self.heard(message) is not None:
                raise LaneError("there is no room for another batch")
            wait = False

    def drain(self) -> None:
        """Wait until all queued messages have been sent.

        Raises:
            LaneClosed: the proxy is gone.
            LaneError: sending failed.
        """
        while not self.lane.flush():
            self.lane.wait_until_writable()


class BatchStream:
    """A batch in flight, which is answered with a stream of parts."""

    def __init__(
        self,
        outbox: Outbox,
        batch: Batch,
        writer: ResultWriter,
        spans: Spans | NoSpans = NO_SPANS,
        *,
        stats: WorkerStatsPage,
    ) -> None:
        self.id = batch.id
        self.spans = spans
        #: Why it failed: one of stats_page.FAILURES; "" if it has not.
        self.failure = ""
        #: The type of the exception that caused the failure.
        self.error = ""
        #: Size of the answers so far in bytes; None if it is not recorded.
        self.bytes_out: int | None = 0 if stats.records.all_wanted else None
        self.begun_ns = stats.begin(len(batch.requests), batch.rows, batch.taken_ns)
        self._last_ns = 0  #: when the last part was sent
        self._stats = stats
        self._outbox = outbox
        self.batch = batch
        self._requests = batch.requests
        self._writer = writer
        #: Name of the output if a string may be the response to the only request; otherwise None.
        self._text_output = writer.text_output(batch.requests)
        self._cancelled: set[int] = set()
        self._held: set[int] = set()
        self._held_since = 0.0
        self._held_s = 0.0
        outbox.streams[batch.id] = self

    @property
    def lane(self) -> Lane:
        """Return the lane on which the answers are sent."""
        return self._outbox.lane

    def send_begun(self) -> None:
        """Notify the proxy that the worker has copied the inputs and begun the batch."""
        self._outbox.send(BatchBegun(self.id))

    def put(self, results: Any) -> None:
        """Send a response to each request, except to those whose result is None.

        Raises:
            ResultError: the results do not match the declaration.
            ArenaError: not enough memory.
            LaneClosed: the proxy is gone.
        """
        if type(results) is OneText and self._put_text(results.name, results.text):
            return
        checked = self._writer.check(results, len(self._requests))
        responses = [self._response(index, result) for index, result in enumerate(checked)]
        if not any(response is not None for response in responses):
            return
        self._put_part(responses)

    def put_text(self, output: str, text: str) -> bool:
        """Send a text as the response to the only request. Return False if the callable must pause at its next `yield`
        until there is room, or must stop because the client has disconnected.

        Raises: as `put` does
        """
        if not self._put_text(output, text):
            self.put(OneText(output, text))
        return not (self._outbox.full or self._held or self._cancelled)

    def _put_text(self, output: str, text: str) -> bool:
        """Send a text as the response to the only request. Return False if that needs the general path."""
        if output != self._text_output or self._cancelled:
            return False
        # Here, an invalid text fails only this stream. In a message with texts of others, it would fail all of them.
        nbytes = len(text) if text.isascii() else len(text.encode())
        if nbytes > INLINE_BYTES or not self._outbox.put_text(self.id, output, text):
            ref = tensors.write_string(self._outbox.lane, output, text.encode())
            self._put_part([ResponseRef([ref])])
            return True
        if self.bytes_out is not None:
            self.bytes_out += 4 + nbytes
        last_ns = self._last_ns
        self._last_ns = self._stats.responded(last_ns or self.begun_ns, first=not last_ns)
        return True

    def _put_part(self, responses: list[ResponseRef | None]) -> None:
        self._outbox.put(BatchPart(self.id, responses))
        if self.bytes_out is not None:
            self.bytes_out += sum(map(nbytes_of, responses))
        last_ns = self._last_ns
        self._last_ns = self._stats.responded(last_ns or self.begun_ns, first=not last_ns)

    def cancel(self, index: int) -> None:
        """Record that the client of a request is gone."""
        self._cancelled.add(index)
        self.go(index)

    def hold(self, index: int) -> None:
        """Pause the stream of a request, because the calling model has enough unread responses."""
        if index not in self._cancelled and not self._held:
            self._held_since = time.monotonic()
        if index not in self._cancelled:
            self._held.add(index)

    def go(self, index: int) -> None:
        """Resume the stream of a request, because the calling model has read its responses."""
        if self._held == {index}:
            self._held_s += time.monotonic() - self._held_since
        self._held.discard(index)

    @property
    def must_wait(self) -> bool:
        """Return True if the callable must pause until the proxy or a calling model has read some responses."""
        return self._outbox.full or bool(self._held)

    @property
    def held_s(self) -> float:
        """Return how many seconds were spent waiting for calling models. This time does not count towards the time
        limit.
        """
        return self._held_s + (time.monotonic() - self._held_since if self._held else 0.0)

    def is_cancelled(self, index: int) -> bool:
        """Return True if the client of a request is gone."""
        return index in self._cancelled

    @property
    def abandoned(self) -> bool:
        """Return True if all clients are gone."""
        return len(self._cancelled) >= len(self._requests)

    def end(self, error: BaseException | None = None) -> None:
        """Send the end of the stream, or the error that ended it."""
        del self._outbox.streams[self.id]
        end: BatchDone | BatchFailed = BatchDone(self.id, [])
        if error is not None:
            self.failure, self.error = failure_kind(error), type_of(error)
            self._stats.failed(self.failure, len(self._requests))
            report_error(error, batches=[self.batch])
            end = BatchFailed(self.id, client_text(error))
            self.spans.failed(end.text)
        self.spans.end()
        if self.batch.trace is not None:
            self._stats.traced(trace_of(self.batch), self.begun_ns)
        self._outbox.send(end)

    def forget(self) -> None:
        """Drop the stream without notifying the proxy, which is gone."""
        self._outbox.streams.pop(self.id, None)
        self.spans.end()

    def _response(self, index: int, result: Any) -> ResponseRef | None:
        if result is None or index in self._cancelled:
            return None
        if type(result) is not dict and isinstance(result, BaseException):
            return self._refuse(index, result)
        return self._writer.write([result], [self._requests[index]], self._outbox.lane)[0]

    def _refuse(self, index: int, error: BaseException) -> ResponseRef:
        """Return the final response to a request that failed with this exception. The batch's other requests continue."""
        if isinstance(reason(error), PyTritonUnrecoverableError):
            raise error
        self._cancelled.add(index)  # nothing more is sent to it
        if len(self._requests) == 1:
            self.failure, self.error = "callable", type_of(error)
        self._stats.failed("callable", 1)
        request_id = id_at(self.batch, index)
        if not isinstance(error, HTTPError):
            report_error(error, ids=[request_id])
        return response_to_error(error, request_id)


def parts_of(produced: Any) -> Any:
    """Return an iterator over the parts of a synchronous callable's result. A list is a single part.

    A callable is a single part, too. It comes from a factory registered without factory=True, and the check of the part
    reports that.
    """
    is_part = isinstance(produced, Sequence) or (
        callable(produced) and not isinstance(produced, Iterable)
    )
    return iter([produced]) if is_part else produced
