"""The proxy's end of a lane of a decoupled model: its batches in flight, and the thread that forwards their answers.

While batches are in flight, the thread also checks for disconnected clients (`StreamWatch`), and notifies the worker.

A retiring worker finishes the batches it has, and accepts no more (`Room(0)`). The thread keeps forwarding their
answers, and the next batch uses another lane.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure, with_id
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    ARENA,
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchLent,
    BatchPart,
    BatchParts,
    BatchReturned,
    BatchTexts,
    BatchTrace,
    Cancel,
    Credit,
    FromProxy,
    FromWorker,
    Go,
    Hold,
    Metrics,
    PartRef,
    ResponseRef,
    Room,
)
from pytriton._protocol.lanes.request_records import id_at
from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend.python_proxy import translate
from pytriton.proxy_backend.python_proxy.attachment import Attachment
from pytriton.proxy_backend.python_proxy.chains import has_closed, write_failure
from pytriton.proxy_backend.python_proxy.metrics import CustomMetrics

#: Maximum time, in seconds, that unloading the model waits for the reader thread.
_END_S = 10.0


class StreamLane:
    """One lane, with a reader thread that starts when this object is created.

    Args:
        name: the model's name
        attachment: the attachment that has the lane
        translator: translates the model's batches
        metrics: the model's custom metrics
        changed: lock for the fields shared with the reader, for the attachment, and for sending on the lane
        until_returned: whether a batch can be retried until `BatchReturned`
        left: called with the lock held when the lane accepts no more batches, because it is lost or its worker retires
    """

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        translator: translate.Translator,
        metrics: CustomMetrics,
        changed: threading.Condition,
        *,
        until_returned: bool,
        left: Callable[[StreamLane], None],
    ) -> None:
        assert attachment.lane is not None
        self.lane: Lane = attachment.lane
        self.attachment = attachment
        self.flights: dict[int, Flight] = {}
        self.room = 0
        self.fault: str | None = None  #: how the worker broke the protocol, if that ended the lane
        self._name = name
        self._translator = translator
        self._metrics = metrics
        self._changed = changed
        self._until_returned = until_returned
        self._left = left
        self._retires = False
        self._credits = Credits(self.lane, changed)
        self._watch = StreamWatch(attachment, changed, until_returned=until_returned)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Shut the connection down, and wait a limited time for the reader thread.

        tritonserver (2.51) accepts no answers from a stub that it ends while streams are in flight, for example when a
        client reloads the model with fewer instances. The reader then blocks in `pb_utils` until this process exits.
        """
        with self._changed:
            # Otherwise, the worker has exited, and the reader has closed the lane.
            if self.attachment.lane is self.lane:
                self.lane.hang_up()
        self._reader.join(_END_S)

    def _read(self) -> None:
        try:
            unread = self._read_to_end()
            if unread:  # the lane reports this once, before the data that the worker sent
                self._read_to_end()
        except Exception as error:  # including those that pb_utils raises
            self._handle_loss(text=f"model {self._name}: {error}")
        else:
            self._handle_loss(unread=unread or self._credits.was_reset)

    def _read_to_end(self) -> bool:
        """Handle the worker's messages until the worker is gone. Return True if it has left messages unread."""
        try:
            while True:
                try:
                    self._handle(self.lane.receive())
                    # Check also while the worker sends without a pause.
                    check = bool(self.flights) and self._watch.is_due
                except LaneSilent:
                    self._credits.give()  # the worker may be waiting for credit
                    check = True
                if check:
                    self._watch.check(self.lane, self.flights)
        except LaneClosed as end:
            return end.unread

    def _handle(self, message: FromWorker | FromProxy) -> None:
        if isinstance(message, Room):
            self._on_room(message.batches)
            return
        if isinstance(message, Metrics):
            self._metrics.apply(message)
            self._credits.take(1)
            return
        if isinstance(message, BatchParts):
            self._forward(*message.parts)
            return
        if isinstance(message, BatchTexts):
            self._forward_texts(message)
            return
        if (
            isinstance(message, (Batch, BatchLent, Credit, Cancel, Hold, Go))
            or message.id not in self.flights
        ):
            raise LaneError(f"the worker sent an unexpected message: {message!r:.100}")
        flight = self.flights[message.id]
        if isinstance(message, BatchBegun):
            if flight.begun:  # else a worker could restart the time limit forever
                raise LaneError(f"the worker reported the start of batch {message.id} twice")
            self._on_begun(flight)
        elif isinstance(message, BatchPart):
            self._forward(message)
        elif isinstance(message, BatchReturned):
            with self._changed:
                flight.mark_returned(message.reschedule)
                self._changed.notify_all()
        else:
            self._on_done(message, flight)

    def _on_room(self, batches: int) -> None:
        with self._changed:
            retires = batches == 0 and self.room > 0
            if batches < 1 and not retires:  # batches would wait forever
                raise LaneError(f"the worker announced room for {batches} batches")
            self.room = batches
            if retires and not self.flights:
                self.lane.hang_up()
            elif retires and not self._retires:
                self._retires = True
                self.attachment = self._watch.attachment = self.attachment.detach_lane()
                self._left(self)
            self._changed.notify_all()

    def _on_begun(self, flight: Flight) -> None:
        self.lane.set_receive_timeout(TICK_S)
        with self._changed:
            flight.mark_begun(self.attachment.execution_timeout_s)
            self._changed.notify_all()

    def _forward(self, *parts: BatchPart | PartRef) -> None:
        for part in parts:
            self._forward_part(self._begun_flight(part.id), part)
        self._credits.take(len(parts))

    def _begun_flight(self, number: int) -> Flight:
        flight = self.flights.get(number)
        # A batch that has not begun could be retried although an answer was sent.
        if flight is None or not flight.begun:
            raise LaneError(f"the worker answered batch {number}, which has not begun")
        return flight

    def _forward_texts(self, message: BatchTexts) -> None:
        if len(message.ids) != len(message.texts):
            raise LaneError(
                f"the worker sent {len(message.texts)} texts for {len(message.ids)} batches"
            )
        for number, text in zip(message.ids, message.texts):
            flight = self._begun_flight(number)
            if len(flight.senders) != 1:
                raise LaneError(f"the worker returned 1 response to {len(flight.senders)} requests")
            flight.answered = True
            flight.send(0, self._translator.text_response(message.output, text), final=False)
        self._credits.take(len(message.ids))

    def _forward_part(self, flight: Flight, part: BatchPart | PartRef) -> None:
        flight.answered = True
        if len(part.responses) != len(flight.senders):
            raise LaneError(
                f"the worker returned {len(part.responses)} responses to {len(flight.senders)} requests"
            )
        for index, response in enumerate(part.responses):
            if response is not None:
                details = response.details
                empty = details is not None and details.empty
                made = None if empty else self._translator.response(response, self.lane)
                flight.send(index, made, final=details is not None and details.final)
                self._credits.read(response)

    def _on_done(self, message: BatchDone | BatchFailed, flight: Flight) -> None:
        if isinstance(message, BatchFailed):
            # The error of a model.py keeps Triton's wording.
            flight.end(translate.failure, message.text, named=not self._until_returned)
        else:
            flight.end()
        try:
            self._credits.give()
        finally:  # even if that fails, this batch has been answered
            with self._changed:
                flight.begun = True
                del self.flights[message.id]
                if not self.flights:
                    self.lane.set_receive_timeout(None)
                if not self.flights and self._retires:
                    self.lane.hang_up()
                self._changed.notify_all()

    def _handle_loss(self, *, unread: bool = False, text: str | None = None) -> None:
        """Handle the loss of the lane: fail the batches that cannot be retried, and release the others to be sent
        again.

        Args:
            unread: whether the worker left messages unread, so that batches it had not begun can be sent again without asking
            text: how the worker broke the protocol, if it did
        """
        with self._changed:
            broken = text
            failed = [
                flight for flight in self.flights.values() if flight.is_final(self._until_returned)
            ]
            waiting = [
                flight
                for flight in self.flights.values()
                if not flight.is_final(self._until_returned)
            ]
            if failed and text is None:
                verdict = self._judge(lost_workers=1, final=True)
                text = verdict.text or f"model {self._name}: its worker is lost"
            for flight in waiting:
                if not unread or flight.begun:
                    flight.judge_retry(self._judge, None if failed else text)
                if flight.failure is None:
                    flight.prepare_retry()
                else:
                    flight.begun = True  # so that `execute` stops waiting for it
                    failed.append(flight)
            self.attachment.drop()
            self.fault = broken
            self.flights.clear()
            self._left(self)
            self._changed.notify_all()
        for flight in failed:
            why = flight.failure or text or f"model {self._name} is being unloaded"
            flight.end(translate.unavailable, why)

    def _judge(self, **loss: Any) -> messages.Verdict:
        """Ask the dispatcher whether to retry the batch of a lost worker."""
        try:
            return self.attachment.judge_loss(**loss)
        except RemoteFailure as failure:
            return messages.Verdict("fail", failure.text, fails_rest=True)


