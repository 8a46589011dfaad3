"""Decoupled models: tritonserver gets each answer to a request while the worker makes more.

    execute ──▶ begin: Batch ──▶ worker          one thread sends a batch and waits until it has begun
    reader ◀── BatchBegun, BatchPart…, BatchDone    another passes answers on through response senders

While a batch is under way, the reader looks for clients that have gone (stream_watch.py), and tells the worker. An idle
reader just waits.

What has been answered in part cannot be tried again, so a batch whose worker is lost after it began
fails; one that had not begun goes to the next worker. So does one of a Triton Python model that has answered
nothing yet, whose `execute` has not returned. Requests that have lost a worker together are tried again each by
itself (trials.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton.ipc import messages
from pytriton.ipc.errors import RemoteFailure, with_id
from pytriton.ipc.lanes.arena import ArenaError
from pytriton.ipc.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton.ipc.lanes.lane_messages import (
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
from pytriton.ipc.lanes.request_names import given_id
from pytriton.proxy_backend import stream_watch, translate
from pytriton.proxy_backend.attachment import Attachment
from pytriton.proxy_backend.chains import Circular, check_chain, handles
from pytriton.proxy_backend.flights import Flight
from pytriton.proxy_backend.metrics import CustomMetrics
from pytriton.proxy_backend.stream_credits import Credits
from pytriton.proxy_backend.tracing import trace_of

_RESCHEDULE = getattr(pb_utils, "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", 2)


class Streams:
    """The batches under way of one proxy of a decoupled model."""

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        translator: translate.Translator,
        *,
        until_returned: bool = False,
    ) -> None:
        """`until_returned`: a batch holds back the next one until `BatchReturned`, not just `BatchBegun`."""
        self._name = name
        self._until_returned = until_returned
        self._metrics = CustomMetrics()
        self._attachment = attachment
        self._translator = translator
        #: Guards all below, the attachment, and sending on the lane.
        self._changed = threading.Condition()
        self._watch = stream_watch.StreamWatch(
            attachment, self._changed, until_returned=until_returned
        )
        self._lane: Lane | None = None
        self._flights: dict[int, Flight] = {}
        self._room = 0
        self._credits: Credits  #: made with the lane
        self._batch_id = 0
        self._reader: threading.Thread | None = None
        self._ending = False
        self._fault: str | None = None  #: how the last lane ended, if it broke the protocol

    def attach(self) -> None:
        """Get a lane, unless there is one.

        Raises:
            RemoteFailure: no worker will come any more.
        """
        with self._changed:
            if self._lane is not None:
                return
            self._use(self._attachment.attach())

    def attach_early(self) -> None:
        """Do that before there is a batch; there is none for a model that sleeps.

        Raises:
            RemoteFailure: no worker will come any more.
        """
        with self._changed:
            lane = self._attachment.attach_early()
            if lane is not None:
                self._use(lane)

    def _use(self, lane: Lane) -> None:
        self._lane = lane
        self._room = 0
        self._credits = Credits(lane, self._changed)
        self._reader = threading.Thread(target=self._read, args=[self._lane], daemon=True)
        self._reader.start()

    def begin(self, requests: Sequence[Any]) -> None:
        """Hand a batch to a worker; return when it has begun, or has been answered with an error."""
        flight = Flight(requests)
        try:
            self._begin(flight, requests)
        except (
            UnicodeDecodeError
        ):  # before anything was sent: those of which a text is no Unicode fail by themselves
            refusals = self._translator.refusals(requests)
            readable = [one for one, refusal in zip(requests, refusals) if refusal is None]
            if len(readable) == len(requests):
                raise  # it was something else
            names = self._names(requests)
            flight.refuse([text and with_id(text, name) for text, name in zip(refusals, names)])
            if readable:
                self._begin(flight, readable)

    def _begin(self, flight: Flight, requests: Sequence[Any]) -> None:
        if self._attachment.tracing:
            flight.trace = trace_of(requests)
        try:
            while not self._begun(flight, requests):
                if flight.losses and len(requests) > 1:
                    self._begin_apart(flight, requests)
                    return
            for index in flight.reschedule:
                requests[index].set_release_flags(_RESCHEDULE)
        except RemoteFailure as failure:
            flight.names = self._names(requests)
            flight.end(translate.unavailable, failure.text)
        except (ArenaError, LaneError, Circular, messages.MalformedMessage) as error:
            flight.names = self._names(requests)
            flight.end(translate.unavailable, f"model {self._name}: {error}")

    def _names(self, requests: Sequence[Any]) -> list[str]:
        """Return the ids that were given to requests; "" where none was."""
        return [given_id(self._translator.without_inputs(request)) for request in requests]

    def _begin_apart(self, flight: Flight, requests: Sequence[Any]) -> None:
        """Have a worker begin each request by itself, after one was lost with all of them."""
        in_row = 0
        for index, request in enumerate(requests):
            one = flight.alone(index, in_row)
            self._begin(one, [request])
            in_row = in_row + 1 if one.failure is not None else 0
            flight.senders[index] = None  # it has its own now
            if one.whole:
                flight.end(translate.unavailable, one.failure or "")
                return

    def end(self) -> None:
        """Close the lane; all batches have been answered."""
        with self._changed:
            self._ending = True
            if self._lane is not None:
                self._lane.hang_up()
        if self._reader is not None:
            self._reader.join()

    # ── the thread of execute ────────────────────────────────────────────────────────────────────

    def _begun(self, flight: Flight, requests: Sequence[Any]) -> bool:
        """Send a batch when there is room and wait until it has begun; return False if the lane was lost before."""
        self.attach()
        with self._changed:
            lane = self._lane
            if lane is None or not self._has_room(flight, lane):
                return False
            self._batch_id += 1
            number = self._batch_id
            self._flights[number] = flight  # first: the reader may hear of it at once
            try:
                refs = self._translator.requests(requests, lane)
                flight.waiting = handles(refs)
                check_chain(refs, self._attachment.worker)
                rows, alone = self._translator.rows(refs), flight.losses > 0
                flight.sent = Batch(number, refs, flight.trace, False, alone, flight.taken_ns, rows)
                lane.send(flight.sent)
            except LaneClosed:
                del self._flights[number]
                # The reader sees its end, too, and lets it go.
                self._changed.wait_for(lambda: self._lane is not lane)
                return False
            except Exception:
                del self._flights[number]
                raise
            self._wait_until(
                lambda: number not in self._flights or flight.begun, flight, lane, sent=True
            )
            if flight.begun and self._lane is lane:
                self._translator.inputs_read(lane)
            if self._until_returned:
                self._changed.wait_for(lambda: number not in self._flights or flight.returned)
            # Neither: the lane was lost, and nobody has answered.
            return flight.begun

    def _has_room(self, flight: Flight, lane: Lane) -> bool:
        """Wait until the worker has room for a batch; return False if the lane was lost. The caller holds the lock.

        Raises:
            LaneError: the worker broke the protocol; with the next lane it would again, and so on for ever.
        """

        def there_is() -> bool:
            return self._lane is not lane or len(self._flights) < self._room

        while self._room and not there_is():  # those under way have limits of their own
            self._changed.wait()
        self._wait_until(there_is, flight, lane, sent=False)
        if self._lane is lane:
            return True
        if self._lane is None and self._fault is not None:
            raise LaneError(self._fault)
        return False

    def _wait_until(
        self, condition: Callable[[], bool], flight: Flight, lane: Lane, *, sent: bool
    ) -> None:
        """Wait for the worker to begin; if that is overdue, ask the dispatcher. The caller holds the lock."""
        wait_s = self._attachment.execution_timeout_s
        since: float | None = None
        while not self._changed.wait_for(condition, wait_s):
            taken = sent and lane.all_read()
            verdict = self._attachment.judge_overdue(taken=taken, since=since, final=True)
            since = since or time.monotonic() if taken else None
            wait_s = verdict.wait_s if verdict.action == "wait" else None
            if verdict.action == "fail":  # the worker is about to be ended, and the lane with it
                flight.failure = verdict.text

    # ── the reader ───────────────────────────────────────────────────────────────────────────────

    def _read(self, lane: Lane) -> None:
        try:
            unread = self._read_to_end(lane)
            if unread:  # said once, and before what the worker has sent
                self._read_to_end(lane)
        except Exception as error:  # also what pb_utils raises
            self._lost(text=f"model {self._name}: {error}")
        else:
            self._lost(unread=unread or self._credits.was_reset)

    def _read_to_end(self, lane: Lane) -> bool:
        """Handle what the worker says until it is gone; return whether it has left something unread."""
        try:
            while True:
                try:
                    self._heard(lane, lane.receive())
                    # Also while it never is silent, whatever it says.
                    look = bool(self._flights) and self._watch.is_due
                except LaneSilent:
                    self._credits.give()  # the worker may wait for it
                    look = True
                if look:
                    self._watch.look(lane, self._flights)
        except LaneClosed as end:
            return end.unread

    def _heard(self, lane: Lane, message: FromWorker | FromProxy) -> None:
        if isinstance(message, Room):
            if message.batches < 1:  # else its batches would wait for ever
                raise LaneError(f"the worker has room for {message.batches} batches")
            with self._changed:
                self._room = message.batches
                self._changed.notify_all()
            return
        if isinstance(message, Metrics):
            self._metrics.apply(message)
            self._credits.take(1)
            return
        if isinstance(message, BatchParts):
            self._pass_on(lane, *message.parts)
            return
        if (
            isinstance(message, (Batch, BatchLent, Credit, Cancel, Hold, Go))
            or message.id not in self._flights
        ):
            raise LaneError(f"the worker said {message!r:.100}")
        flight = self._flights[message.id]
        if isinstance(message, BatchBegun):
            if flight.begun:  # it could begin anew for ever
                raise LaneError(f"the worker said twice that batch {message.id} has begun")
            self._has_begun(lane, flight)
        elif isinstance(message, BatchPart):
            self._pass_on(lane, message)
        elif isinstance(message, BatchReturned):
            with self._changed:
                flight.has_returned(message.reschedule)
                self._changed.notify_all()
        else:
            self._done(lane, message, flight)

    def _has_begun(self, lane: Lane, flight: Flight) -> None:
        lane.set_patience(stream_watch.TICK_S)
        with self._changed:
            flight.has_begun(self._attachment.execution_timeout_s)
            self._changed.notify_all()

    def _pass_on(self, lane: Lane, *parts: BatchPart | PartRef) -> None:
        for part in parts:
            flight = self._flights.get(part.id)
            if flight is None or not flight.begun:  # it would be tried again with an answer given
                raise LaneError(f"the worker answered batch {part.id}, which has not begun")
            self._pass_part_on(lane, flight, part)
        self._credits.take(len(parts))

    def _pass_part_on(self, lane: Lane, flight: Flight, part: BatchPart | PartRef) -> None:
        flight.answered = True
        if len(part.responses) != len(flight.senders):
            raise LaneError(
                f"the worker gave {len(part.responses)} responses to {len(flight.senders)} requests"
            )
        for index, response in enumerate(part.responses):
            if response is not None:
                details = response.details
                empty = details is not None and details.empty
                made = None if empty else self._translator.response(response, lane)
                flight.send(index, made, final=details is not None and details.final)
                self._credits.read(response)

    def _done(self, lane: Lane, message: BatchDone | BatchFailed, flight: Flight) -> None:
        if isinstance(message, BatchFailed):
            # What a model.py fails with stays as Triton words it.
            flight.end(translate.failure, message.text, named=not self._until_returned)
        else:
            flight.end()
        try:
            self._credits.give()
        finally:  # whatever the worker does now, this batch has been answered
            with self._changed:
                flight.begun = True
                del self._flights[message.id]
                if not self._flights:
                    lane.set_patience(None)
                self._changed.notify_all()

    def _lost(self, *, unread: bool = False, text: str | None = None) -> None:
        """Handle a lane that has ended: fail the batches that had begun, and have the others sent again if they may.

        `text`: how the worker broke the protocol.
        """
        with self._changed:
            broken = text
            failed = [
                flight for flight in self._flights.values() if flight.is_final(self._until_returned)
            ]
            waiting = [
                flight
                for flight in self._flights.values()
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
            self._attachment.drop()
            self._translator.forget_lane()
            self._lane = None
            self._fault = broken
            self._flights.clear()
            self._changed.notify_all()
        for flight in failed:
            why = flight.failure or text or f"model {self._name}: it is unloaded"
            flight.end(translate.unavailable, why)

    def _judge(self, **loss: Any) -> messages.Verdict:
        """Return what becomes of the batch of a lost worker."""
        try:
            return self._attachment.judge_loss(**loss)
        except RemoteFailure as failure:
            return messages.Verdict("fail", failure.text, whole=True)
