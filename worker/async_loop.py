"""Main loop of workers with an asynchronous callable: lanes and the callable share an event loop.

`AsyncLoop` serves callables that answer each request once. Each lane has one batch in flight, and all lanes are served
concurrently, so as many batches overlap as there are proxies. A batch that was in flight when an earlier worker was
lost (`Batch.alone`) starts separately from others: if this worker is lost, too, right after that, the batch is probably
the cause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from pytriton._protocol.lanes.arena import KEPT_S
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import Batch, BatchDone, BatchFailed
from pytriton.worker.loop import Loop
from pytriton.worker.model import Unrecoverable
from pytriton.worker.request_log import Part, serving

#: Minimum time between the start of a batch that starts separately and that of any other. A request that crashes its
#: worker usually does so at once, and waiting for each batch to end would serialize them.
_APART_S = 0.25


class OnEventLoop(Loop):
    """Base of the loops that run on the callable's event loop."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Running tasks, by lane (`AsyncLoop`) or by stream (`AsyncStreamLoop`). The latter also has a future here for each
        #: lane with queued messages.
        self._tasks: dict[Any, asyncio.Future[Any]] = {}
        self._events = self._model.event_loop()
        self._ended = asyncio.Event()
        self._fatal: BaseException | None = None  #: an exception of a callable that ends the worker

    def run(self, end_fd: int) -> None:
        """Serve until `end_fd` becomes readable, then finish the batches in flight.

        Return immediately if the callable is unrecoverable.
        """
        self._start_watching(end_fd)
        self._events.run_until_complete(self._serve_all())
        self.close()

    async def _serve_all(self) -> None:
        await self._ended.wait()
        if not self.unrecoverable and self._fatal is None:
            self._retire()
        while self._tasks and not self.unrecoverable and self._fatal is None:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        if self._fatal is not None:
            raise self._fatal

    def _retire(self) -> None:
        """Close the lanes that have no batches in flight, and make the other lanes accept no more batches."""
        raise NotImplementedError

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._events.add_reader(fd, handler)

    def _unwatch(self, fd: int) -> None:
        self._events.remove_reader(fd)

    def close(self) -> None:
        """Close all lanes and stop watching descriptors. The model closes the event loop."""
        if not self._closed:
            for fd in (self._listener.fileno(), self._control.fileno, self._end_fd):
                if fd >= 0:
                    self._events.remove_reader(fd)
        super().close()

    def _schedule_memory_check(self) -> None:
        if self._memory_check_at is None:
            super()._schedule_memory_check()
            self._events.call_later(KEPT_S + 0.1, self._release_unused_memory)

    def _begin_shutdown(self) -> None:
        super()._begin_shutdown()
        self._ended.set()

    def _report_unrecoverable(self, text: str) -> None:
        super()._report_unrecoverable(text)
        self._ended.set()

    def _end_with(self, error: BaseException) -> None:
        """Make `run` raise an exception that ended a task, such as SystemExit."""
        self._fatal = error
        self._ended.set()


class AsyncLoop(OnEventLoop):
    """Main loop for coroutine functions, and for asynchronous generators that yield once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stats.overlap()
        self._queue: deque[Lane] = deque()  #: lanes whose next batch must wait and is still unread
        self._begun_at = 0.0  #: when the last batch started, by the event loop's clock
        self._apart: Lane | None = None  #: the lane of that batch, if it started separately
        self._timer: asyncio.TimerHandle | None = None

    def _retire(self) -> None:
        for lane in self._idle_lanes():
            self._drop(lane)

    def _idle_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane not in self._tasks]

    def _prepare_lane(self, lane: Lane) -> None:
        self._events.add_reader(lane.fileno(), self._serve, [lane])
        super()._prepare_lane(lane)

    def _drop(self, lane: Lane, error: Exception | None = None) -> None:
        self._events.remove_reader(lane.fileno())
        super()._drop(lane, error)
        task = self._tasks.get(lane)
        if task is not None:
            task.cancel()  # nobody waits for its answer any more
        if lane in self._queue:
            self._queue.remove(lane)

    def _serve(self, ready: list[Lane]) -> None:
        lane = ready[0]
        if self._is_finished():
            return
        try:
            if lane in self._tasks:
                message = lane.receive(wait=False)
                raise LaneError(f"{type(message).__name__} arrived while a batch was in flight")
            batch = self._next_batch(lane)
        except LaneSilent:
            return
        except (LaneClosed, LaneError) as error:
            self._drop(lane, error)
        else:
            if batch is None:
                # An unread batch is sent to another worker if this one exits. Watching its lane would keep a core busy.
                self._events.remove_reader(lane.fileno())
                self._queue.append(lane)
                if self._timer is None:
                    self._timer = self._events.call_at(self._begun_at + _APART_S, self._resume)
            else:
                self._begin(lane, batch)

    def _next_batch(self, lane: Lane) -> Batch | None:
        """Read a lane's next batch. Return None if it must wait because it, or the previous one, must start alone."""
        if self._queue:
            return None
        if self._tasks and self._events.time() < self._begun_at + _APART_S:
            waiting = lane.peek()
            if self._apart is not None or (waiting is not None and waiting.alone):
                return None
        message = lane.receive(wait=False)
        if not isinstance(message, Batch):
            raise LaneError(f"unexpected message from the proxy: {type(message).__name__}")
        return message

    def _resume(self) -> None:
        """Start the waiting batches in order, up to the first that must keep waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue, self._queue = self._queue, deque()
        while queue:
            lane = queue.popleft()
            self._serve([lane])
            if self._queue:  # this batch must keep waiting, and so must those behind it
                break
            if lane.fileno() >= 0:
                self._events.add_reader(lane.fileno(), self._serve, [lane])
        self._queue.extend(queue)

    def _begin(self, lane: Lane, batch: Batch) -> None:
        part = Part(lane, batch)
        lane.reads = False  # lending memory would require waiting for the proxy
        self._begun_at, self._apart = self._events.time(), lane if batch.alone else None
        begun_ns = self._record_start([part])
        task = self._events.create_task(self._answer_batch(part))
        self._tasks[lane] = task
        task.add_done_callback(partial(self._batch_done, part, begun_ns))

    async def _answer_batch(self, part: Part) -> BatchDone | BatchFailed:
        serving.set([part])  # for this task and its child tasks
        model, batch = self._model, part.batch
        try:
            return await model.answer_async(part)
        except Unrecoverable as end:
            model.log.failed("unrecoverable", len(batch.requests), end.__cause__)
            self._report_unrecoverable(end.text)
            return BatchFailed(batch.id, end.text)

    def _batch_done(
        self, part: Part, begun_ns: int, task: asyncio.Task[BatchDone | BatchFailed]
    ) -> None:
        lane = part.lane
        del self._tasks[lane]
        if self._apart is lane:
            self._apart = None
        if not task.cancelled() and task.exception() is not None:
            self._stats.end(begun_ns)
            self._end_with(task.exception() or AssertionError("it has one"))
            return
        is_there = lane.fileno() in self._lanes
        if task.cancelled():
            if is_there:  # the callable itself cancelled the task
                answer: BatchDone | BatchFailed = self._model.cancelled(part)
                self._send_answer(part, answer)
                self._record_end(begun_ns, [part], [answer])
            else:
                self._record_end(begun_ns)
        else:
            if is_there:
                self._send_answer(part, task.result())
            self._record_end(begun_ns, [part], [task.result()])
        if self._stopping and lane.fileno() in self._lanes:
            self._drop(lane)
        if not self._is_finished():
            self._close_withdrawn_lanes()
            self._resume()
