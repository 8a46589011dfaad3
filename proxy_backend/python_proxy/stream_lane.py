"""A lane of a decoupled model: its batches in flight, and the thread that passes their answers on.

While a batch is in flight, the reader checks for disconnected clients (`StreamWatch`), and notifies the worker. An
idle reader just waits.

A worker that retires answers the batches that it has begun, and accepts no more (`Room(0)`). The reader then continues
with them, and the next batch uses another lane.
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

#: Seconds that the reader gets to finish its batches when this process ends.
_END_S = 10.0


class StreamLane:
    """One lane; its thread runs from construction on.

    Args:
        name: the model's
        attachment: has the lane
        translator: of the model
        metrics: the model's custom metrics
        changed: guards the fields not private to the reader, the attachment, and sending on the lane
        until_returned: a batch is not final before `BatchReturned`
        left: called with the lock held when no more batches can be sent: the lane is lost, or its worker retires
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
        self.fault: str | None = None  #: how it ended, if the worker broke the protocol
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
        """Shut the connection down, and wait for the reader's end for a limited time.

        tritonserver (2.51) accepts no answers from a stub that it ends while streams are in flight, for example when a
        client reloads the model with fewer instances: the reader then waits in `pb_utils`, and ends with this process.
        """
        with self._changed:
            # Otherwise its worker has ended, and the reader has closed it.
            if self.attachment.lane is self.lane:
                self.lane.hang_up()
        self._reader.join(_END_S)

    def _read(self) -> None:
        try:
            unread = self._read_to_end()
            if unread:  # reported once, and before the data the worker has sent
                self._read_to_end()
        except Exception as error:  # also what pb_utils raises
            self._lost(text=f"model {self._name}: {error}")
        else:
            self._lost(unread=unread or self._credits.was_reset)

    def _read_to_end(self) -> bool:
        """Handle the worker's messages until it is gone; return whether it has left something unread."""
        try:
            while True:
                try:
                    self._handle(self.lane.receive())
                    # Also if the worker sends without a pause.
                    check = bool(self.flights) and self._watch.is_due
                except LaneSilent:
                    self._credits.give()  # the worker may wait for it
                    check = True
                if check:
                    self._watch.check(self.lane, self.flights)
        except LaneClosed as end:
            return end.unread

    def _handle(self, message: FromWorker | FromProxy) -> None:
        if isinstance(message, Room):
            self._has_room(message.batches)
            return
        if isinstance(message, Metrics):
            self._metrics.apply(message)
            self._credits.take(1)
            return
        if isinstance(message, BatchParts):
            self._pass_on(*message.parts)
            return
        if (
            isinstance(message, (Batch, BatchLent, Credit, Cancel, Hold, Go))
            or message.id not in self.flights
        ):
            raise LaneError(f"the worker sent an unexpected message: {message!r:.100}")
        flight = self.flights[message.id]
        if isinstance(message, BatchBegun):
            if flight.begun:  # it could begin again forever
                raise LaneError(f"the worker reported twice that batch {message.id} has begun")
            self._has_begun(flight)
        elif isinstance(message, BatchPart):
            self._pass_on(message)
        elif isinstance(message, BatchReturned):
            with self._changed:
                flight.has_returned(message.reschedule)
                self._changed.notify_all()
        else:
            self._done(message, flight)

    def _has_room(self, batches: int) -> None:
        with self._changed:
            retires = batches == 0 and self.room > 0
            if batches < 1 and not retires:  # otherwise its batches would wait forever
                raise LaneError(f"the worker announced room for {batches} batches")
            self.room = batches
            if retires and not self.flights:
                self.lane.hang_up()
            elif retires and not self._retires:
                self._retires = True
                self.attachment = self._watch.attachment = self.attachment.part()
                self._left(self)
            self._changed.notify_all()

    def _has_begun(self, flight: Flight) -> None:
        self.lane.set_receive_timeout(TICK_S)
        with self._changed:
            flight.has_begun(self.attachment.execution_timeout_s)
            self._changed.notify_all()

    def _pass_on(self, *parts: BatchPart | PartRef) -> None:
        for part in parts:
            flight = self.flights.get(part.id)
            if flight is None or not flight.begun:  # it would be retried after an answer was given
                raise LaneError(f"the worker answered batch {part.id}, which has not begun")
            self._pass_part_on(flight, part)
        self._credits.take(len(parts))

    def _pass_part_on(self, flight: Flight, part: BatchPart | PartRef) -> None:
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

    def _done(self, message: BatchDone | BatchFailed, flight: Flight) -> None:
        if isinstance(message, BatchFailed):
            # The error of a model.py keeps Triton's wording.
            flight.end(translate.failure, message.text, named=not self._until_returned)
        else:
            flight.end()
        try:
            self._credits.give()
        finally:  # in any case, this batch has been answered
            with self._changed:
                flight.begun = True
                del self.flights[message.id]
                if not self.flights:
                    self.lane.set_receive_timeout(None)
                if not self.flights and self._retires:
                    self.lane.hang_up()
                self._changed.notify_all()

    def _lost(self, *, unread: bool = False, text: str | None = None) -> None:
        """Handle the end of the lane: fail the batches that had begun, and send the others again if permitted.

        `text`: how the worker broke the protocol.
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
                verdict = self._judge(losses=1, final=True)
                text = verdict.text or f"model {self._name}: its worker is lost"
            for flight in waiting:
                if not unread or flight.begun:
                    flight.has_lost_worker(self._judge, None if failed else text)
                if flight.failure is None:
                    flight.reset_for_retry()
                else:
                    flight.begun = True  # as far as execute is concerned
                    failed.append(flight)
            self.attachment.drop()
            self.fault = broken
            self.flights.clear()
            self._left(self)
            self._changed.notify_all()
        for flight in failed:
            why = flight.failure or text or f"model {self._name}: it is unloaded"
            flight.end(translate.unavailable, why)

    def _judge(self, **loss: Any) -> messages.Verdict:
        """Return the verdict about the batch of a lost worker."""
        try:
            return self.attachment.judge_loss(**loss)
        except RemoteFailure as failure:
            return messages.Verdict("fail", failure.text, whole=True)


# ── a batch in flight: its response senders, its losses, and whether it may be retried ───────────────

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Flight:
    """A batch in flight: the senders of its requests, and which of their clients have disconnected."""

    def __init__(self, requests: Sequence[Any]) -> None:
        #: None: its last answer has been sent.
        self.senders: list[Any] = [request.get_response_sender() for request in requests]
        self.trace: BatchTrace | None = None
        self.sent: Batch | None = None  #: as sent to a worker
        self.names: list[str] = []  #: its requests' ids, for an error before it is sent
        self.taken_ns = time.monotonic_ns()
        self.cancelled: set[int] = set()
        self.begun = False
        self.returned = False
        self.reschedule: list[int] = []
        self.overdue_at: float | None = None
        self.overdue_since: float | None = None
        self.losses = 0
        #: How many earlier requests of its batch, retried individually, lost a worker in a row.
        self.in_row = 0
        self.whole = False  #: those after it are not retried
        self.answered = False  #: a client of it has received something
        self.failure: str | None = None  #: why it is not retried when its lane ends
        #: The handles of requests from other models; each indicates whether its caller still waits.
        self.waiting: list[str] = []

    def alone(self, index: int, in_row: int) -> Flight:
        """Return one request as a batch of its own, after a worker was lost with all of them."""
        one = Flight(())
        one.senders = [self.senders[index]]
        one.losses = 1
        one.taken_ns = self.taken_ns
        one.in_row = in_row
        return one

    def facts(self) -> dict[str, Any]:
        """Return the facts for the dispatcher's verdict about the batch."""
        return {
            "losses": self.losses,
            "requests": len(self.senders),
            "in_row": self.in_row + 1 if self.losses else 0,
            "request_id": self._name(0) if len(self.senders) == 1 else "",
        }

    def is_final(self, until_returned: bool) -> bool:
        """Return whether the batch cannot be retried: Triton has its requests back, or an answer has been sent.

        `until_returned`: Triton gets the requests back at `BatchReturned`, not when the batch begins.
        """
        waits = until_returned and not self.returned and not self.answered
        return self.begun and not waits

    def has_lost_worker(self, judge: Callable[..., Verdict], broken: str | None) -> None:
        """Ask `judge` whether to retry the batch. `broken`: how the worker broke the protocol with it."""
        self.failure = self.failure or broken
        if self.failure is not None:
            return
        first = self.losses == 0
        self.losses += 1
        verdict = judge(**{**self.facts(), **({"in_row": 0} if first else {})})
        if verdict.action == "fail":
            self.failure = verdict.text
            self.whole = verdict.whole

    def has_begun(self, limit_s: float | None) -> None:
        """Note that the worker has begun the batch, and start its time limit."""
        self.begun = True
        self.overdue_at = None if limit_s is None else time.monotonic() + limit_s
        self.overdue_since = None

    def has_returned(self, reschedule: list[int]) -> None:
        """Note that the model's `execute` has returned, and that Triton queues these requests again.

        Raises:
            LaneError: there are no such requests.
        """
        if any(not 0 <= index < len(self.senders) for index in reschedule):
            raise LaneError(f"the worker asked to reschedule requests {reschedule!r:.100}")
        for index in reschedule:
            self.senders[index] = None
        self.reschedule = reschedule
        self.returned = True

    def reset_for_retry(self) -> None:
        """Reset the batch for another try, as if it had never been sent."""
        self.begun = False
        self.overdue_at = None
        self.cancelled.clear()

    def refuse(self, texts: Sequence[str | None]) -> None:
        """Answer each request that has a text with that error, and remove it from the batch."""
        for sender, text in zip(self.senders, texts):
            if text is not None:
                sender.send(translate.refused(text), flags=_FINAL)
        self.senders = [one for one, text in zip(self.senders, texts) if text is None]

    def gone(self, index: int) -> bool:
        """Return whether the client of a request, or the model that made it, has disconnected."""
        waiting = self.waiting[index] if self.waiting else ""
        return self.senders[index].is_cancelled() or has_closed(waiting)

    def end(
        self,
        make_response: Callable[[str], Any] | None = None,
        text: str = "",
        *,
        named: bool = True,
    ) -> None:
        """End the stream of each request, with an error if there is one; `named`: it ends with the request's id."""
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
        """Write an error to the handle of the model that made the request; return False if there is none."""
        waiting = self.waiting[index] if self.waiting else ""
        return write_failure(waiting, error.message(), translate.code_name(error))

    def send(self, index: int, response: Any, *, final: bool) -> None:
        """Pass an answer on; None is the end of the stream without an answer."""
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


