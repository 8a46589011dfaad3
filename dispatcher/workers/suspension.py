"""The suspension state of a model: it has no workers while suspended, and the first batch starts them.

suspended ──▶ a batch needs a worker: resuming ──▶ a worker is ready: active
    ▲                                                                    │
    └────────────── no request for the model for a while ◀──────────────┘

While the model resumes, batches that tritonserver has passed to a proxy wait at the dispatcher, and all others in
tritonserver's queue. Both the time and the number of waiting requests are bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.workers.model_counters import ModelCounters

#: How long a serving model waits for the memory of further instances before it claims the memory again.
FURTHER_WAIT_S = 60.0


@dataclass(frozen=True)
class ResumeBounds:
    """Limits while a model is resuming: seconds since the resume began, and requests in tritonserver's queue."""

    seconds: float = 60.0
    requests: int = 1000


class Suspension:
    """The suspension state of one registration's workers.

    Args:
        model: Name of the model.
        bounds: Limits on waiting requests while the model resumes.
        events: Receives the events about suspending and resuming.
        counters: Counts the resumes.
        suspended: Whether the model starts suspended: registered, but not loaded.
        on_resume: Called when a resume begins.

    Attributes:
        suspended: The model has no workers until a batch needs one.
        resuming: A batch needs a worker, and none is ready yet.
        queued: Requests waiting in tritonserver, as last reported by the autoscaler.
        lacks_room: The model is resuming but has no memory for a worker yet.
        held: The model must not resume now; batches wait.
        resumes: Number of resumes so far.
    """

    def __init__(
        self,
        model: str,
        bounds: ResumeBounds,
        events: Events,
        counters: ModelCounters | None = None,
        *,
        suspended: bool = False,
        on_resume: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_resume = on_resume
        self.suspended = suspended
        self.resuming = False
        self.queued = self.resumes = 0
        self.lacks_room = self.held = False
        self._refusal: tuple[int, RemoteFailure] | None = None
        self._model = model
        self._bounds = bounds
        self._events = events
        self._counters = counters or ModelCounters()
        self._since = asyncio.get_running_loop().time()
        self._resuming_since = 0.0
        self._why = ""
        #: Seconds since the epoch, for status.
        self._at = time.time()

    @property
    def in_effect(self) -> bool:
        """Whether the model is suspended or resuming."""
        return self.suspended or self.resuming

    def text(self) -> str:
        """Return a text for users, such as "suspended since 2026-01-31 12:00:00"."""
        return "suspended since " + time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._at))

    def begin(self, idle_s: float, workers: int, why: str = "") -> None:
        """Record that the model is suspended, for the reason `why` or because it was idle for `idle_s` seconds.

        `workers` is the number of workers that are being stopped.
        """
        self.suspended, self.resuming = True, False
        self._since, self._at = asyncio.get_running_loop().time(), time.time()
        self._events.emit(
            kinds.SUSPENDED,
            reason=why or f"it had no requests for {idle_s:.0f} s",
            numbers={"idle_s": round(idle_s, 3), "workers": workers},
        )

    def begin_resume(self, why: str) -> None:
        """Record that the model is being resumed, and why. The caller starts the workers."""
        self.suspended, self.resuming, self._why = False, True, why
        self.resumes += 1
        self._resuming_since = asyncio.get_running_loop().time()
        self._on_resume()

    def cancel_resume(self) -> None:
        """Record that the model is suspended again, because the resume was cancelled or failed."""
        self.suspended, self.resuming, self.lacks_room = True, False, False

    def refuse(self, failure: RemoteFailure) -> None:
        """Cancel a resume that was refused memory, and fail the requests that are waiting for it."""
        self._refusal = (self.resumes, RemoteFailure(ErrorKind.UNAVAILABLE, failure.text))
        self.cancel_resume()

    def raise_refusal(self, resume: int) -> None:
        """Raise if resume number `resume` was refused. 0 means that there was no resume.

        Raises:
            RemoteFailure: The resume failed for lack of memory.
        """
        if resume and self._refusal is not None and resume <= self._refusal[0]:
            raise self._refusal[1]

    def finish_resume(self) -> None:
        """Record that the model has resumed: a worker is ready."""
        if not self.in_effect:
            return
        now = asyncio.get_running_loop().time()
        suspended_s, took_s = self._resuming_since - self._since, now - self._resuming_since
        self.suspended = self.resuming = False
        self.queued = 0
        self._counters.counts.resumes += 1
        self._events.emit(
            kinds.RESUMED,
            reason=f"{self._why}, after {suspended_s:.0f} s suspended",
            numbers={"suspended_s": round(suspended_s, 3), "took_s": round(took_s, 3)},
        )

    def left_s(self) -> float | None:
        """Return the number of seconds that a batch may still wait for the resume; None if the model is not resuming.

        Raises:
            RemoteFailure: The resume takes longer than `resume_timeout_s`, or too many requests wait.
        """
        if not self.resuming:
            return None
        waited_s = asyncio.get_running_loop().time() - self._resuming_since
        why = ""
        if waited_s >= self._bounds.seconds:
            doing = "waiting for memory" if self.lacks_room else "loading"
            why = f"its worker has been {doing} for {waited_s:.0f} s (resume_timeout_s)"
        elif self.queued > self._bounds.requests:
            why = f"{self.queued} requests wait for its worker"
            self.queued -= 1  # this request fails; the count is refreshed from tritonserver later
        if why:
            text = f"model {self._model} was suspended, and {why}: try again later"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        return self._bounds.seconds - waited_s
