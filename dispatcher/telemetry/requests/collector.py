"""Collects request records from the workers' statistics pages, for access logs and samples.

    workers' rings ──▶ poll(), up to four times a second ──▶ queue ──▶ a thread: decodes, samples, writes files

None of this blocks a worker. If a ring, the queue or the disk is full, records are lost, and counted. Without an access
log, workers record only a few requests: those slower than the slowest known ones, and a limited number of failed ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from pytriton._protocol import messages
from pytriton._protocol.lanes.request_records import NEVER, UNBOUNDED, RequestRecord, decoded
from pytriton._protocol.lanes.stats_page import FAILURES
from pytriton._protocol.messages.client import RequestEntry
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.runtime.logs import LogFile
from pytriton.dispatcher.runtime.tasks import until, until_next_tick
from pytriton.dispatcher.telemetry.events.explain import Outcomes
from pytriton.dispatcher.workers.model_counters import ModelCounters

_log = structlog.get_logger(__name__)

#: Interval between polls of the workers' rings, in seconds. (A busy worker fills its ring in a second.)
_POLL_INTERVAL_S = 0.25
#: The interval if the last poll found no records and no access log is enabled: 5 s for each hundred models, at most 30 s.
_IDLE_POLL_INTERVAL_S, _MODELS_PER_INTERVAL, _MAX_INTERVALS = 5.0, 100, 6
#: Maximum size of the queue for the thread, in bytes. Beyond it, records are dropped.
_MAX_PENDING_BYTES = 16 << 20
#: Number of bytes to add for each message, because workers may write very small ones.
_MESSAGE_BYTES = 64
#: How long `close` waits for the disk, in seconds.
_CLOSE_TIMEOUT_S = 2.0
#: Maximum length of a request id (which comes from a worker).
_MAX_ID = 200
#: Maximum length of the name of an exception's type.
_MAX_ERROR = 100
_DAY_NS = 86_400 * 10**9
_MAX_INT64 = (1 << 63) - 1
#: End of the period of an access log that is still enabled: later than any time that a worker can report.
_FOREVER = 1 << 64

_encode = msgspec.json.Encoder().encode


class _Job(NamedTuple):
    """A worker's undecoded messages, to be processed by the thread."""

    model: str
    version: int
    instance: int
    messages: list[bytes]
    #: The access log to write to; None to use the records for samples only.
    log: LogFile | None
    #: Period whose requests go to the access log, in nanoseconds of CLOCK_MONOTONIC.
    logged: tuple[int, int]

    @property
    def size(self) -> int:
        """Size in the queue, in bytes."""
        return sum(len(message) + _MESSAGE_BYTES for message in self.messages)


class _Deletion(NamedTuple):
    """Job for the thread: once all earlier lines have been written, delete an access log."""

    log: LogFile


class _Model:
    """Samples and recent outcomes of a model.

    Args:
        counters: counters of the model; if this object changes, there is another model of the same name
    """

    def __init__(self, counters: ModelCounters) -> None:
        self.counters = counters
        self.samples = Samples()
        self.log: LogFile | None = None
        #: Period in which the access log is or was enabled, for records that arrive after it was disabled.
        self.logged = (0, 0)
        #: The minimum duration of a request to be recorded, as last set for the workers, in nanoseconds.
        self.slow_ns = 0
        self.registration: Registration | None = None
        self.outcomes = RecentOutcomes(counters, time.monotonic(), begun=counters.started_at)

    @property
    def logs_all(self) -> bool:
        """Whether the access log is enabled, which makes workers record every request."""
        return self.logged[1] == _FOREVER

    def is_current(self, registration: Registration | None) -> bool:
        """Whether the last `update` applied this registration in its current state."""
        return (
            registration is self.registration
            and (registration is not None and registration.spec.access_log) == self.logs_all
        )

    def update(self, registration: Registration | None) -> None:
        """Apply changes to the registration, and sample the counters. A new registration starts without recent
        outcomes.
        """
        previous, self.registration = self.registration, registration
        logs_all = registration is not None and registration.spec.access_log
        if logs_all != self.logs_all:
            now = time.monotonic_ns()
            begin = now if registration is previous else 0
            self.logged = (begin, _FOREVER) if logs_all else (self.logged[0], now)
        if previous is not None and registration is not previous:
            self.outcomes = RecentOutcomes(self.counters, time.monotonic())
            self.samples.last_failed_at = None
        self.outcomes.sample(time.monotonic())


