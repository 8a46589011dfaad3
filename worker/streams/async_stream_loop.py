"""The main loop of workers with an asynchronous decoupled callable: many concurrent streams on an event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import Batch
from pytriton.proxy.sending import sending
from pytriton.proxy.types import Request
from pytriton.worker.async_loop import OnEventLoop
from pytriton.worker.event_loops import within_limit
from pytriton.worker.model import Part
from pytriton.worker.request_log import serving
from pytriton.worker.streams.response_batching import GatheringOutbox, Turns
from pytriton.worker.streams.stream_answers import BatchStream, Outbox
from pytriton.worker.streams.stream_loops import StreamLoop


class AsyncStreamLoop(StreamLoop, OnEventLoop):
    """The loop for coroutine functions and asynchronous generators: streams share an event loop."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batches_at_once = self._model.max_concurrency
        self._heard: dict[Lane, asyncio.Event] = {}
        self._turns = Turns(self._events.call_soon)

    def _retire(self) -> None:
        for lane, outbox in list(self._outboxes.items()):
            if not outbox.retire():
                self._drop(lane)

    def _withdraw_one(self) -> None:
        self._withdrawals.want(len(self._lanes))
        self._withdraw()

    def _withdraw(self) -> None:
        idle = [lane for lane, outbox in self._outboxes.items() if not outbox.streams]
        for lane in self._withdrawals.due(idle):
            self._drop(lane)

    def _welcome(self, lane: Lane) -> None:
        self._heard[lane] = asyncio.Event()
        self._events.add_reader(lane.fileno(), self._serve, [lane])
        super()._welcome(lane)

    def _outbox(self, lane: Lane) -> Outbox:
        return GatheringOutbox(lane, self._batches_at_once, self._turns, self._drop)

    def _drop(self, lane: Lane, error: Exception | None = None) -> None:
        self._events.remove_reader(lane.fileno())
        outbox = self._outboxes.get(lane)
        if isinstance(outbox, GatheringOutbox):
            outbox.forget()
        for stream in list(outbox.streams.values()) if outbox is not None else []:
            stream.forget()
            self._tasks[stream].cancel()
        super()._drop(lane, error)
        self._heard.pop(lane).set()

    def _serve(self, ready: list[Lane]) -> None:
        super()._serve(ready)
        lane = ready[0]
        outbox = self._outboxes.get(lane)
        if outbox is not None:
            if (
                not outbox.full
            ):  # otherwise all streams waiting for room would wake up only to wait again
                self._heard[lane].set()
            for stream in outbox.streams.values():
                if stream.abandoned:
                    self._tasks[stream].cancel()

    def _stream(self, outbox: Outbox, batch: Batch) -> None:
        if self.unrecoverable:
            raise LaneClosed("this worker accepts no more batches")
        stream = self._begin(outbox, batch)
        task = self._events.create_task(self._answer_stream(outbox, batch, stream))
        self._tasks[stream] = task
        # Not at the end of the task itself: a task cancelled before its first step never gets there.
        task.add_done_callback(partial(self._task_done, outbox, stream))

    async def _answer_stream(
        self, outbox: Outbox, batch: Batch, stream: BatchStream
    ) -> BaseException | None:
        serving.set([Part(outbox.lane, batch)])  # for this task and its child tasks
        try:
            requests = self._requests(outbox, batch, stream)
            stream.begun()
            sending.set(stream.put)
            limit_s = self._model.execution_timeout_s
            with stream.spans.calling(requests):
                producing = self._produce_async(outbox, stream, requests)
                await within_limit(producing, limit_s, lambda: stream.held_s)
        except asyncio.CancelledError as raised:
            if self._was_cancelled(stream):
                raise
            return raised
        except Exception as raised:
            return raised
        return None

    def _was_cancelled(self, stream: BatchStream) -> bool:
        """Return True if this loop has cancelled the task of a stream, because no one waits for it any more."""
        return stream.abandoned or stream.lane not in self._outboxes

    def _task_done(
        self, outbox: Outbox, stream: BatchStream, task: asyncio.Task[BaseException | None]
    ) -> None:
        del self._tasks[stream]
        if not task.cancelled() and task.exception() is not None:
            self._end_with(task.exception() or AssertionError("it has one"))
            stream.forget()
            return
        if outbox.lane not in self._outboxes:  # the lane is gone
            self._answered(stream.begun_ns)
            return
        try:
            self._end(stream, self._outcome(stream, task))
        except LaneClosed:
            return  # the reader sees its end
        except (LaneError, ArenaError) as error:
            self._drop(outbox.lane, error)
        if self._stopping and outbox.lane in self._outboxes and not outbox.streams:
            self._drop(outbox.lane)
        elif not self._finished():
            self._withdraw()

    def _outcome(
        self, stream: BatchStream, task: asyncio.Task[BaseException | None]
    ) -> BaseException | None:
        if not task.cancelled():
            return task.result()
        # Otherwise by its callable, in its last step.
        return None if self._was_cancelled(stream) else asyncio.CancelledError()

    async def _produce_async(
        self, outbox: Outbox, stream: BatchStream, requests: list[Request]
    ) -> None:
        produced = self._model.produce(requests)
        if not hasattr(produced, "__aiter__"):
            stream.put(await produced)
            return
        try:
            async for results in produced:
                stream.put(results)
                while stream.must_wait and outbox.lane in self._outboxes:
                    heard = self._heard[outbox.lane]
                    heard.clear()
                    await heard.wait()
                if stream.abandoned:
                    return
        finally:
            if hasattr(produced, "aclose"):
                await produced.aclose()

    def _is_cancelled(self, outbox: Outbox, stream: BatchStream, index: int) -> bool:
        return stream.is_cancelled(index)
