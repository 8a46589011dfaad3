"""The restart policy for workers that end: how soon, how often, and what a crash loop is.

A worker that ended while it ran a batch is laid to that batch's charge, not to its instance's: the batch is tried
again or fails (pool.py), and the next worker is started at once. Otherwise a few requests that end every worker would
take a model away from everybody. All other ends count: a worker that cannot be loaded, or ends with nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytriton._protocol import messages
from pytriton.dispatcher.workers.sleep import WakeBounds

#: So many failures in a row are a crash loop: the worker, its replacement, and the one after that.
CRASH_LOOP = 3
#: Doubled more often than this, any pause is longer than the longest.
_MOST_DOUBLINGS = 60


@dataclass(frozen=True)
class RestartPolicy:
    """How long a worker may take to say hello; how often in a row, and how soon, one that ended is replaced.

    The first replacement comes at once. `limit` None: a worker is replaced for ever. `wake_bounds` is what batches wait
    with for the first worker of a model that was asleep.
    """

    start_timeout_s: float
    limit: int | None
    first_delay_s: float
    longest_delay_s: float
    wake_bounds: WakeBounds = field(default_factory=WakeBounds)

    def delay_s(self, failures: int) -> float | None:
        """Return how long to wait after so many failures in a row; None to give up."""
        if self.limit is not None and failures > self.limit:
            return None
        if failures <= 1:
            return 0.0
        doublings = min(failures - 2, _MOST_DOUBLINGS)
        return min(self.longest_delay_s, self.first_delay_s * 2.0**doublings)


@dataclass
class Exchanges:
    """The count of workers in a row that were spent soon, since they could not take another lane.

    The one that takes the place of such a worker will do no better. It comes at once the first time, and then after the
    pauses of a crash loop; until then the spent one serves those that have lanes.
    """

    policy: RestartPolicy
    _in_row: int = 0

    def pause_s(self, why: str, *, soon: bool) -> float:
        """Return how long a spent worker serves on; `soon`: it has not served for long."""
        lacks_lanes = why.startswith(messages.NO_LANE)
        self._in_row = 0 if not lacks_lanes else self._in_row + 1 if soon else 1
        delay_s = self.policy.delay_s(self._in_row)
        return self.policy.longest_delay_s if delay_s is None else delay_s


@dataclass
class Streak:
    """The count of worker ends in a row in one instance.

    Attributes:
        failures: ends that count as the instance's own; each makes the pause longer.
        fruitless: workers that ended without having answered a batch, also those that a batch has ended.
        next_try_at: when the next worker is started, seconds since the epoch; None: no pause is under way.
    """

    failures: int = 0
    fruitless: int = 0
    next_try_at: float | None = None

    def add(self, *, in_batch: bool = False) -> None:
        """Count a worker that ended, or could not be loaded."""
        self.fruitless += 1
        if not in_batch:
            self.failures += 1

    def clear(self) -> None:
        """End the streak: a worker has shown that it serves."""
        self.failures = self.fruitless = 0

    @property
    def is_crash_loop(self) -> bool:
        """Whether a worker that serves is not to be expected soon."""
        return self.failures >= CRASH_LOOP