class RequestCollector:
    """Collects the request records of all models.

    Args:
        registry: the models
        path: returns the path of a model's access log
        open_log: opens an access log
    """

    def __init__(
        self,
        registry: Registry,
        path: Callable[[str], Path],
        open_log: Callable[[Path], LogFile],
    ) -> None:
        self._registry = registry
        self._path = path
        self._open_log = open_log
        self._models: dict[str, _Model] = {}
        self._jobs: queue.SimpleQueue[_Job | _Deletion | None] = queue.SimpleQueue()
        self._pending_bytes = 0
        self._lock = threading.Lock()  #: for the samples, the counters and `_pending_bytes`
        self._thread: threading.Thread | None = None

    async def run(self) -> None:
        """Poll the workers' records periodically while there are models. Runs until cancelled."""
        counter_registry = self._registry.served.counter_registry
        is_idle = False
        while True:
            if not self._models and not counter_registry.items():
                await counter_registry.additions.next.wait()
            if is_idle:
                with contextlib.suppress(asyncio.TimeoutError):
                    intervals = min(1 + len(self._models) // _MODELS_PER_INTERVAL, _MAX_INTERVALS)
                    # Other changes wait: the more models there are, the longer a poll at each registration would take.
                    await asyncio.wait_for(
                        until(
                            self._is_access_log_new,
                            self._registry.changes,
                            counter_registry.additions,
                        ),
                        until_next_tick(intervals * _IDLE_POLL_INTERVAL_S),
                    )
            else:
                await asyncio.sleep(_POLL_INTERVAL_S)
            try:
                is_idle = not self.poll() and not any(one.logs_all for one in self._models.values())
            except Exception:
                _log.exception("internal error: request records were not collected")
                is_idle = False

    def _is_access_log_new(self) -> bool:
        """Whether the access log of a model was enabled, or a model that has one has begun to serve, since the last poll."""
        served = self._registry.served
        found = (served.get(name) for name, _ in served.counter_registry.items())
        return any(one is not None and one.spec.access_log for one in found)

    def poll(self) -> bool:
        """Collect the records of all workers, and set which requests workers record. Return whether there were any
        records.
        """
        now = time.monotonic()
        served = self._registry.served
        if not self._registry.stopping:  # access logs are kept when the daemon stops
            for name, known in list(self._models.items()):
                if served.counter_registry.get(name) is not known.counters:
                    log = self._models.pop(name).log
                    if log is not None:
                        self._put(_Deletion(log))
        found = False
        for name, counters in served.counter_registry.items():
            registration = served.get(name)
            model = self._models.get(name)
            if model is not None and model.is_current(registration):
                if counters.has_records():
                    found = True
                elif not model.outcomes.is_due(now):
                    continue  # most models are idle, most of the time
                elif (
                    not model.slow_ns
                ):  # its workers have no threshold that a new period could lower
                    model.outcomes.sample(now)
                    continue
            self._collect(name, counters, registration, now)
        return found

    def _collect(
        self, name: str, counters: ModelCounters, registration: Registration | None, now: float
    ) -> None:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(counters)
        model.update(registration)
        if model.logs_all and model.log is None:
            model.log = self._open_log(self._path(name))
        with self._lock:
            slow_ns = model.slow_ns = model.samples.threshold_ns(now)
        thresholds = (0, UNBOUNDED) if model.logs_all else (slow_ns, _MAX_UNCOLLECTED)
        for version, instance, records in counters.records(*thresholds):
            with self._lock:
                counters.counts.not_logged += records.left_out
            if records.messages:
                unread = list(records.messages)
                self._enqueue(_Job(name, version, instance, unread, model.log, model.logged))

    def requests(self, name: str) -> messages.Requests:
        """Return the samples of a model's requests. Raises RemoteFailure if no worker serves the model."""
        registration = self._registry.served.by_name(name)
        self.poll()
        now = time.monotonic()
        model, counters = (
            self._models.get(name),
            self._registry.served.counter_registry.get(name),
        )
        with self._lock:
            return messages.Requests(
                name,
                registration.spec.access_log,
                str(self._path(name)),
                logged=counters.counts.logged if counters else 0,
                left_out=counters.counts.not_logged if counters else 0,
                slowest=model.samples.slowest(now) if model else [],
                failed=model.samples.failed() if model else [],
            )

    def outcomes(self, name: str) -> Outcomes | None:
        """Return the outcomes of a model's requests in the last few minutes; None if they are unknown."""
        self.poll()
        model = self._models.get(name)
        if model is None:
            return None
        with self._lock:
            last_at, last_error = model.samples.last_failed_at, model.samples.last_error
        return Outcomes(*model.outcomes.since(time.monotonic()), last_at, last_error)

    @property
    def has_pending(self) -> bool:
        """Whether records are waiting to be written."""
        return self._pending_bytes > 0

    def close(self) -> None:
        """Write the queued records, waiting only a limited time for the disk."""
        self.poll()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _enqueue(self, job: _Job) -> None:
        size = job.size
        with self._lock:
            if self._pending_bytes + size > _MAX_PENDING_BYTES:
                counters = self._registry.served.counter_registry.get(job.model)
                if counters is not None:
                    counters.counts.not_logged += len(job.messages)
                return
            self._pending_bytes += size
        self._put(job)

    def _put(self, job: _Job | _Deletion) -> None:
        self._jobs.put(job)
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="requests", daemon=True)
            thread.start()  # raises if no thread can be started now; the next job retries
            self._thread = thread

    # ── the thread ───────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run_job(job)
        for model in list(self._models.values()):
            if model.log is not None:
                model.log.close()

    def _run_job(self, job: _Job | _Deletion) -> None:
        try:
            if isinstance(job, _Deletion):
                job.log.delete()
            else:
                self._process(job)
        except Exception:
            _log.exception("internal error: could not update an access log")

    def _process(self, job: _Job) -> None:
        written = False
        entries: list[RequestEntry] = []
        logged: list[RequestEntry] = []
        try:
            for entry, is_logged in _entries(job):
                entries.append(entry)
                if is_logged:
                    logged.append(entry)
            written = job.log is None or not logged or job.log.write(_lines(logged))
        finally:
            now = time.monotonic()
            with self._lock:
                self._pending_bytes -= job.size
                self._count(job, len(logged), written=written)
                model = self._models.get(job.model)
                samples = model.samples if model is not None else Samples()
                for one in entries:
                    samples.add(one, now)

    def _count(self, job: _Job, count: int, *, written: bool) -> None:
        counters = self._registry.served.counter_registry.get(job.model)
        if counters is None or job.log is None:
            return
        if written:
            counters.counts.logged += count
        else:
            counters.counts.not_logged += count


