"""A lane of a decoupled model: its batches in flight, and the thread that passes their answers on.

While a batch is in flight, the reader checks for disconnected clients (stream_watch.py), and notifies the worker. An
idle reader just waits.

A worker that retires answers the batches that it has begun, and accepts no more (`Room(0)`). The reader then continues
with them, and the next batch uses another lane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchLent,
    BatchPart,
    BatchParts,
    BatchReturned,
    Cancel,
    Credit,
    FromProxy,
    FromWorker,
    Go,
    Hold,
    Metrics,
    PartRef,
    Room,
)
from pytriton.proxy_backend import stream_watch, translate
from pytriton.proxy_backend.attachment import Attachment
from pytriton.proxy_backend.flights import Flight
from pytriton.proxy_backend.metrics import CustomMetrics
from pytriton.proxy_backend.stream_credits import Credits

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
        self._watch = stream_watch.StreamWatch(attachment, changed, until_returned=until_returned)
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
                    self._watch.look(self.lane, self.flights)
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
                raise LaneError(f"the worker has room for {batches} batches")
            self.room = batches
            if retires and not self.flights:
                self.lane.hang_up()
            elif retires and not self._retires:
                self._retires = True
                self.attachment = self._watch.attachment = self.attachment.part()
                self._left(self)
            self._changed.notify_all()

    def _has_begun(self, flight: Flight) -> None:
        self.lane.set_patience(stream_watch.TICK_S)
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
                f"the worker gave {len(part.responses)} responses to {len(flight.senders)} requests"
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
                    self.lane.set_patience(None)
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
                    flight.begin_anew()
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
