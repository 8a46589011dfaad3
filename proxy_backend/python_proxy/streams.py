"""Decoupled models in the Python proxy: tritonserver gets responses while the worker produces more.

    execute ──▶ begin: Batch ──▶ worker             one thread sends a batch, and waits until the worker has begun it
    reader ◀── BatchBegun, BatchPart…, BatchDone    another thread forwards responses to response senders (stream_lane.py)

If a worker is lost, a batch that it had begun fails, because clients may have received responses. A batch that it had
not begun goes to the next worker. So does a batch of a Triton Python model without responses so far whose `execute` has
not returned. If several requests lost a worker together, they are retried individually (`Flight.split_off`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure, with_id
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import Batch
from pytriton._protocol.lanes.request_records import given_id
from pytriton.proxy_backend.python_proxy import translate
from pytriton.proxy_backend.python_proxy.attachment import Attachment
from pytriton.proxy_backend.python_proxy.chains import Circular, check_chain, handles
from pytriton.proxy_backend.python_proxy.metrics import CustomMetrics
from pytriton.proxy_backend.python_proxy.stream_lane import Flight, StreamLane
from pytriton.proxy_backend.python_proxy.translate import trace_of

_RESCHEDULE = getattr(pb_utils, "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", 2)


class Streams:
    """The batches and lanes of one proxy of a decoupled model."""

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        translator: translate.Translator,
        *,
        until_returned: bool = False,
    ) -> None:
        """Create the object without a lane.

        Args:
            name: the model's name
            attachment: requests workers from the dispatcher
            translator: translates the model's batches
            until_returned: whether the next batch waits for `BatchReturned` instead of `BatchBegun`
        """
        self._name = name
        self._until_returned = until_returned
        self._metrics = CustomMetrics()
        self._attachment = attachment
        self._translator = translator
        #: Lock for everything below, for the attachment, and for the fields of lanes that `StreamLane` documents.
        self._changed = threading.Condition()
        self._lane: StreamLane | None = None
        self._parted: list[StreamLane] = []  #: lanes of retiring workers with batches in flight
        self._batch_id = 0
        self._fault: str | None = None  #: how the last lane's worker broke the protocol, if it did

    def attach(self) -> None:
        """Attach to a worker if there is no lane yet.

        Raises:
            RemoteFailure: no worker will become available.
        """
        with self._changed:
            if self._lane is not None:
                return
            self._attachment.attach()
            self._read()

    def attach_early(self) -> None:
        """Attach to a worker before there is a batch, unless the model is suspended.

        Raises:
            RemoteFailure: no worker will become available.
        """
        with self._changed:
            if self._attachment.attach_early() is not None:
                self._read()

    def _read(self) -> None:
        self._lane = StreamLane(
            self._name,
            self._attachment,
            self._translator,
            self._metrics,
            self._changed,
            until_returned=self._until_returned,
            left=self._forget_lane,
        )

    def _forget_lane(self, lane: StreamLane) -> None:
        """Stop sending batches over a lane. The caller must hold the lock."""
        self._parted = [one for one in self._parted if one is not lane]
        if self._lane is not lane:
            return
        if lane.flights:
            self._parted.append(lane)
        self._translator.forget_lane()
        self._lane = None
        self._fault = lane.fault

    def begin(self, requests: Sequence[Any]) -> None:
        """Send a batch to a worker. Return when the worker has begun the batch, or the batch has failed."""
        flight = Flight(requests)
        try:
            self._begin(flight, requests)
        except (UnicodeDecodeError, translate.WrongSequenceId):
            # Nothing was sent yet. Only the requests with invalid UTF-8 or a wrong sequence id fail.
            refusals = self._translator.refusals(requests)
            readable = [one for one, refusal in zip(requests, refusals) if refusal is None]
            if len(readable) == len(requests):
                raise  # it has another cause
            names = self._names(requests)
            flight.refuse([text and with_id(text, name) for text, name in zip(refusals, names)])
            if readable:
                self._begin(flight, readable)

    def _begin(self, flight: Flight, requests: Sequence[Any]) -> None:
        if self._attachment.tracing:
            flight.trace = trace_of(requests)
        try:
            while not self._send(flight, requests):
                if flight.lost_workers and len(requests) > 1:
                    self._begin_individually(flight, requests)
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
        """Return the id of each request, or "" for a request without an id."""
        return [given_id(self._translator.without_inputs(request)) for request in requests]

    def _begin_individually(self, flight: Flight, requests: Sequence[Any]) -> None:
        """Send each request individually, because the worker that had received them all was lost."""
        consecutive_losses = 0
        for index, request in enumerate(requests):
            one = flight.split_off(index, consecutive_losses)
            self._begin(one, [request])
            consecutive_losses = consecutive_losses + 1 if one.failure is not None else 0
            flight.senders[index] = None  # `one` uses the sender now
            if one.fails_rest:
                flight.end(translate.unavailable, one.failure or "")
                return

    def end(self) -> None:
        """Close all lanes. The model is being unloaded."""
        with self._changed:
            lanes = [*self._parted, *([self._lane] if self._lane is not None else [])]
        for lane in lanes:
            lane.end()

    # ── the thread of execute ────────────────────────────────────────────────────────────────────

    def _send(self, flight: Flight, requests: Sequence[Any]) -> bool:
        """Send a batch once the worker has room, and wait until the worker has started it. Return False if the lane
        is lost before that.
        """
        self.attach()
        with self._changed:
            on = self._lane
            if on is None or not self._wait_for_room(flight, on):
                return False
            lane, flights = on.lane, on.flights
            self._batch_id += 1
            number = self._batch_id
            # Before sending, because the reader may receive the answer at once.
            flights[number] = flight
            try:
                refs = self._translator.requests(requests, lane)
                flight.waiting = handles(refs)
                check_chain(refs, self._attachment.worker)
                rows, alone = self._translator.count_rows(refs), flight.lost_workers > 0
                flight.sent = Batch(number, refs, flight.trace, False, alone, flight.taken_ns, rows)
                lane.send(flight.sent)
            except LaneClosed:
                del flights[number]
                # The reader detects the closed lane, too, and drops it.
                self._changed.wait_for(lambda: self._lane is not on)
                return False
            except Exception:
                del flights[number]
                raise
            self._wait_until(lambda: number not in flights or flight.begun, flight, on, sent=True)
            if flight.begun and self._lane is on:
                self._translator.release_inputs(lane)
            if self._until_returned:
                self._changed.wait_for(lambda: number not in flights or flight.returned)
            # If it has not begun, the lane was lost, and no response was sent.
            return flight.begun

    def _wait_for_room(self, flight: Flight, lane: StreamLane) -> bool:
        """Wait until the worker has room for a batch. Return False if the lane was lost. The caller must hold the lock.

        Raises:
            LaneError: the worker broke the protocol. Retrying on another lane could fail the same way forever.
        """

        def there_is() -> bool:
            return self._lane is not lane or len(lane.flights) < lane.room

        # Without a timeout, since the batches in flight have their own time limits.
        while lane.room and not there_is():
            self._changed.wait()
        self._wait_until(there_is, flight, lane, sent=False)
        if self._lane is lane:
            return True
        if self._lane is None and self._fault is not None:
            raise LaneError(self._fault)
        return False

    def _wait_until(
        self, condition: Callable[[], bool], flight: Flight, lane: StreamLane, *, sent: bool
    ) -> None:
        """Wait until `condition` holds. If that takes too long, ask the dispatcher what to do. The caller must hold the
        lock.
        """
        wait_s = self._attachment.execution_timeout_s
        since: float | None = None
        while not self._changed.wait_for(condition, wait_s):
            was_read = sent and lane.lane.all_read()
            verdict = lane.attachment.judge_overdue(was_read=was_read, since=since, final=True)
            since = since or time.monotonic() if was_read else None
            wait_s = verdict.wait_s if verdict.action == "wait" else None
            if verdict.action == "fail":  # the dispatcher stops the worker, which closes the lane
                flight.failure = verdict.text