# ── a batch in flight: response senders, lost workers, and whether it can be retried ─────────────────

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Flight:
    """A batch in flight: the response senders of its requests, and its progress."""

    def __init__(self, requests: Sequence[Any]) -> None:
        #: The response senders of its requests; None in place of one whose last response has been sent.
        self.senders: list[Any] = [request.get_response_sender() for request in requests]
        self.trace: BatchTrace | None = None
        self.sent: Batch | None = None  #: the message as it was sent to a worker
        self.names: list[str] = []  #: the requests' ids, for errors before the batch is sent
        self.taken_ns = time.monotonic_ns()
        self.cancelled: set[int] = set()
        self.begun = False
        self.returned = False
        self.reschedule: list[int] = []
        self.overdue_at: float | None = None
        self.overdue_since: float | None = None
        self.lost_workers = 0
        #: Number of preceding requests of the batch, in a row, that lost a worker when retried individually.
        self.consecutive_losses = 0
        self.fails_rest = False  #: whether the following requests fail, too, without a retry
        self.answered = False  #: whether a client has received a response
        self.failure: str | None = None  #: why it fails instead of being retried when its lane ends
        #: The handles of requests that other models made, which show whether their callers still wait.
        self.waiting: list[str] = []

    def split_off(self, index: int, consecutive_losses: int) -> Flight:
        """Return a batch with one request of this batch, for a retry after the worker that had received them all was
        lost.
        """
        one = Flight(())
        one.senders = [self.senders[index]]
        one.lost_workers = 1
        one.taken_ns = self.taken_ns
        one.consecutive_losses = consecutive_losses
        return one

    def facts(self) -> dict[str, Any]:
        """Return the fields of `LaneLost` and `BatchOverdue` that describe this batch."""
        return {
            "lost_workers": self.lost_workers,
            "requests": len(self.senders),
            "consecutive_losses": self.consecutive_losses + 1 if self.lost_workers else 0,
            "request_id": self._name(0) if len(self.senders) == 1 else "",
        }

    def is_final(self, until_returned: bool) -> bool:
        """Return True if the batch cannot be retried, because its requests were returned to Triton, or an answer was
        sent.

        With `until_returned`, Triton gets the requests back on `BatchReturned`, otherwise when the batch begins.
        """
        waits = until_returned and not self.returned and not self.answered
        return self.begun and not waits

    def judge_retry(self, judge: Callable[..., Verdict], broken: str | None) -> None:
        """Ask `judge` whether to retry the batch of a lost worker. If the worker broke the protocol (`broken`), fail
        the batch.
        """
        self.failure = self.failure or broken
        if self.failure is not None:
            return
        first = self.lost_workers == 0
        self.lost_workers += 1
        verdict = judge(**{**self.facts(), **({"consecutive_losses": 0} if first else {})})
        if verdict.action == "fail":
            self.failure = verdict.text
            self.fails_rest = verdict.fails_rest

    def mark_begun(self, limit_s: float | None) -> None:
        """Record that the worker has begun the batch, and start its time limit."""
        self.begun = True
        self.overdue_at = None if limit_s is None else time.monotonic() + limit_s
        self.overdue_since = None

    def mark_returned(self, reschedule: list[int]) -> None:
        """Record that the model's `execute` has returned, and that Triton will requeue the requests in `reschedule`.

        Raises:
            LaneError: an index in `reschedule` is out of range.
        """
        if any(not 0 <= index < len(self.senders) for index in reschedule):
            raise LaneError(
                f"the worker sent an invalid list of requests to reschedule: {reschedule!r:.100} (of {len(self.senders)} requests)"
            )
        for index in reschedule:
            self.senders[index] = None
        self.reschedule = reschedule
        self.returned = True

    def prepare_retry(self) -> None:
        """Reset the batch so that it can be sent again."""
        self.begun = False
        self.overdue_at = None
        self.cancelled.clear()

    def refuse(self, texts: Sequence[str | None]) -> None:
        """Fail each request that has an error text, and remove it from the batch."""
        for sender, text in zip(self.senders, texts):
            if text is not None:
                sender.send(translate.refused(text), flags=_FINAL)
        self.senders = [one for one, text in zip(self.senders, texts) if text is None]

    def is_gone(self, index: int) -> bool:
        """Return True if a request's client has disconnected, or the model that made the request is no longer waiting."""
        waiting = self.waiting[index] if self.waiting else ""
        return self.senders[index].is_cancelled() or has_closed(waiting)

    def end(
        self,
        make_response: Callable[[str], Any] | None = None,
        text: str = "",
        *,
        named: bool = True,
    ) -> None:
        """End the stream of each unfinished request.

        Args:
            make_response: creates an error response from a text; None ends the streams without an error
            text: the error text
            named: whether to append the request's id to the text
        """
        for index, sender in enumerate(self.senders):
            if sender is None:
                continue
            error_text = with_id(text, self._name(index)) if named else text
            response = None if make_response is None else make_response(error_text)
            if response is None or self._write_failure(index, response.error()):
                sender.send(flags=_FINAL)
            else:
                sender.send(response, flags=_FINAL)
            self.senders[index] = None

    def _name(self, index: int) -> str:
        if self.sent is not None:
            return id_at(self.sent, index)
        return self.names[index] if index < len(self.names) else ""

    def _write_failure(self, index: int, error: Any) -> bool:
        """Write an error to the handle of the calling model. Return False if the request has no open handle."""
        waiting = self.waiting[index] if self.waiting else ""
        return write_failure(waiting, error.message(), translate.code_name(error))

    def send(self, index: int, response: Any, *, final: bool) -> None:
        """Send a response to a request and, with `final`, the end of its stream. A response of None sends only the end."""
        sender = self.senders[index]
        if sender is None:
            raise LaneError("the worker answered a request that it had already completed")
        flags = _FINAL if final else 0
        if response is None or (
            final and response.has_error() and self._write_failure(index, response.error())
        ):
            sender.send(flags=flags)
        else:
            sender.send(response, flags=flags)
        if final:
            self.senders[index] = None