# ── credits: the memory that the worker may use again. Sent only when the worker may wait for it ─────

#: How many parts, and bytes of them, are credited at once; and the arena fill level at which the worker waits: it
#: sends nothing more, and empties the arena, only after everything was credited.
_PARTS = 8
_BYTES = 1 << 19
_FULL = (8 << 20) - (1 << 16)


class Credits:
    """The parts of one lane that have been passed on, and for which no credit has been sent.

    `lock` guards sending on the lane.
    """

    def __init__(self, lane: Lane, lock: threading.Condition) -> None:
        #: Whether the worker has left something unread; receiving does not report it again.
        self.was_reset = False
        self._lane = lane
        self._lock = lock
        self._parts = 0
        self._bytes = 0
        #: End of the last range read from the worker's arena, which is filled sequentially.
        self._reached = 0

    def read(self, response: ResponseRef) -> None:
        """Record that a response has been passed on."""
        for output in response.outputs:
            if output.memory == ARENA:
                self._reached = output.offset + output.nbytes
                self._bytes += output.nbytes

    def take(self, parts: int) -> None:
        """Record that this many parts have been passed on; send the credit for several at once.

        Raises:
            LaneError: the worker does not read.
        """
        self._parts += parts
        if self._parts >= _PARTS or self._bytes >= _BYTES or self._reached >= _FULL:
            self.give()

    def give(self) -> None:
        """Send the credit for all parts that have been passed on, if there are any.

        Raises:
            LaneError: the worker does not read.
        """
        if not self._parts:
            return
        try:
            with self._lock:
                self._lane.send(Credit(self._parts))
        except LaneClosed as end:  # it may have answered before it ended: its answers count
            self.was_reset |= isinstance(end.__cause__, ConnectionResetError)
        self._parts = self._bytes = 0


