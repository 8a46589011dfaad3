"""Main loop of workers with an asynchronous decoupled callable: concurrent streams on an event loop."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchPart,
    BatchParts,
    BatchTexts,
    FromWorker,
    Metrics,
    PartRef,
)
from pytriton.proxy.results import sending
from pytriton.proxy.types import Request
from pytriton.worker.async_loop import OnEventLoop
from pytriton.worker.event_loops import within_limit
from pytriton.worker.request_log import Part, serving
from pytriton.worker.stream_loop import StreamLoop
from pytriton.worker.streams import INLINE_PARTS, BatchStream, Outbox


class AsyncStreamLoop(StreamLoop, OnEventLoop):
    """Main loop for decoupled coroutine functions and asynchronous generators. Each stream is a task."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batches_at_once = self._model.max_concurrency
        self._heard: dict[Lane, asyncio.Event] = {}
        self._turns = Turns(self._events.call_soon)

    def _retire(self) -> None:
        for lane, outbox in list(self._outboxes.items()):
            if not outbox.retire():
                self._drop(lane)

    def _idle_lanes(self) -> list[Lane]:
        return [lane for lane, outbox in self._outboxes.items() if outbox.is_idle]

    def _prepare_lane(self, lane: Lane) -> None:
        self._heard[lane] = asyncio.Event()
        self._events.add_reader(lane.fileno(), self._serve, [lane])
        super()._prepare_lane(lane)

    def _outbox(self, lane: Lane) -> Outbox:
        on_full = partial(self._watch_for_room, lane)
        return GatheringOutbox(lane, self._batches_at_once, self._turns, self._drop, on_full)

    def _watch_for_room(self, lane: Lane) -> None:
        self._tasks[lane] = self._events.create_future()
        self._events.add_writer(lane.fileno(), self._send_queued, lane)

    def _send_queued(self, lane: Lane) -> None:
        try:
            if not lane.flush():
                return
        except (LaneClosed, LaneError) as error:
            self._drop(lane, error)
            return
        self._events.remove_writer(lane.fileno())
        self._tasks.pop(lane).set_result(None)
        outbox = self._outboxes[lane]
        if self._stopping and outbox.is_idle:
            self._drop(lane)
        elif not outbox.full:
            self._heard[lane].set()
        if not self._is_finished():
            self._close_withdrawn_lanes()

    def _drop(self, lane: Lane, error: Exception | None = None) -> None:
        self._events.remove_reader(lane.fileno())
        if lane in self._tasks:
            self._events.remove_writer(lane.fileno())
            self._tasks.pop(lane).cancel()
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
            # Otherwise, the streams that wait for room would wake up only to wait again.
            if not outbox.full:
                self._heard[lane].set()
            if outbox.cancelled:
                outbox.cancelled = False
                for stream in outbox.streams.values():
                    if stream.abandoned:
                        self._tasks[stream].cancel()

    def _stream(self, outbox: Outbox, batch: Batch) -> None:
        if self.unrecoverable:
            raise LaneClosed("this worker accepts no more batches")
        stream = self._begin(outbox, batch)
        task = self._events.create_task(self._answer_stream(outbox, batch, stream))
        self._tasks[stream] = task
        # Not at the end of the coroutine: a task that is cancelled before its first step never runs it.
        task.add_done_callback(partial(self._task_done, outbox, stream))

    async def _answer_stream(
        self, outbox: Outbox, batch: Batch, stream: BatchStream
    ) -> BaseException | None:
        serving.set([Part(outbox.lane, batch)])  # for this task and its child tasks
        try:
            requests = self._requests(outbox, batch, stream)
            stream.send_begun()
            sending.set(stream.put_text)
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
        """Return True if this loop itself cancelled the task of a stream, because nobody was waiting for the stream's
        answers.
        """
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
            self._record_end(stream.begun_ns)
            return
        try:
            self._end(stream, self._outcome(stream, task))
        except LaneClosed:
            return  # `_serve` will see that the lane is closed
        except (LaneError, ArenaError) as error:
            self._drop(outbox.lane, error)
        if self._stopping and outbox.lane in self._outboxes and outbox.is_idle:
            self._drop(outbox.lane)
        elif not self._is_finished():
            self._close_withdrawn_lanes()

    def _outcome(
        self, stream: BatchStream, task: asyncio.Task[BaseException | None]
    ) -> BaseException | None:
        if not task.cancelled():
            return task.result()
        # If not by this loop, the task was cancelled by its callable.
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


# ── the parts that streams produce in one turn of the event loop are sent in one message ─────────────
#
# Each message costs a system call, and wakes the proxy. With 128 streams that each produce a token every 10 ms, 13 tokens
# are due per millisecond, which is the resolution of the loop's timers.


#: Maximum CPU time of a short step of the callable, and the allowance for each further step since the last check.
_SHORT_NS = 500_000
_EACH_NS = 100_000
#: Maximum time for which a part waits for others. Short steps take less, unless other processes occupy the CPU.
_HELD_NS = 10_000_000
#: Maximum number of parts in one message, so that the proxy can start to forward them.
_MAX_WAITING = 32