# ── credits: acknowledge parts, so that the worker may reuse their memory ────────────────────────────

#: A credit is sent for this many parts or bytes, or when the worker's arena is full to this level. At that level, the
#: worker sends nothing more until all parts are credited, and it can empty the arena.
_PARTS = 16
_BYTES = 1 << 19
_FULL = (8 << 20) - (1 << 16)
#: After this many parts outside the arena, the worker no longer waits for it to be emptied: it sends texts in messages
#: only while fewer parts are unread.
_INLINE_PARTS = 64


class Credits:
    """Counts the parts of one lane that have been forwarded but not credited. `lock` guards sending on the lane."""

    def __init__(self, lane: Lane, lock: threading.Condition) -> None:
        #: Whether sending showed that the worker has left messages unread. Receiving does not report this again.
        self.was_reset = False
        self._lane = lane
        self._lock = lock
        self._parts = 0
        self._bytes = 0
        #: End of the last range read from the worker's arena, which is filled sequentially.
        self._reached = 0
        self._inline_parts = 0  #: since then, while the arena is full

    def read(self, response: ResponseRef) -> None:
        """Record that a response has been forwarded."""
        for output in response.outputs:
            if output.memory == ARENA:
                self._reached = output.offset + output.nbytes
                self._bytes += output.nbytes

    def take(self, parts: int) -> None:
        """Record that this many parts have been forwarded. Send a credit once enough parts have accumulated.

        Raises:
            LaneError: the worker does not read.
        """
        self._parts += parts
        is_full = self._reached >= _FULL
        if is_full:
            self._inline_parts = 0 if self._bytes else self._inline_parts + parts
        if self._parts >= _PARTS or self._bytes >= _BYTES or is_full:
            self.give()
        if self._inline_parts >= _INLINE_PARTS:
            self._reached = self._inline_parts = 0

    def give(self) -> None:
        """Send the credit for all forwarded parts, if there are any.

        Raises:
            LaneError: the worker does not read.
        """
        if not self._parts:
            return
        try:
            with self._lock:
                self._lane.send(Credit(self._parts))
        except LaneClosed as end:  # the worker may have sent answers before it exited: read on
            self.was_reset |= isinstance(end.__cause__, ConnectionResetError)
        self._parts = self._bytes = 0


