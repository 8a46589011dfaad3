"""A batch in flight in a Triton Python model that may answer at any time, with its senders."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Protocol

from pytriton import pb_utils
from pytriton._protocol.lanes.lane import LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchPart,
    BatchReturned,
    ResponseDetails,
    ResponseRef,
)
from pytriton._protocol.parameters import HANDLE_PARAMETER
from pytriton.worker.fault_reports import report
from pytriton.worker.model import Part
from pytriton.worker.python_model.batches import (
    ANSWERED,
    LoadedPythonModel,
    WrongReturn,
    streamed_responses,
    unanswered,
)
from pytriton.worker.request_log import nbytes_of
from pytriton.worker.streams.stream_answers import Outbox

_ENDED = ResponseRef([], None, ResponseDetails(final=True, empty=True))


class AnswerLoop(Protocol):
    """The part of the loop that its batches use."""

    #: Guards the batch, its lane and its outbox.
    changed: threading.Condition

    @property
    def counts_bytes(self) -> bool:
        """Return True if the sizes of answers are recorded."""

    def is_event_loop(self) -> bool:
        """Return True if this thread runs `async def execute`."""

    def ended(self, stream: PythonStream) -> None:
        """Remove a batch that is answered, or whose proxy is gone. The caller holds the lock."""

    def responded(self, since_ns: int, *, first: bool) -> int:
        """Count a response, sent so long after the batch began or the previous response; return the time."""

    def let_go(self, stream: PythonStream, index: int) -> None:
        """Schedule a call of `end_unanswered`. Safe to call from any thread at any time."""


class Answering:
    """The right to answer a request. The request and its sender hold it: when both are gone, it cannot be answered."""

    def __init__(self, stream: PythonStream, index: int) -> None:
        self._stream = stream
        self._index = index

    def __del__(self) -> None:
        self._stream.let_go(self._index)

    def sender(self) -> pb_utils.ResponseSender:
        """Return the request's sender, always the same object."""
        return self._stream.sender(self._index, self)

    def is_cancelled(self) -> bool:
        """Return True if the client has disconnected or cancelled."""
        return self._stream.is_cancelled(self._index)

    def send(self, response: pb_utils.InferenceResponse | None, final: bool) -> None:
        """Send a response, the end of the responses, or both."""
        self._stream.send(self._index, response, final)


