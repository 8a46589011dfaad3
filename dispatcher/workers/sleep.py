"""The sleep of a model's workers: none is there, and the first batch has them started.

asleep ──▶ a batch asks for a worker: waking ──▶ a worker is ready: awake
   ▲                                                                 │
   └────────────── nothing was asked of the model for a while ◀──────┘

Batches wait while it wakes, as they do when a worker is replaced: those that tritonserver has handed out, at the
dispatcher; all others in tritonserver's queue. There is a bound on how long they wait, and on how many do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.workers.model_counters import Tally

#: Seconds for which further instances of a model that serves already ask for memory at a time.
FURTHER_WAIT_S = 60.0


@dataclass(frozen=True)
class WakeBounds:
    """The bounds of waiting while a model wakes: seconds since it began to, and requests in tritonserver's queue."""

    seconds: float = 60.0
    requests: int = 1000


class Sleep:
    """The sleep of one registration's workers: where they stand between sleeping and serving.

    Args:
        model: its name
        bounds: of waiting
        events: takes what is decided
        tally: counts
        asleep: whether it begins so: registered, and not loaded

    Attributes:
        asleep: no worker is there, and none comes before a batch asks for one.
        waking: a batch has asked for one, and none is ready yet.
        queued: requests that wait in tritonserver, as far as somebody has asked; whoever asks puts it here.
        lacks_room: it wakes, and there is no memory yet for a worker.
        held: it is not to wake now; batches wait.
        wakes: how often it was woken.
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
        """Whether no worker is ready because it sleeps, or did a moment ago."""
        return self.asleep or self.waking

    def text(self) -> str:
        """Say since when it sleeps, for people."""
        return "asleep since " + time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._at))

    def begin(self, idle_s: float, workers: int, why: str = "") -> None:
        """The workers end: nothing was asked of them for so long, or `why`."""
        self.asleep, self.waking = True, False
        self._since, self._at = asyncio.get_running_loop().time(), time.time()
        self._events.tell(
            kinds.SLEPT,
            reason=why or f"nothing was asked of it for {idle_s:.0f} s",
            numbers={"idle_s": round(idle_s, 3), "workers": workers},
        )

    def wake(self, why: str) -> None:
        """Note that workers are being started."""
        self.asleep, self.waking, self._why = False, True, why
        self.wakes += 1
        self._woken_at = asyncio.get_running_loop().time()

    def back(self) -> None:
        """Sleep on: the workers that were being started have been given up again."""
        self.asleep, self.waking, self.lacks_room = True, False, False

    def refuse(self, failure: RemoteFailure) -> None:
        """There is no room for the workers: it sleeps on, and those that wait for this wake are told."""
        self._refusal = (self.wakes, RemoteFailure(ErrorKind.UNAVAILABLE, failure.text))
        self.back()

    def raise_refusal(self, wake: int) -> None:
        """See that a wake has not come to nothing, by its number; 0 is none.

        Raises:
            RemoteFailure: it has.
        """
        if wake and self._refusal is not None and wake <= self._refusal[0]:
            raise self._refusal[1]

    def end(self) -> None:
        """Note that a worker is ready."""
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
        """Return how long a batch may wait from now on; None: there is no bound, for it does not wake.

        Raises:
            RemoteFailure: it has waited long enough, or too many wait.
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
            self.queued -= 1  # this one's, until tritonserver is asked again
        if why:
            text = f"model {self._model} was asleep, and {why}: try again later"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        return self._bounds.seconds - waited_s
