"""The sleep state of a model: it has no workers while asleep, and the first batch starts them.

asleep ──▶ a batch needs a worker: waking ──▶ a worker is ready: awake
   ▲                                                              │
   └──────────── no request for the model for a while ◀───────────┘

While the model wakes, batches wait as they do when a worker is replaced: those that tritonserver has passed to a proxy
wait at the dispatcher, all others in tritonserver's queue. Both the time and the number of waiting requests are bounded.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.workers.model_counters import Tally

#: How long additional instances of a model that already serves wait for memory before they ask again.
FURTHER_WAIT_S = 60.0


@dataclass(frozen=True)
class WakeBounds:
    """Limits while a model wakes: seconds since the wake-up began, and requests in tritonserver's queue."""

    seconds: float = 60.0
    requests: int = 1000


class Sleep:
    """The sleep state of one registration's workers.

    Args:
        model: Name of the model.
        bounds: Limits on waiting requests while the model wakes.
        events: Receives the events about falling asleep and waking.
        tally: Counts the wake-ups.
        asleep: Whether the model starts asleep: registered, but not loaded.

    Attributes:
        asleep: The model has no workers until a batch needs one.
        waking: A batch needs a worker, and none is ready yet.
        queued: Requests waiting in tritonserver, as last reported by the autoscaler.
        lacks_room: The model is waking but has no memory for a worker yet.
        held: The model must not wake now; batches wait.
        wakes: Number of wake-ups so far.
    """

    def __init__(
        self,
        model: str,
        bounds: WakeBounds,
        events: Events,
        tally: Tally | None = None,
        *,
        asleep: bool = False,
    ) -> None:
        self.asleep = asleep
        self.waking = False
        self.queued = self.wakes = 0
        self.lacks_room = self.held = False
        self._refusal: tuple[int, RemoteFailure] | None = None
        self._model = model
        self._bounds = bounds
        self._events = events
        self._tally = tally or Tally()
        self._since = asyncio.get_running_loop().time()
        self._woken_at = 0.0
        self._why = ""
        #: Seconds since the epoch, for status.
        self._at = time.time()

    @property
    def now(self) -> bool:
        """Whether the model is asleep or waking."""
        return self.asleep or self.waking

    def text(self) -> str:
        """Return a text for users, such as "asleep since 2026-01-31 12:00:00"."""
        return "asleep since " + time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._at))

    def begin(self, idle_s: float, workers: int, why: str = "") -> None:
        """Fall asleep with this many workers to stop, after `idle_s` seconds without requests or for the reason `why`."""
        self.asleep, self.waking = True, False
        self._since, self._at = asyncio.get_running_loop().time(), time.time()
        self._events.tell(
            kinds.SLEPT,
            reason=why or f"it had no requests for {idle_s:.0f} s",
            numbers={"idle_s": round(idle_s, 3), "workers": workers},
        )

    def wake(self, why: str) -> None:
        """Start a wake-up. The caller starts the workers."""
        self.asleep, self.waking, self._why = False, True, why
        self.wakes += 1
        self._woken_at = asyncio.get_running_loop().time()

    def back(self) -> None:
        """Return to sleep after a cancelled or failed wake-up."""
        self.asleep, self.waking, self.lacks_room = True, False, False

    def refuse(self, failure: RemoteFailure) -> None:
        """Return to sleep because memory was refused, and fail the requests that wait for this wake-up."""
        self._refusal = (self.wakes, RemoteFailure(ErrorKind.UNAVAILABLE, failure.text))
        self.back()

    def raise_refusal(self, wake: int) -> None:
        """Check wake-up number `wake`; 0 means no wake-up.

        Raises:
            RemoteFailure: The wake-up failed for lack of memory.
        """
        if wake and self._refusal is not None and wake <= self._refusal[0]:
            raise self._refusal[1]

    def end(self) -> None:
        """Finish a wake-up: a worker is ready."""
        if not self.now:
            return
        now = asyncio.get_running_loop().time()
        slept_s, took_s = self._woken_at - self._since, now - self._woken_at
        self.asleep = self.waking = False
        self.queued = 0
        self._tally.wakes += 1
        self._events.tell(
            kinds.WOKEN,
            reason=f"{self._why}, after {slept_s:.0f} s asleep",
            numbers={"asleep_s": round(slept_s, 3), "took_s": round(took_s, 3)},
        )

    def left_s(self) -> float | None:
        """Return how many more seconds a batch may wait for the wake-up, or None if the model is not waking.

        Raises:
            RemoteFailure: The wake-up takes longer than `wake_timeout_s`, or too many requests wait.
        """
        if not self.waking:
            return None
        waited_s = asyncio.get_running_loop().time() - self._woken_at
        why = ""
        if waited_s >= self._bounds.seconds:
            doing = "waiting for memory" if self.lacks_room else "loading"
            why = f"its worker has been {doing} for {waited_s:.0f} s (wake_timeout_s)"
        elif self.queued > self._bounds.requests:
            why = f"{self.queued} requests wait for its worker (wake_queue_size)"
            self.queued -= 1  # this request fails; the count is refreshed from tritonserver later
        if why:
            text = f"model {self._model} was asleep, and {why}: try again later"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        return self._bounds.seconds - waited_s