def _lines(entries: Sequence[RequestEntry]) -> str:
    return "\n".join(_encode(one).decode() for one in entries)


def _entries(job: _Job) -> Iterator[tuple[RequestEntry, bool]]:
    """Yield each request in a job, and whether it goes to the access log."""
    wall, clock = time.time(), time.monotonic_ns()
    begun, ended = job.logged
    for message in job.messages:
        for record in decoded(message) or ():
            ago_ns = clock - record.ended_ns
            at = wall - (ago_ns / 1e9 if 0 < ago_ns < _DAY_NS else 0.0)
            yield _entry(job, record, at), begun <= record.ended_ns < ended


def _entry(job: _Job, record: RequestRecord, at: float) -> RequestEntry:
    return RequestEntry(
        time=round(at, 6),
        id=record.id[:_MAX_ID],
        model=job.model,
        version=record.version or job.version,
        instance=job.instance,
        status=record.status if record.status in ("ok", *FAILURES) else "callable",
        queue_ns=_bounded(record.queue_ns),
        compute_ns=_bounded(record.compute_ns) or 0,
        batch_requests=_bounded(record.requests) or 0,
        batch_rows=_bounded(record.rows) or 0,
        bytes_in=_bounded(record.bytes_in) or 0,
        bytes_out=_bounded(record.bytes_out),
        error=record.error[:_MAX_ERROR],
    )


def _bounded(count: int) -> int | None:
    """Return a worker's count, limited to what messages can represent; None if the worker did not count."""
    return None if count < 0 else min(count, _MAX_INT64)


# ── samples: the slowest requests of the last hour, and the last failed ones ─────────────────────

