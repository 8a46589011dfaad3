"""Main loop for Triton Python models that may answer at any time, from any thread, even after `execute` has returned.

    main thread     runs `execute`, one batch after the other
    lanes' thread   reads lanes, control messages and signals; queues batches for the main thread; wakes senders that wait
    any thread      sends responses; one thread runs an event loop for `async def execute`

One lock, `DecoupledModelLoop.changed`, guards everything that these threads share (outboxes, lanes, arenas). If a coroutine
raises an exception that ends the worker, such as `SystemExit`, the main thread raises it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import select
import socket
import threading
import time
import weakref
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, NamedTuple

from pytriton import pb_utils
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    DELETE,
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchPart,
    BatchReturned,
    Metrics,
    ResponseDetails,
    ResponseRef,
)
from pytriton._protocol.parameters import HANDLE_PARAMETER
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.pb_utils import host
from pytriton.worker.fault_reports import callable_errors, client_text, reason, report, report_error
from pytriton.worker.loop import Loop
from pytriton.worker.python_model.backend_host import WorkerHost
from pytriton.worker.python_model.batches import (
    ANSWERED,
    LoadedPythonModel,
    WrongReturn,
    failure_of,
    streamed_responses,
    unanswered,
)
from pytriton.worker.request_log import Part, nbytes_of, serving, type_of
from pytriton.worker.streams import Outbox

#: Maximum number of batches in flight per lane. The proxy sends the next one when `execute` has returned, but the model
#: may answer all of them later.
_AT_ONCE = 1024
#: Maximum number of metric changes in one message.
_METRICS = 100


class ReleasedRequest(NamedTuple):
    """Job for the main thread: a request that can no longer be answered."""

    stream: PythonStream
    request: int


class DecoupledModelLoop(Loop):
    """Main loop for a `LoadedPythonModel` that may answer at any time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self._model, LoadedPythonModel)
        self._python: LoadedPythonModel = self._model
        self.changed = threading.Condition(threading.RLock())
        self._outboxes: dict[Lane, Outbox] = {}
        self._streams: set[PythonStream] = set()
        self._jobs: queue.SimpleQueue[PythonStream | ReleasedRequest | None] = queue.SimpleQueue()
        self._events: asyncio.AbstractEventLoop | None = None
        self._events_thread: threading.Thread | None = None
        self._fatal: Future[None] = Future()  #: fails with the exception that ends the worker
        self._closing = False
        #: Wakes the lanes' thread so that it ends.
        self._woken, self._waker = socket.socketpair()

    def run(self, end_fd: int) -> None:
        """Serve until `end_fd` becomes readable, then finish the batches in flight.

        Return immediately if the model is unrecoverable.
        """
        self._start_watching(end_fd)
        self._poll.register(self._woken.fileno(), select.EPOLLIN)
        metrics = host.current()
        if isinstance(metrics, WorkerHost):
            metrics.on_metric(self._send_metrics, lambda: self._jobs.put(None))
        lanes = threading.Thread(target=self._serve_lanes, name="lanes", daemon=True)
        lanes.start()
        while not self._is_over():
            job = self._jobs.get()
            if self._fatal.done():
                self._fatal.result()
            if isinstance(job, PythonStream):
                self._execute(job)
            elif job is not None:
                self._end_unanswered(*job)
            else:
                self._send_metrics()
            del job  # otherwise, it would keep requests alive that the model has released
        self._waker.send(b"\0")
        lanes.join()  # it polls descriptors, which must stay open until it ends
        with self.changed:
            for fd in list(self._handlers):
                self._unwatch(fd)
            self.close()
        self._woken.close()
        self._waker.close()

    def _is_over(self) -> bool:
        with self.changed:  # the lanes' thread reads no lane after this
            queued = any(not lane.is_flushed for lane in self._lanes.values())
            is_done = self._stopping and not self._streams and not queued
            self._closing = self.unrecoverable or is_done
            return self._closing

    # ── the lanes' thread ────────────────────────────────────────────────────────────────────────

    def _serve_lanes(self) -> None:
        try:
            self._serve_until_over()
        except BaseException as error:
            # An internal error. End the worker, because it would accept no more batches.
            with self.changed:
                for stream in self._streams:
                    stream.lost = True  # its senders would wait forever for the proxy to read
                self.changed.notify_all()
            self._end_with(error)

    def _serve_until_over(self) -> None:
        while not self._closing:
            awake = [fd for fd, _ in self._poll.poll(self._idle_s)]
            with self.changed:
                for fd in awake if not self._closing else ():
                    if fd in self._handlers:
                        self._handlers[fd]()
                    elif fd in self._lanes:
                        self._serve([self._lanes[fd]])
                for lane in self._lanes.values() if self._memory_check_at is None else ():
                    if lane.arena.large:
                        self._schedule_memory_check()
                if self._memory_check_at is not None and time.monotonic() > self._memory_check_at:
                    self._release_unused_memory()
                self.changed.notify_all()

    def _begin_shutdown(self) -> None:
        super()._begin_shutdown()
        for lane, outbox in list(self._outboxes.items()):
            if not outbox.retire():
                self._drop(lane)
        self._jobs.put(None)

    def _prepare_lane(self, lane: Lane) -> None:
        try:
            self._outboxes[lane] = Outbox(lane, _AT_ONCE, partial(self._watch_for_room, lane))
        except (LaneClosed, LaneError) as error:
            self._drop(lane, error)
            return
        self._send_metrics()

    def _watch_for_room(self, lane: Lane) -> None:
        self._poll.modify(lane.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _send_queued(self, outbox: Outbox) -> None:
        lane = outbox.lane
        if lane.is_flushed or not lane.flush():
            return
        self._poll.modify(lane.fileno(), select.EPOLLIN)
        if self._stopping:
            if outbox.is_idle:
                self._drop(lane)
            self._jobs.put(None)
        elif not self._is_finished():
            self._close_withdrawn_lanes()

    def _idle_lanes(self) -> list[Lane]:
        return [lane for lane, outbox in self._outboxes.items() if outbox.is_idle]

    def _drop(self, lane: Lane, error: Exception | None = None) -> None:
        super()._drop(lane, error)
        outbox = self._outboxes.pop(lane, None)
        for stream in [one for one in self._streams if one.outbox is outbox]:
            stream.lost = True
            self.ended(stream)

    def _serve(self, ready: list[Lane]) -> None:
        lane = ready[0]
        outbox = self._outboxes[lane]
        try:
            self._send_queued(outbox)
            if lane not in self._outboxes:
                return
            batch = outbox.heard(lane.receive(wait=False))
            if batch is not None:
                self._begin(outbox, batch)
        except LaneSilent:
            return
        except (LaneClosed, LaneError, ArenaError) as error:
            self._drop(lane, error)
        else:
            self._send_metrics()

    def _begin(self, outbox: Outbox, batch: Batch) -> None:
        if self.unrecoverable:
            raise LaneClosed("this worker accepts no more batches")
        try:
            requests = self._python.incoming(batch.requests, outbox.lane)
        except (LaneError, ArenaError):
            raise
        except Exception as error:  # for example, not enough memory to copy the inputs
            self._refuse(Part(outbox.lane, batch), error)
            return
        stream = PythonStream(self, outbox, batch, requests, self._python)
        outbox.streams[batch.id] = stream  # type: ignore[assignment]
        self._streams.add(stream)
        stream.begun_ns = self._stats.begin(len(requests), batch.rows, batch.taken_ns)
        outbox.lane.send(BatchBegun(batch.id))
        self._jobs.put(stream)

    def _refuse(self, part: Part, error: Exception) -> None:
        begun_ns = self._record_start([part])
        answer = self._python.fail_unreadable(part, error)
        self._record_end(begun_ns, [part], [answer])
        part.lane.send(BatchBegun(answer.id))
        part.lane.send(answer)

    def _send_metrics(self) -> None:
        """Send metric changes to one proxy, and deletions to all proxies, since any of them may have the metric."""
        source = host.current()
        if not isinstance(source, WorkerHost):
            return
        with self.changed:
            while True:
                outboxes = list(self._outboxes.values())
                free = [one for one in outboxes if not one.full]
                if not free or (source.deletes_next and len(free) < len(outboxes)):
                    return
                updates = source.take_metrics(_METRICS)
                if not updates:
                    return
                for outbox in outboxes if updates[0].change == DELETE else free[:1]:
                    with contextlib.suppress(LaneClosed):  # the metrics of a proxy are gone with it
                        outbox.put(Metrics(updates))

    # ── the main thread ──────────────────────────────────────────────────────────────────────────

    def _execute(self, stream: PythonStream) -> None:
        if stream.lost:
            return
        self._python.current_parts = [stream.part]
        try:
            returned = self._python.execute(stream.requests)
            if inspect.iscoroutine(returned):
                if self._python.decoupled:
                    stream.returned([])
                    finish = self._in_background(self._finish(stream, returned))
                    finish.add_done_callback(partial(self._on_finished, stream))
                    return
                returned = self._awaited(returned)
            stream.finish(returned)
        except callable_errors() as error:
            self._on_failure(stream, error)
        finally:
            self._python.current_parts = ()

    def _end_unanswered(self, stream: PythonStream, index: int) -> None:
        with self.changed:
            if not stream.end_unanswered(index):
                return
            stream.failure = "result"
            self._stats.failed(stream.failure, 1)
        report(
            "a request was not answered: the model released its response sender before sending the last response"
        )

    async def _finish(self, stream: PythonStream, coroutine: Coroutine[Any, Any, Any]) -> None:
        serving.set([stream.part])  # for this task and its child tasks
        try:
            stream.take(await coroutine)
        except callable_errors() as error:
            self._on_failure(stream, error)

    def _on_finished(self, stream: PythonStream, finish: Future[None]) -> None:
        if finish.cancelled():  # cancelled before its first step, by a task of the model
            self._on_failure(stream, asyncio.CancelledError())
            return
        error = finish.exception()
        if error is not None:
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """Make the main thread raise an exception. In another thread, it would only end that thread."""
        if not self._fatal.done():
            self._fatal.set_exception(error)
        self._jobs.put(None)

    def _on_failure(self, stream: PythonStream, error: BaseException) -> None:
        report_error(error, "the model's execute failed", [stream.part.batch])
        with self.changed:
            stream.failure, stream.error = failure_of(error), type_of(error)
            self._stats.failed(stream.failure, stream.unanswered)
        stream.fail(self._python.failure(error))
        if isinstance(reason(error), PyTritonUnrecoverableError):
            with self.changed:
                self._report_unrecoverable(client_text(error))
            self._jobs.put(None)

    def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        returned = self._in_background(coroutine)
        wait([returned, self._fatal], return_when=FIRST_COMPLETED)
        if self._fatal.done():
            self._fatal.result()
        return returned.result()

    def _in_background(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self._events is None:
            events = asyncio.new_event_loop()
            thread = threading.Thread(
                target=self._run_events, args=[events], name="events", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # No thread can be started now. The next batch tries again.
                events.close()
                coroutine.close()
                raise
            self._events, self._events_thread = events, thread
        return asyncio.run_coroutine_threadsafe(coroutine, self._events)

    def _run_events(self, events: asyncio.AbstractEventLoop) -> None:
        try:
            events.run_forever()
        except BaseException as error:  # SystemExit or KeyboardInterrupt from any task
            self._end_with(error)

    def is_event_loop(self) -> bool:
        """Return True in the thread whose event loop runs `async def execute`."""
        return threading.current_thread() is self._events_thread

    @property
    def counts_bytes(self) -> bool:
        """Return True if the loop has to record the sizes of answers."""
        return self._stats.records.all_wanted

    def record_response(self, since_ns: int, *, first: bool) -> int:
        """Record a response. `since_ns` is the time of the previous one or, for the first, of the batch's start.

        Returns:
            The current time, in nanoseconds.
        """
        return self._stats.responded(since_ns, first=first)

    # ── any thread ───────────────────────────────────────────────────────────────────────────────

    def release(self, stream: PythonStream, index: int) -> None:
        """Make the main thread end a request. Must not block, since the garbage collector may call it."""
        self._jobs.put(ReleasedRequest(stream, index))

    def ended(self, stream: PythonStream) -> None:
        """Remove a batch that has been answered, or whose proxy is gone. The caller must hold the lock."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._record_end(stream.begun_ns, [stream.part], stream)
            if self._stopping and not stream.lost and stream.outbox.is_idle:
                self._drop(stream.outbox.lane)
            if self._stopping and not self._streams:
                self._jobs.put(None)
            if not self._is_finished():
                self._close_withdrawn_lanes()
            self.changed.notify_all()


# ── a batch in flight, with its senders ──────────────────────────────────────────────────────────────

_ENDED = ResponseRef([], None, ResponseDetails(final=True, empty=True))


class Answering:
    """Object through which a request and its sender answer. When both are gone, its deletion ends the request."""

    def __init__(self, stream: PythonStream, index: int) -> None:
        self._stream = stream
        self._index = index

    def __del__(self) -> None:
        self._stream.release(self._index)

    def sender(self) -> pb_utils.ResponseSender:
        """Return the request's sender. Further calls return the same object while the model refers to it."""
        return self._stream.sender(self._index, self)

    def is_cancelled(self) -> bool:
        """Return True if the client has disconnected or cancelled."""
        return self._stream.is_cancelled(self._index)

    def send(self, response: pb_utils.InferenceResponse | None, final: bool) -> None:
        """Send a response and, with `final`, the end of the responses. A response of None sends only the end."""
        self._stream.send(self._index, response, final)


class PythonStream:
    """A batch in flight, with the state of each of its requests.

    Attributes:
        requests: the argument of `execute`; empty after `execute` has returned
        lost: whether the proxy is gone, so that nothing more is sent
    """

    def __init__(
        self,
        loop: DecoupledModelLoop,
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
        self._last_ns = [0] * len(requests)  #: when the last response to each request was sent
        self._count = len(requests)
        self._senders: dict[int, weakref.ref[pb_utils.ResponseSender]] = {}
        for index, request in enumerate(requests):
            answering = Answering(self, index)
            request.bind(answering.sender, answering.is_cancelled)

    @property
    def unanswered(self) -> int:
        """Return the number of requests that have not received their last response."""
        return len(self._open)

    def cancel(self, index: int) -> None:
        """Record that the client of a request is gone."""
        self._cancelled.add(index)
        self.go(index)

    def hold(self, index: int) -> None:
        """Pause the stream of a request, because the calling model has enough unread responses."""
        if index not in self._cancelled:
            self._held.add(index)

    def go(self, index: int) -> None:
        """Resume the stream of a request, because the calling model has read its responses."""
        self._held.discard(index)

    def finish(self, result: Any) -> None:
        """Process the result of `execute`, and notify the proxy that it has returned.

        Raises:
            WrongReturn: the result is invalid.
        """
        again = [i for i, one in enumerate(self.requests) if one.rescheduled]
        self.take(result)
        if not self.lost and not self._open.issuperset(again):
            raise WrongReturn(ANSWERED)
        self.returned(again)

    def take(self, result: Any) -> None:
        """Send the responses that `execute` returned, and drop the references to the requests.

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
                    "execute returned no response to a request and did not take its response sender"
                )
        self.requests = []

    def returned(self, reschedule: list[int]) -> None:
        """Notify the proxy that `execute` has returned, and that Triton must requeue the requests in `reschedule`."""
        with self._loop.changed:
            self._open.difference_update(reschedule)
            self._has_returned = True
            if not self.lost:
                self._to_lane(BatchReturned(self.id, reschedule))
                self._end_if_done()

    def fail(self, text: str) -> None:
        """Answer all unanswered requests with an error text."""
        with self._loop.changed:
            if not self.lost and self.id in self.outbox.streams:
                del self.outbox.streams[self.id]
                self._open.clear()
                self._to_lane(BatchFailed(self.id, text))
                self._loop.ended(self)
        self.requests = []

    def release(self, index: int) -> None:
        """Handle the deletion of a request and its sender. If the request has not been answered, the main thread will
        fail it.
        """
        if index in self._open and not self.lost:
            self._loop.release(self, index)

    def end_unanswered(self, index: int) -> bool:
        """Fail a request that the model can no longer answer. Return False if it is already answered."""
        if index not in self._open:
            return False
        error = pb_utils.TritonError(unanswered(decoupled=self._model.decoupled))
        self.send(index, pb_utils.InferenceResponse(error=error), True)
        return True

    def sender(self, index: int, answering: Answering) -> pb_utils.ResponseSender:
        """Return the sender of a request. Further calls return the same object while the model refers to it."""
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
        """Send a response to a request and, with `final`, the end of its responses. Block until the proxy has room."""
        with self._loop.changed:
            self._loop.changed.wait_for(lambda: self.lost or not self._must_wait(index))
            if self.lost or index not in self._open:
                return
            # If another model made the request, it still accepts responses after it has cancelled.
            gone = (
                index in self._cancelled
                and self._model.decoupled
                and HANDLE_PARAMETER not in self._refs[index].parameters
            )
            if response is not None and not gone:
                ref = self._model.write_response(
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
                self._last_ns[index] = self._loop.record_response(
                    last_ns or self.begun_ns, first=not last_ns
                )
            if final:
                self._open.discard(index)
                self._end_if_done()

    def _must_wait(self, index: int) -> bool:
        # Never pause for a calling model on the event loop, since that would block all streams.
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
            self.lost = True  # the lanes' thread detects the closed lane, too
        except LaneError as error:
            self.lost = True
            report(f"an answer could not be sent: {error}")
            # Close the lane, which fails its requests. They would wait forever otherwise.
            with contextlib.suppress(OSError):  # the proxy has already closed it
                self.outbox.lane.hang_up()
