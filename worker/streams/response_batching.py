"""Sends the parts that streams produce in one turn of an event loop as one message.

A message costs a system call, and wakes the proxy. With 128 streams of a token every 10 ms, 13 tokens are due in each
millisecond, the resolution of the loop's timers.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    BatchPart,
    BatchParts,
    FromWorker,
    Metrics,
    PartRef,
)
from pytriton.worker.streams.stream_answers import Outbox

__all__ = ["GatheringOutbox", "Turns", "Use"]

#: A step of a callable that takes longer does not count as short; each earlier step adds this processor time.
_SHORT_NS = 500_000
_EACH_NS = 100_000
#: Maximum time a part waits for others: short steps take less, unless other processes occupy the processor.
_HELD_NS = 10_000_000
#: Maximum number of parts sent together, so that the proxy can start to pass them on.
_MAX_WAITING = 32


class Use(NamedTuple):
    """The processor time that this thread has used, and how often it has waited."""

    cpu_ns: int
    waits: int

    @classmethod
    def now(cls) -> Use:
        """Return the current values."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return cls(int((used.ru_utime + used.ru_stime) * 1e9), used.ru_nvcsw)


class Turns:
    """The turns of an event loop in which streams answer, on any lane.

    Parts wait for those of other streams only in a turn after one that had several, all produced in short steps.
    So a callable that computes in its turn, instead of awaiting the computation, has each part sent at once.

    Args:
        soon: schedules a callback after everything that is ready in the loop has run
        clock_ns, use: for tests
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
        self._last_ns = 0  #: when the newest of them was produced
        self._before = Use(0, 0)  #: at the beginning, or at the last check
        self._seen = 0  #: number of parts at that time
        self._waiting: list[
            GatheringOutbox
        ] = []  #: outboxes with parts that wait for the end of the turn

    @property
    def has_begun(self) -> bool:
        """Return True if there was a part in this turn."""
        return self._count > 0

    def part(self) -> int:
        """Count a part that has been produced; return the time."""
        now = self._clock_ns()
        if self._count == 0:
            self._before = self._use()
            self._soon(self._end)
        else:
            self._look(now)
        self._last_ns = now
        self._count += 1
        return now

    def waits(self, outbox: GatheringOutbox) -> None:
        """Flush an outbox at the end of this turn."""
        self._waiting.append(outbox)

    def _look(self, now: int) -> None:
        """Record whether the step since the last part was long, unless other processes occupied the processor."""
        if now - self._last_ns > _SHORT_NS:
            use = self._use()
            used_ns = use.cpu_ns - self._before.cpu_ns
            waited = use.waits > self._before.waits
            self.is_long |= waited or used_ns > _SHORT_NS + (self._count - self._seen) * _EACH_NS
            self._before, self._seen = use, self._count

    def _end(self) -> None:
        self._look(self._clock_ns())
        self.gathers = self._count > 1 and not self.is_long
        self._count = self._seen = 0
        self.is_long = False
        waiting, self._waiting = self._waiting, []
        for outbox in waiting:
            outbox.turn_ends()


class GatheringOutbox(Outbox):
    """One lane of a worker whose callable is asynchronous.

    Args:
        turns: the loop's turns
        on_fault: called when the lane can no longer be used
    """

    def __init__(
        self,
        lane: Lane,
        batches: int,
        turns: Turns,
        on_fault: Callable[[Lane, Exception], None],
    ) -> None:
        super().__init__(lane, batches)
        self._turns = turns
        self._on_fault = on_fault
        self._waiting: list[PartRef] = []
        self._held_ns = 0  #: when the first waiting part was produced

    def put(self, message: BatchPart | Metrics) -> None:
        """Send a part, now or at the end of this turn."""
        turns = self._turns
        if isinstance(message, Metrics) or (len(self.streams) < 2 and not turns.has_begun):
            super().put(message)
            return
        now = turns.part()
        if not turns.gathers:
            super().put(message)
            return
        if not self._waiting:
            self._held_ns = now
            turns.waits(self)
        self._parts += 1
        self._waiting.append(PartRef(message.id, message.responses))
        if len(self._waiting) >= _MAX_WAITING or turns.is_long or now - self._held_ns > _HELD_NS:
            self._flush()

    def send(self, message: FromWorker) -> None:
        """Send a message without credit, after the waiting parts."""
        self._flush()
        self.lane.send(message)

    def forget(self) -> None:
        """Drop waiting parts: the lane is gone."""
        self._waiting.clear()

    def turn_ends(self) -> None:
        """Send waiting parts."""
        try:
            self._flush()
        except LaneClosed:
            return  # the reader sees its end

    def _flush(self) -> None:
        """Send waiting parts.

        Raises:
            LaneClosed: the proxy is gone; or sending failed, which ends all of the streams involved.
        """
        parts, self._waiting = self._waiting, []
        try:
            if len(parts) == 1:
                self.lane.send(BatchPart(parts[0].id, parts[0].responses))
            elif parts:
                self.lane.send(BatchParts(parts))
        except LaneClosed:
            raise
        except Exception as error:
            self._on_fault(self.lane, error)
            raise LaneClosed(f"its streams' answers could not be sent: {error}") from error