#: Number of samples of each kind.
MAX_SAMPLES = 20
#: Maximum number of records that a worker writes between two polls: as many per second as if it were always polled
#: frequently.
_MAX_UNCOLLECTED = int(MAX_SAMPLES * _IDLE_POLL_INTERVAL_S / _POLL_INTERVAL_S)
#: How long to keep the slowest requests, and length of the periods for which they are recorded, in seconds.
_HOUR_S, _PERIOD_S = 3600.0, 600.0


@dataclass
class _SamplePeriod:
    begun: float
    #: Heap of the slowest requests: duration, unique number as a tie-breaker, time of arrival, entry.
    slowest: list[tuple[int, int, float, RequestEntry]] = field(default_factory=list)


class Samples:
    """Samples of a model's requests. In all methods, `now` is the time on a monotonic clock."""

    def __init__(self) -> None:
        #: Exception type of the last failed request, and its time in seconds since the epoch.
        self.last_error = ""
        self.last_failed_at: float | None = None
        self._periods: deque[_SamplePeriod] = deque()
        self._failed: deque[RequestEntry] = deque(maxlen=MAX_SAMPLES)
        self._count = 0

    def add(self, entry: RequestEntry, now: float) -> None:
        """Add a request to the samples, if it failed or is among the slowest."""
        if entry.status != "ok":
            self._failed.appendleft(entry)
            self.last_failed_at, self.last_error = entry.time, entry.error
        period = self._period(now)
        self._count += 1
        one = (entry.compute_ns, self._count, now, entry)
        if len(period.slowest) < MAX_SAMPLES:
            heapq.heappush(period.slowest, one)
        elif one > period.slowest[0]:
            heapq.heapreplace(period.slowest, one)

    def threshold_ns(self, now: float) -> int:
        """Return how long a request must take to be among the slowest, in nanoseconds."""
        period = self._period(now)
        if len(period.slowest) < MAX_SAMPLES:
            return 0
        return min(period.slowest[0][0] + 1, NEVER - 1)

    def slowest(self, now: float) -> list[RequestEntry]:
        """Return the slowest requests of the last hour, slowest first."""
        self._period(now)
        slowest = [one for period in self._periods for one in period.slowest]
        recent = [one for one in slowest if one[2] > now - _HOUR_S]
        return [entry for *_, entry in sorted(recent, reverse=True)[:MAX_SAMPLES]]

    def failed(self) -> list[RequestEntry]:
        """Return the most recent failed requests, newest first."""
        return list(self._failed)

    def _period(self, now: float) -> _SamplePeriod:
        while self._periods and self._periods[0].begun <= now - _HOUR_S - _PERIOD_S:
            self._periods.popleft()
        if not self._periods or self._periods[-1].begun <= now - _PERIOD_S:
            self._periods.append(_SamplePeriod(now))
        return self._periods[-1]


# ── recent outcomes, as differences of cumulative counters ───────────────────────────────────────

#: Length of the period, and interval between its points, in seconds.
_PERIOD_LENGTH_S, _INTERVAL_S = 300.0, 30.0


class _Point(NamedTuple):
    at: float
    requests: int
    failed: Mapping[str, int]


class RecentOutcomes:
    """Outcomes of a model's recent requests, computed from samples of its cumulative counters.

    Times are those of a monotonic clock.

    Args:
        counters: counters of the model
        now: current time
        begun: start time of the counters, to include everything that they have counted; None to start now
    """

    def __init__(self, counters: ModelCounters, now: float, *, begun: float | None = None) -> None:
        self._counters = counters
        first = _Point(now, *counters.outcomes()) if begun is None else _Point(begun, 0, {})
        self._points = deque([first])

    def is_due(self, now: float) -> bool:
        """Whether `sample` will sample the counters."""
        return now >= self._points[-1].at + _INTERVAL_S

    def sample(self, now: float) -> None:
        """Sample the counters. Do nothing if the last sample is too recent."""
        if not self.is_due(now):
            return
        self._points.append(_Point(now, *self._counters.outcomes()))
        while len(self._points) > 1 and self._points[0].at < now - _PERIOD_LENGTH_S:
            self._points.popleft()

    def since(self, now: float) -> tuple[float, int, dict[str, int]]:
        """Return the length of the sampled period in seconds, the number of requests started in it, and the number that
        failed, by kind.
        """
        first = self._points[0]
        requests, failed = self._counters.outcomes()
        recent = {kind: max(0, count - first.failed.get(kind, 0)) for kind, count in failed.items()}
        return now - first.at, max(0, requests - first.requests), recent