# ── periodic checks: which clients have disconnected, and which batches take too long ────────────────
#
# A disconnected client is detected by asking its sender, which costs a message to tritonserver. So the check runs every
# `TICK_S`, and only while a batch is in flight.

#: Seconds between two checks.
TICK_S = 0.25


class StreamWatch:
    """Checks the batches in flight of one proxy.

    Args:
        attachment: asks the dispatcher about batches that take too long
        lock: guards the attachment, and sending on the lane
        until_returned: a batch is not final before `BatchReturned`
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
        """Notify the worker of disconnected clients, and check for batches that have taken too long."""
        self._checked_at = now = time.monotonic()
        for number, flight in list(flights.items()):
            for index, sender in enumerate(flight.senders):
                if sender is None or index in flight.cancelled:
                    continue
                if flight.gone(index):
                    flight.cancelled.add(index)
                    with self._lock:
                        lane.send(Cancel(number, index))
            if flight.overdue_at is not None and now > flight.overdue_at:
                self._judge_overdue(flight, now)

    def _judge_overdue(self, flight: Flight, now: float) -> None:
        with self._lock:
            final = flight.is_final(self._until_returned)
            verdict = self.attachment.judge_overdue(
                taken=True, since=flight.overdue_since, final=final, **flight.facts()
            )
        flight.overdue_since = flight.overdue_since or now
        if verdict.action == "wait":
            flight.overdue_at = now + verdict.wait_s
            return
        flight.overdue_at = None  # the worker is about to be ended, and the lane with it
        if verdict.action == "fail" and not final:
            flight.failure, flight.whole = verdict.text, verdict.whole
