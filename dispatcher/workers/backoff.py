"""The restart policy for workers: back-off delay, restart limit, and the definition of a crash loop.

If a worker exits while it runs a batch, the batch is blamed and not the instance: the batch is retried or fails
(batch_retry.py), and the next worker starts at once. Otherwise a few requests that crash every worker would make the
model unavailable to all clients. All other exits count as failures: a worker that cannot be loaded or exits while idle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytriton._protocol import messages
from pytriton.dispatcher.workers.suspension import WakeBounds

#: Number of consecutive failures that make a crash loop.
CRASH_LOOP = 3
#: Limits the exponent of the delay to avoid overflow. After so many doublings, any delay exceeds the longest one.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True)
class RestartPolicy:
    """Start timeout, back-off and restart limit of workers.

    The first restart is immediate. `limit` is the number of consecutive restarts; None means unlimited. `wake_bounds`
    limits how long batches wait for a suspended model to wake.
    """

    start_timeout_s: float
    limit: int | None
    first_delay_s: float
    longest_delay_s: float
    wake_bounds: WakeBounds = field(default_factory=WakeBounds)

    def delay_s(self, failures: int) -> float | None:
        """Return the delay in seconds after this many consecutive failures, or None when the limit is reached."""
        if self.limit is not None and failures > self.limit:
            return None
        if failures <= 1:
            return 0.0
        doublings = min(failures - 2, _MAX_DOUBLINGS)
        return min(self.longest_delay_s, self.first_delay_s * 2.0**doublings)


@dataclass
class Exchanges:
    """Back-off for workers that are recycled soon after their start because they cannot accept another lane.

    A replacement is likely to have the same problem. So the first one starts at once, and later ones after the delays
    of a crash loop. Until then the old worker keeps serving its existing lanes.
    """

    policy: RestartPolicy
    _in_row: int = 0

    def pause_s(self, why: str, *, soon: bool) -> float:
        """Return how long, in seconds, to postpone the recycling; `soon`: the worker has not served for long."""
        lacks_lanes = why.startswith(messages.NO_LANE)
        self._in_row = 0 if not lacks_lanes else self._in_row + 1 if soon else 1
        delay_s = self.policy.delay_s(self._in_row)
        return self.policy.longest_delay_s if delay_s is None else delay_s


@dataclass
class Streak:
    """Consecutive worker exits of one instance.

    Attributes:
        failures: Exits blamed on the instance. Each one increases the delay.
        fruitless: Workers that exited without having answered a batch, including those that a batch crashed.
        next_try_at: When the next worker starts, in seconds since the epoch; None outside a back-off delay.
    """

    failures: int = 0
    fruitless: int = 0
    next_try_at: float | None = None

    def add(self, *, in_batch: bool = False) -> None:
        """Count a worker that exited or could not be loaded."""
        self.fruitless += 1
        if not in_batch:
            self.failures += 1

    def clear(self) -> None:
        """Reset the streak after a worker has served."""
        self.failures = self.fruitless = 0

    @property
    def is_crash_loop(self) -> bool:
        """Whether the instance is in a crash loop."""
        return self.failures >= CRASH_LOOP