# ── periodic checks for disconnected clients and for batches that take too long ──────────────────────
#
# Only the response sender knows whether its client has disconnected, and asking it costs a message to tritonserver. So the
# check runs every `TICK_S`, and only while a batch is in flight.

#: Interval between two checks, in seconds.
TICK_S = 0.25


class StreamWatch:
    """Periodically checks the batches in flight on one lane.

    Args:
        attachment: asks the dispatcher about batches that take too long
        lock: lock for the attachment, and for sending on the lane
        until_returned: whether a batch can be retried until `BatchReturned`
    """

    def __init__(
        self, attachment: Attachment, lock: threading.Condition, *, until_returned: bool
    ) -> None:
        self.attachment = attachment
        self._lock = lock
        self._until_returned = until_returned
        self._checked_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next check is due."""
        return time.monotonic() - self._checked_at > TICK_S

    def check(self, lane: Lane, flights: Mapping[int, Flight]) -> None:
        """Notify the worker of disconnected clients, and ask the dispatcher about batches that take too long."""
        self._checked_at = now = time.monotonic()
        for number, flight in list(flights.items()):
            for index, sender in enumerate(flight.senders):
                if sender is None or index in flight.cancelled:
                    continue
                if flight.is_gone(index):
                    flight.cancelled.add(index)
                    with self._lock:
                        lane.send(Cancel(number, index))
            if flight.overdue_at is not None and now > flight.overdue_at:
                self._judge_overdue(flight, now)

    def _judge_overdue(self, flight: Flight, now: float) -> None:
        with self._lock:
            final = flight.is_final(self._until_returned)
            verdict = self.attachment.judge_overdue(
                was_read=True, since=flight.overdue_since, final=final, **flight.facts()
            )
        flight.overdue_since = flight.overdue_since or now
        if verdict.action == "wait":
            flight.overdue_at = now + verdict.wait_s
            return
        flight.overdue_at = None  # the dispatcher stops the worker, which closes the lane
        if verdict.action == "fail" and not final:
            flight.failure, flight.fails_rest = verdict.text, verdict.fails_rest