class Use(NamedTuple):
    """The CPU time that this thread has used, and how often the thread has blocked."""

    cpu_ns: int
    waits: int

    @classmethod
    def now(cls) -> Use:
        """Return the current values for this thread."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return cls(int((used.ru_utime + used.ru_stime) * 1e9), used.ru_nvcsw)


class Turns:
    """Turns of an event loop in which streams of any lane produce parts.

    A part waits for those of other streams only if one of the previous two turns had several parts, and neither that turn
    nor a later one was long. So the parts of a callable that computes on the event loop, instead of awaiting the
    computation, are sent at once, and so are those of streams whose parts rarely coincide.

    Args:
        soon: schedules a callback to run after the callbacks that are ready now
        clock_ns, use: replaced in tests
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        use: Callable[[], Use] = Use.now,
    ) -> None:
        self.is_long = False  #: whether the current turn is long
        self.gathers = False
        self._soon = soon
        self._clock_ns = clock_ns
        self._use = use
        self._count = 0  #: parts of this turn
        self._coincided = False  #: whether the previous turn had several parts
        self._last_ns = 0  #: when the last of them was produced
        self._before = Use(0, 0)  #: at the start of the turn, or at the last check
        self._seen = 0  #: number of parts at that time
        #: Outboxes with parts that wait for the end of the turn.
        self._waiting: list[GatheringOutbox] = []

    @property
    def has_begun(self) -> bool:
        """Return True if a stream has produced a part in this turn."""
        return self._count > 0

    def part(self) -> int:
        """Count a part, and return the time in nanoseconds."""
        now = self._clock_ns()
        if self._count == 0:
            self._before = self._use()
            self._soon(self._end)
        else:
            self._check_step(now)
        self._last_ns = now
        self._count += 1
        return now

    def flush_at_turn_end(self, outbox: GatheringOutbox) -> None:
        """Send the waiting parts of an outbox at the end of this turn."""
        self._waiting.append(outbox)

    def _check_step(self, now: int) -> None:
        """Mark the turn as long if the steps since the last check blocked or used a lot of CPU time."""
        if now - self._last_ns > _SHORT_NS:
            use = self._use()
            used_ns = use.cpu_ns - self._before.cpu_ns
            waited = use.waits > self._before.waits
            self.is_long |= waited or used_ns > _SHORT_NS + (self._count - self._seen) * _EACH_NS
            self._before, self._seen = use, self._count

    def _end(self) -> None:
        self._check_step(self._clock_ns())
        coincides = self._count > 1
        self.gathers = (coincides or self._coincided) and not self.is_long
        self._coincided = coincides and not self.is_long
        self._count = self._seen = 0
        self.is_long = False
        waiting, self._waiting = self._waiting, []
        for outbox in waiting:
            outbox.on_turn_end()


class GatheringOutbox(Outbox):
    """Outbox that sends the parts of one turn of the event loop together.

    Args:
        lane: the lane
        batches: how many batches the proxy may send at once
        turns: the turns of the event loop
        on_fault: called with the lane and the error if sending fails
        on_full: as in `Outbox`
    """

    def __init__(
        self,
        lane: Lane,
        batches: int,
        turns: Turns,
        on_fault: Callable[[Lane, Exception], None],
        on_full: Callable[[], None],
    ) -> None:
        super().__init__(lane, batches, on_full)
        self._turns = turns
        self._on_fault = on_fault
        #: Waiting parts: general ones, or texts, which are of one output. Never both.
        self._waiting: list[PartRef] = []
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._output = ""
        self._held_ns = 0  #: when the first waiting part was produced

    def put(self, message: BatchPart | Metrics) -> None:
        """Send a part, either now or together with others at the end of this turn."""
        turns = self._turns
        if isinstance(message, Metrics) or (len(self.streams) < 2 and not turns.has_begun):
            super().put(message)
            return
        now = turns.part()
        if not turns.gathers:
            super().put(message)
            return
        if self._ids:
            self._flush()
        if not self._waiting:
            self._held_ns = now
            turns.flush_at_turn_end(self)
        self._parts += 1
        self._waiting.append(PartRef(message.id, message.responses))
        if len(self._waiting) >= _MAX_WAITING or turns.is_long or now - self._held_ns > _HELD_NS:
            self._flush()

    def put_text(self, number: int, output: str, text: str) -> bool:
        """Send a text, either now or together with others at the end of this turn."""
        turns = self._turns
        if self._parts >= INLINE_PARTS:
            return False
        if len(self.streams) < 2 and not turns.has_begun:
            return super().put_text(number, output, text)
        now = turns.part()
        if not turns.gathers:
            return super().put_text(number, output, text)
        if self._waiting or output != self._output:
            self._flush()
            self._output = output
        ids = self._ids
        if not ids:
            self._held_ns = now
            turns.flush_at_turn_end(self)
        self._parts += 1
        ids.append(number)
        self._texts.append(text)
        if len(ids) >= _MAX_WAITING or turns.is_long or now - self._held_ns > _HELD_NS:
            self._flush()
        return True

    def send(self, message: FromWorker) -> None:
        """Send the waiting parts, then a message that needs no credit."""
        self._flush()
        self.lane.send(message)

    def forget(self) -> None:
        """Drop waiting parts: the lane is gone."""
        self._waiting.clear()
        self._ids, self._texts = [], []

    def on_turn_end(self) -> None:
        """Send the waiting parts."""
        try:
            self._flush()
        except LaneClosed:
            return  # the loop will see that the lane is closed

    def _flush(self) -> None:
        """Send the waiting parts.

        Raises:
            LaneClosed: the proxy is gone, or sending failed, which ends all streams of the lane.
        """
        if self._ids:
            message = BatchTexts(self._output, self._ids, self._texts)
            self._ids, self._texts = [], []
            self._send_waiting(message)
        elif self._waiting:
            parts, self._waiting = self._waiting, []
            first = parts[0]
            self._send_waiting(
                BatchParts(parts) if len(parts) > 1 else BatchPart(first.id, first.responses)
            )

    def _send_waiting(self, message: BatchPart | BatchParts | BatchTexts) -> None:
        try:
            self.lane.send(message)
        except LaneClosed:
            raise
        except Exception as error:
            self._on_fault(self.lane, error)
            raise LaneClosed(f"streamed responses could not be sent: {error}") from error