class PythonStream:
    """A batch in flight, with the record of which of its requests are answered.

    Attributes:
        requests: the arguments of `execute`, until it has returned
    """

    def __init__(
        self,
        loop: AnswerLoop,
        outbox: Outbox,
        batch: Batch,
        requests: list[pb_utils.InferenceRequest],
        model: LoadedPythonModel,
    ) -> None:
        self.id = batch.id
        self.part = Part(outbox.lane, batch)
        self.outbox = outbox
        self.requests = requests
        self.lost = False
        self._loop = loop
        self._refs = batch.requests
        self._model = model
        self._cancelled: set[int] = set()
        self._held: set[int] = set()
        self._open = set(range(len(requests)))
        self._has_returned = False
        self.begun_ns = 0
        #: Why it failed: one of stats_page.FAILURES; "" if it has not.
        self.failure = ""
        #: The type of the exception that caused the failure.
        self.error = ""
        self.bytes_out: int | None = 0 if loop.counts_bytes else None
        self._last_ns = [0] * len(requests)  #: when the last response to each was sent
        self._count = len(requests)
        self._senders: dict[int, weakref.ref[pb_utils.ResponseSender]] = {}
        for index, request in enumerate(requests):
            answering = Answering(self, index)
            request.bind(answering.sender, answering.is_cancelled)

    @property
    def unanswered(self) -> int:
        """Return the number of requests that are not completely answered."""
        return len(self._open)

    def cancel(self, index: int) -> None:
        """Record that the client of a request is gone."""
        self._cancelled.add(index)
        self.go(index)

    def hold(self, index: int) -> None:
        """Pause the stream of a request: the calling model has enough unread responses."""
        if index not in self._cancelled:
            self._held.add(index)

    def go(self, index: int) -> None:
        """Resume the stream of a request: the calling model has read."""
        self._held.discard(index)

    def finish(self, result: Any) -> None:
        """Process the result of `execute`.

        Raises:
            WrongReturn: the result is invalid.
        """
        again = [i for i, one in enumerate(self.requests) if one.rescheduled]
        self.take(result)
        if not self.lost and not self._open.issuperset(again):
            raise WrongReturn(ANSWERED)
        self.returned(again)

    def take(self, result: Any) -> None:
        """Send the responses returned by `execute`, and release the requests.

        Raises:
            WrongReturn: a response is missing or not allowed.
        """
        for index, response in enumerate(streamed_responses(result, self.requests, self._model)):
            if response is not None:
                self.send(index, response, True)
            elif not (
                self._model.decoupled or self.requests[index].rescheduled or index in self._senders
            ):
                raise WrongReturn(
                    "execute returned no response to a request, and did not ask for its response sender"
                )
        self.requests = []

    def returned(self, reschedule: list[int]) -> None:
        """Notify the proxy that `execute` has returned; Triton queues the requests of `reschedule` again."""
        with self._loop.changed:
            self._open.difference_update(reschedule)
            self._has_returned = True
            if not self.lost:
                self._to_lane(BatchReturned(self.id, reschedule))
                self._end_if_done()

    def fail(self, text: str) -> None:
        """Answer all unanswered requests with an error."""
        with self._loop.changed:
            if not self.lost and self.id in self.outbox.streams:
                del self.outbox.streams[self.id]
                self._open.clear()
                self._to_lane(BatchFailed(self.id, text))
                self._loop.ended(self)
        self.requests = []

    def let_go(self, index: int) -> None:
        """Record that a request can no longer be answered. It may have been answered already."""
        if index in self._open and not self.lost:
            self._loop.let_go(self, index)

    def end_unanswered(self, index: int) -> bool:
        """Answer a request that can no longer be answered with an error; return whether that was necessary."""
        if index not in self._open:
            return False
        error = pb_utils.TritonError(unanswered(decoupled=self._model.decoupled))
        self.send(index, pb_utils.InferenceResponse(error=error), True)
        return True

    def sender(self, index: int, answering: Answering) -> pb_utils.ResponseSender:
        """Return the sender of a request, always the same object."""
        with self._loop.changed:
            made = self._senders.get(index)
            sender = made() if made is not None else None
            if sender is None:
                sender = pb_utils.ResponseSender(
                    answering.send, answering.is_cancelled, decoupled=self._model.decoupled
                )
                self._senders[index] = weakref.ref(sender)
            return sender

    def is_cancelled(self, index: int) -> bool:
        """Return True if the client of a request is gone."""
        return self.lost or index in self._cancelled

    def send(self, index: int, response: pb_utils.InferenceResponse | None, final: bool) -> None:
        """Send a response to a request, the end of the responses, or both. Blocks while the proxy has enough to read."""
        with self._loop.changed:
            self._loop.changed.wait_for(lambda: self.lost or not self._must_wait(index))
            if self.lost or index not in self._open:
                return
            # Another model that asked it to stop still accepts responses.
            gone = (
                index in self._cancelled
                and self._model.decoupled
                and HANDLE_PARAMETER not in self._refs[index].parameters
            )
            if response is not None and not gone:
                ref = self._model.written(
                    response, self._refs[index], self.outbox.lane, final=final
                )
            elif final:
                ref = _ENDED
            else:
                return
            parts: list[ResponseRef | None] = [None] * self._count
            parts[index] = ref
            self._to_lane(BatchPart(self.id, parts))
            if self.bytes_out is not None:
                self.bytes_out += nbytes_of(ref)
            if ref is not _ENDED and self._model.decoupled:
                last_ns = self._last_ns[index]
                self._last_ns[index] = self._loop.responded(
                    last_ns or self.begun_ns, first=not last_ns
                )
            if final:
                self._open.discard(index)
                self._end_if_done()

    def _must_wait(self, index: int) -> bool:
        # On the event loop, waiting would block all streams of the model: continue there.
        held = index in self._held and not self._loop.is_event_loop()
        return self.outbox.full or held

    def _end_if_done(self) -> None:
        if self._has_returned and not self._open and self.id in self.outbox.streams:
            del self.outbox.streams[self.id]
            self._to_lane(BatchDone(self.id, []))
            self._loop.ended(self)

    def _to_lane(self, message: BatchPart | BatchReturned | BatchDone | BatchFailed) -> None:
        try:
            if isinstance(message, BatchPart):
                self.outbox.put(message)
            else:
                self.outbox.lane.send(message)
        except LaneClosed:
            self.lost = True  # the lanes' thread also sees the end
        except LaneError as error:
            self.lost = True
            report(f"an answer could not be sent: {error}")
            # Requests without further parts would wait forever: close the lane, which fails them.
            with contextlib.suppress(OSError):  # the proxy was faster
                self.outbox.lane.hang_up()
