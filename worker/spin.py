"""Waiting actively for the next batch: waking a process on another processor takes longer than a small callable does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: Events of an epoll object: descriptors and what happened to them.
Events = list[tuple[int, int]]

#: How long to poll.
_SPIN_NS = 200_000
#: The longest wait after which the next one may be short enough: it includes the time in which a sleeping process wakes
#: up.
_EXPECTED_NS = 2 * _SPIN_NS
#: After longer work, a wake-up adds little.
_MAX_WORK_NS = 1_000_000
#: When yielding the processor takes this long, something else runs on it.
_BUSY_NS = 100_000
#: Budget of time that polling may waste: a success adds the time of a wake-up, up to a limit. Once the budget is used up,
#: each wait adds a little, so that polling is tried again occasionally.
_EARNED_NS = 20_000
_EARNED_BY_WAITING_NS = 2_000
_MAX_BUDGET_NS = 1_000_000


class SpinningPoll:
    """Waits for events as `select.epoll.poll` does, but polls before it sleeps if that is likely to pay off.

    If the last wait and the work since then were short, and the processor has nothing else to run, poll for up to 200 µs
    before sleeping. Successes earn the time that failures cost, so without enough successes, waits sleep at once.

    Args:
        poll: waits for a number of seconds, or without a limit
        clock: returns the time in nanoseconds
        yield_cpu: lets other processes run
    """

    __slots__ = ("_budget_ns", "_clock", "_ended_ns", "_expected", "_poll", "_yield_cpu")

    def __init__(
        self,
        poll: Callable[[float | None], Events],
        clock: Callable[[], int] = time.monotonic_ns,
        yield_cpu: Callable[[], object] = os.sched_yield,
    ) -> None:
        self._poll = poll
        self._clock = clock
        self._yield_cpu = yield_cpu
        self._ended_ns = 0  #: when the last measured wait ended
        self._expected = False  #: the last wait was short, so the next one probably is, too
        self._budget_ns = 0  #: how long failures may still take

    def sleep_next(self) -> None:
        """Make the next wait sleep immediately."""
        self._expected = False

    def __call__(self, timeout_s: float | None) -> Events:
        """Wait for events, and return them."""
        if self._budget_ns <= 0:
            self._budget_ns += _EARNED_BY_WAITING_NS
            return self._poll(timeout_s)
        begun_ns = self._clock()
        if not self._expected or begun_ns - self._ended_ns > _MAX_WORK_NS:
            events = self._poll(timeout_s)
            self._ended_ns = self._clock()
            self._expected = self._ended_ns - begun_ns < _EXPECTED_NS
            return events
        events = self._spin(begun_ns)
        if events:
            self._budget_ns = min(self._budget_ns + _EARNED_NS, _MAX_BUDGET_NS)
            return events
        self._expected = False
        self._budget_ns -= self._clock() - begun_ns
        return self._poll(timeout_s)

    def _spin(self, last_ns: int) -> Events:
        """Poll for events. Return an empty list if none have occurred in time, or if another process needs the CPU."""
        poll, clock, yield_cpu = self._poll, self._clock, self._yield_cpu
        end_ns = last_ns + _SPIN_NS
        while last_ns < end_ns:
            events = poll(0)
            if events:
                self._ended_ns = last_ns
                return events
            yield_cpu()
            now_ns = clock()
            if now_ns - last_ns > _BUSY_NS:
                break
            last_ns = now_ns
        return []
