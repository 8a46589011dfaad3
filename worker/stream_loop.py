"""Main loop of workers with a synchronous decoupled callable: one batch at a time, answered as a stream."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import Batch
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.types import Request
from pytriton.worker.fault_reports import callable_errors, client_text, reason
from pytriton.worker.loop import Loop
from pytriton.worker.request_log import Part
from pytriton.worker.streams import BatchStream, Outbox, parts_of
from pytriton.worker.tracing import NO_SPANS, spans_of


class StreamLoop(Loop):
    """Main loop for functions and generators. One runs at a time, since they may not be reentrant."""

    _batches_at_once = 1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._outboxes: dict[Lane, Outbox] = {}

    def _prepare_lane(self, lane: Lane) -> None:
        try:
            self._outboxes[lane] = self._outbox(lane)
        except (LaneClosed, LaneError) as error:
            self._drop(lane, error)

    def _outbox(self, lane: Lane) -> Outbox:
        return Outbox(lane, self._batches_at_once)

    def _drop(self, lane: Lane, error: Exception | None = None) -> None:
        super()._drop(lane, error)
        self._outboxes.pop(lane, None)

    def _serve(self, ready: list[Lane]) -> None:
        lane = ready[0]
        try:
            outbox = self._outboxes[lane]
            batch = outbox.heard(lane.receive(wait=False))
            if batch is not None:
                self._stream(outbox, batch)
        except LaneSilent:
            return
        except (LaneClosed, LaneError, ArenaError) as error:
            self._drop(lane, error)

    def _stream(self, outbox: Outbox, batch: Batch) -> None:
        """Answer a batch.

        Raises:
            LaneClosed: the proxy is gone.
            LaneError: the proxy violated the protocol.
        """
        stream = self._begin(outbox, batch)
        self._end(stream, self._answer_to_end(outbox, batch, stream))
        outbox.drain()

    def _answer_to_end(
        self, outbox: Outbox, batch: Batch, stream: BatchStream
    ) -> BaseException | None:
        # Return the error instead of assigning it to a variable, which would form a reference cycle with this frame and
        # hold the batch's memory until the next garbage collection.
        self._model.current_parts = [Part(outbox.lane, batch)]
        try:
            requests = self._requests(outbox, batch, stream)
            stream.send_begun()
            with stream.spans.calling(requests):
                self._produce(outbox, stream, requests)
        except (LaneClosed, LaneError):
            stream.forget()
            self._record_end(stream.begun_ns)
            raise
        except callable_errors() as raised:
            return raised
        finally:
            self._model.current_parts = ()
        return None

    def _produce(self, outbox: Outbox, stream: BatchStream, requests: list[Request]) -> None:
        parts = parts_of(self._model.produce(requests))
        try:
            for results in parts:
                stream.put(results)
                outbox.listen(wait=False)
                while stream.must_wait:
                    outbox.listen(wait=True)
                if stream.abandoned:
                    return
        finally:
            if hasattr(parts, "close"):
                parts.close()

    def _begin(self, outbox: Outbox, batch: Batch) -> BatchStream:
        spans = spans_of(self._model.name, [batch]) or NO_SPANS
        return BatchStream(outbox, batch, self._model.results, spans, stats=self._stats)

    def _requests(self, outbox: Outbox, batch: Batch, stream: BatchStream) -> list[Request]:
        requests = self._model.requests([Part(outbox.lane, batch)])
        for index, request in enumerate(requests):
            request.cancelled = partial(self._is_cancelled, outbox, stream, index)
        return requests

    def _is_cancelled(self, outbox: Outbox, stream: BatchStream, index: int) -> bool:
        try:
            outbox.listen(wait=False)
        except (LaneClosed, LaneError):
            return True  # the next send raises the error
        return stream.is_cancelled(index)

    def _end(self, stream: BatchStream, error: BaseException | None) -> None:
        try:
            stream.end(error)
        finally:
            self._record_end(stream.begun_ns, [Part(stream.lane, stream.batch)], stream)
            if self._model.has_excess_memory(stream.lane):
                self._schedule_memory_check()
            if error is not None and isinstance(reason(error), PyTritonUnrecoverableError):
                self._report_unrecoverable(client_text(error))
