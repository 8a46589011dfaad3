"""The main loop of decoupled models' workers whose callable is asynchronous: many streams at once on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from pytriton.ipc.lanes.arena import KEPT_S, ArenaError
from pytriton.ipc.lanes.lane import Lane, LaneClosed, LaneError
from pytriton.ipc.lanes.lane_messages import Batch
from pytriton.proxy.sending import sending
from pytriton.proxy.types import Request
from pytriton.worker.model import Part
from pytriton.worker.request_ids import serving
from pytriton.worker.streams.gathering import GatheringOutbox, Turns
from pytriton.worker.streams.lane_withdrawals import Withdrawals
from pytriton.worker.streams.stream_answers import ExecutionTimeout, Outbox, Stream
from pytriton.worker.streams.stream_loops import StreamLoop

#: Batches that one proxy may have under way in a worker whose callable is asynchronous.
_AT_ONCE = 64


class AsyncStreamLoop(StreamLoop):
    """The loop for coroutine functions and asynchronous generators: streams share an event loop."""

    _batches_at_once = _AT_ONCE

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tasks: dict[Stream, asyncio.Task[BaseException | None]] = {}
        self._heard: dict[Lane, asyncio.Event] = {}
        self._withdrawals = Withdrawals()
        self._events = self._model.event_loop()
        self._turns = Turns(self._events.call_soon)
        self._ended = asyncio.Event()
        self._fatal: BaseException | None = None  #: what a callable raised that ends the worker
        self._told = -1  #: the descriptor that says when to end

    def run(self, told_to_end: int) -> None:
        """Serve until told to end, or until the callable is unrecoverable; streams under way go on to their end."""
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._control.fileno, self._control_messages)
        self._told = told_to_end
        self._watch(told_to_end, self._told_to_end)
        self._control_messages()
        self._events.run_until_complete(self._serve_all())
        self._events.run_until_complete(self._events.shutdown_asyncgens())
        self.close()

    async def _serve_all(self) -> None:
        await self._ended.wait()
        if not self.unrecoverable and self._fatal is None:
            for lane, outbox in list(self._outboxes.items()):
                if not outbox.retire():
                    self._drop(lane)
        while self._tasks and not self.unrecoverable and self._fatal is None:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        if self._fatal is not None:
            raise self._fatal

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._events.add_reader(fd, handler)

    def _unwatch(self, fd: int) -> None:
        self._events.remove_reader(fd)

    def close(self) -> None:
        """Close all lanes and the event loop."""
        super().close()
        self._events.close()

    def _look_again(self) -> None:
        if self._look_at is None:
            super()._look_again()
            self._events.call_later(KEPT_S + 0.1, self._give_back)

    def _told_to_end(self) -> None:
        super()._told_to_end()
        # It stays readable: watched, it would keep a core busy as long as streams run.
        self._unwatch(self._told)
        self._ended.set()

    def _give_up(self, text: str) -> None:
        super()._give_up(text)
        self._ended.set()

    def _withdraw_one(self) -> None:
        self._withdrawals.want(len(self._lanes))
        self._withdraw()

    def _withdraw(self) -> None:
        for lane in self._withdrawals.due(self._outboxes):
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
            if not outbox.full:  # else all that wait for room would wake up to wait again
                self._heard[lane].set()
            for stream in outbox.streams.values():
                if stream.abandoned:
                    self._tasks[stream].cancel()

    def _stream(self, outbox: Outbox, batch: Batch) -> None:
        if self.unrecoverable:
            raise LaneClosed("this worker takes no more batches")
        stream = self._begin(outbox, batch)
        task = self._events.create_task(self._answer_stream(outbox, batch, stream))
        self._tasks[stream] = task
        # Not at the end of the task itself: one that is cancelled before its first step never gets there.
        task.add_done_callback(partial(self._task_done, outbox, stream))

    async def _answer_stream(
        self, outbox: Outbox, batch: Batch, stream: Stream
    ) -> BaseException | None:
        serving.set([Part(outbox.lane, batch)])  # of this task and those that it makes
        try:
            requests = self._requests(outbox, batch, stream)
            stream.begun()
            sending.set(stream.put)
            limit_s = self._model.execution_timeout_s
            with stream.spans.calling(requests):
                await within_limit(self._produce_async(outbox, stream, requests), stream, limit_s)
        except asyncio.CancelledError as raised:
            if self._was_cancelled(stream):
                raise
            return raised
        except Exception as raised:
            return raised
        return None

    def _was_cancelled(self, stream: Stream) -> bool:
        """Whether this loop has cancelled the task of a stream, for which nobody waits any more."""
        return stream.abandoned or stream.lane not in self._outboxes

    def _task_done(
        self, outbox: Outbox, stream: Stream, task: asyncio.Task[BaseException | None]
    ) -> None:
        del self._tasks[stream]
        if not task.cancelled() and task.exception() is not None:
            # It ends the worker, as asyncio has it with SystemExit and KeyboardInterrupt.
            self._fatal = task.exception()
            self._ended.set()
            stream.forget()
            return
        if outbox.lane not in self._outboxes:  # it is gone
            self._answered(stream.begun_ns)
            return
        try:
            self._end(stream, self._outcome(stream, task))
        except LaneClosed:
            return  # its end is seen by the reader
        except (LaneError, ArenaError) as error:
            self._drop(outbox.lane, error)
        if self._stopping and outbox.lane in self._outboxes and not outbox.streams:
            self._drop(outbox.lane)
        elif not self._finished():
            self._withdraw()

    def _outcome(
        self, stream: Stream, task: asyncio.Task[BaseException | None]
    ) -> BaseException | None:
        if not task.cancelled():
            return task.result()
        # Else by its callable, in its last step.
        return None if self._was_cancelled(stream) else asyncio.CancelledError()

    async def _produce_async(self, outbox: Outbox, stream: Stream, requests: list[Request]) -> None:
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

    def _is_cancelled(self, outbox: Outbox, stream: Stream, index: int) -> bool:
        return stream.is_cancelled(index)


async def within_limit(
    producing: Coroutine[Any, Any, None], stream: Stream, limit_s: float | None
) -> None:
    """Have a stream answered within the time limit, in which what its callers take to read does not count.

    Raises:
        ExecutionTimeout: it takes longer.
    """
    if limit_s is None:
        return await producing
    task = asyncio.ensure_future(producing)
    began = time.monotonic()
    try:
        while not task.done():
            left_s = began + stream.held_s + limit_s - time.monotonic()
            if left_s <= 0:
                text = f"a batch was still running after {limit_s:g} s (execution_timeout_s)"
                raise ExecutionTimeout(text)
            await asyncio.wait([task], timeout=left_s)
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait([task])
        del task  # its error holds this frame
