"""Stats pages: a worker's state and counters in shared memory, which the dispatcher reads without asking the worker.

The dispatcher creates the page (a memfd) and passes it to the worker at start. The worker
updates it around every batch, so the dispatcher can distinguish a busy worker from a hung or a stopped one, even if
it no longer responds, and can read its counters after it has exited::

    [ batches begun ][ batches answered ][ requests begun ][ begun at, 0: idle ][ ending ]     8 bytes each
    [ counters ] … [ failed requests, one number for each of FAILURES ]
    [ histograms: the sum, then the buckets ] …
    [ exemplars of traced calls, see histograms.py ]
    [ records of single requests, see request_records.py ]
    [ only of worker processes: the callable's own metrics, see user_metrics.py ]

Times are CLOCK_MONOTONIC in nanoseconds, one clock for all processes of a machine. One thread writes at a time. The
reader takes no lock: of two related values, it may see one a batch earlier than the other.

The updates are on the hot path, so the worker caches what it has written and never reads it back. For calls that
do not overlap (all except streams), the busy time is not counted separately: it is their total duration.
"""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pytriton._protocol import linux
from pytriton._protocol.lanes import histograms, request_records, user_metrics
from pytriton._protocol.lanes.histograms import BOUNDS_NS, DURATION_BUCKETS, SIZE_BUCKETS
from pytriton._protocol.messages.metrics import Histogram, Work

_BEGUN, _ANSWERED, _REQUESTS, _BEGUN_AT, _ENDING = range(5)
_BUSY_NS, _BUSY_SINCE, _ROWS, _MERGED, _PARTS, _LOAD_NS, _WARMUP_NS, _ARENA, _OVERLAPPED = range(
    5, 14
)
#: Reasons for failed requests, as seen by the worker.
FAILURES = ("callable", "input", "result", "timeout", "unrecoverable")
_FIRST_FAILED, _AFTER_FAILED = 16, 16 + len(FAILURES)
_FAILED = {kind: _FIRST_FAILED + number for number, kind in enumerate(FAILURES)}
#: Offset of the histograms; each begins with its sum.
_CALLS = 32
_WAITS = _CALLS + 1 + DURATION_BUCKETS
_FIRSTS = _WAITS + 1 + DURATION_BUCKETS
_BETWEENS = _FIRSTS + 1 + DURATION_BUCKETS
_SIZES = _BETWEENS + 1 + DURATION_BUCKETS
_WORDS = _SIZES + SIZE_BUCKETS
#: Offsets of the exemplars and the request records, page-aligned.
_EXEMPLARS = -(-_WORDS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
_RECORDS = _EXEMPLARS + -(-histograms.SIZE // mmap.PAGESIZE) * mmap.PAGESIZE
_THRESHOLD = _RECORDS // 8 + request_records.THRESHOLD
#: Size of the mapping.
_BYTES = -(-(_RECORDS + request_records.SIZE) // mmap.PAGESIZE) * mmap.PAGESIZE
#: The size including the callable's own metrics. Workers in a registrant's process have none: they cannot be
#: attributed.
_BYTES_WITH_METRICS = _BYTES + user_metrics.SIZE
#: Version of the layout: reader and writer must agree on it.
LAYOUT = f"2: {_WORDS} {_RECORDS} {_BYTES_WITH_METRICS} {' '.join(FAILURES)}"
#: A larger number of rows counts as an error.
_MAX_ROWS = 1 << 32
#: Precomputed bucket for each usual number of rows.
_BUCKET_OF_ROWS = tuple((max(rows, 1) - 1).bit_length() for rows in range(1025))
_USUAL_ROWS = len(_BUCKET_OF_ROWS) - 1
#: Maximum value of a counter in a message. A worker may write any value into its page.
_MAX_INT64 = (1 << 63) - 1
#: Maximum value of a bucket in a message, so that the total of a histogram stays within the limit as well.
_MAX_IN_BUCKET = _MAX_INT64 >> 7

_now = time.monotonic_ns


class StatsReading(NamedTuple):
    """The values of a stats page at one moment.

    `busy_s` is how long the current batch has been running, in seconds; None when idle. `ending` is set once the worker
    knows that it must exit; `overlaps`, if its batches may overlap.
    """

    begun: int
    answered: int
    busy_s: float | None
    ending: bool = False
    overlaps: bool = False

    @property
    def idle(self) -> bool:
        """Return True if no batch is in flight."""
        return self.begun == self.answered


class Counts(NamedTuple):
    """Totals of one worker, or of several workers that served the same instance.

    Times are in nanoseconds. Fields named `…_buckets` are histograms: the number of observations in each bucket
    (histograms.py).
    """

    calls: int = 0
    requests: int = 0
    rows: int = 0
    merged: int = 0
    parts: int = 0
    busy_ns: int = 0
    failed: tuple[int, ...] = (0,) * len(FAILURES)
    call_ns: int = 0
    call_buckets: tuple[int, ...] = (0,) * DURATION_BUCKETS
    wait_ns: int = 0
    wait_buckets: tuple[int, ...] = (0,) * DURATION_BUCKETS
    first_ns: int = 0
    first_buckets: tuple[int, ...] = (0,) * DURATION_BUCKETS
    between_ns: int = 0
    between_buckets: tuple[int, ...] = (0,) * DURATION_BUCKETS
    size_buckets: tuple[int, ...] = (0,) * SIZE_BUCKETS

    def plus(self, other: Counts) -> Counts:
        """Return the element-wise sum of these counts and `other`."""
        if self is NOTHING or other is NOTHING:
            return other if self is NOTHING else self
        return Counts._make(map(_sum, self, other))

    def as_work(self, failed: Mapping[str, int] | None = None) -> Work:
        """Return the counts, limited to what a message can hold. `failed` contains the failures that only the daemon
        sees.
        """
        failures = {**dict(zip(FAILURES, self.failed)), **(failed or {})}
        return Work(
            calls=_bounded(self.calls),
            requests=_bounded(self.requests),
            rows=_bounded(self.rows),
            merged=_bounded(self.merged),
            responses=_bounded(self.parts),
            busy_s=self.busy_ns / 1e9,
            failed={kind: _bounded(count) for kind, count in failures.items() if count},
            call_s=_histogram(self.call_ns / 1e9, self.call_buckets),
            wait_s=_histogram(self.wait_ns / 1e9, self.wait_buckets),
            rows_per_call=_histogram(self.rows, self.size_buckets),
            first_s=_histogram(self.first_ns / 1e9, self.first_buckets),
            between_s=_histogram(self.between_ns / 1e9, self.between_buckets),
        )


def _sum(one: Any, other: Any) -> Any:
    return tuple(map(int.__add__, one, other)) if isinstance(one, tuple) else one + other


def _bounded(count: int) -> int:
    return min(count, _MAX_INT64)


def _histogram(total: float, buckets: Sequence[int]) -> Histogram:
    """Return a histogram without the empty buckets at its end."""
    size = len(buckets)
    while size and not buckets[size - 1]:
        size -= 1
    filled = list(buckets[:size])
    if filled and max(filled) > _MAX_IN_BUCKET:
        filled = [min(count, _MAX_IN_BUCKET) for count in filled]
    return Histogram(float(total), filled)


#: Counts before any work.
NOTHING = Counts()


class WorkerStatsPage:
    """One end of a stats page: the worker writes it, the dispatcher reads it."""

    #: Slots: around each batch, attributes are accessed some thirty times, which is slow with a dictionary.
    __slots__ = (
        "_answered", "_begun", "_between_ns", "_between_page", "_betweens", "_buckets", "_busy_ns", "_call_ns",
        "_call_page", "_calls", "_first_ns", "_first_page", "_firsts", "_map", "_on_record", "_overlapped", "_parts",
        "_requests", "_rows", "_since", "_size_page", "_sizes", "_wait_ns", "_wait_page", "_waits", "_words",
        "exemplars", "kept", "on_work", "records", "user_metrics",
    )  # fmt: skip

    def __init__(
        self, fd: int, on_record: Callable[[int, int, Any, Any], None] | None = None
    ) -> None:
        """Take ownership of a descriptor of the page.

        Args:
            fd: the descriptor
            on_record: in the worker, called with the begin and end times of a call that needs records, and with the
                `parts` and `answers` passed to `end`
        """
        self._on_record = on_record
        try:
            with_metrics = os.fstat(fd).st_size >= _BYTES_WITH_METRICS
            self._map = mmap.mmap(fd, _BYTES_WITH_METRICS if with_metrics else _BYTES)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        self._remember()
        of_traces = memoryview(self._map)[_EXEMPLARS : _EXEMPLARS + histograms.SIZE]
        self.exemplars = histograms.Exemplars(of_traces)
        self.records = request_records.RequestRecords(memoryview(self._map)[_RECORDS:_BYTES])
        self.user_metrics = (
            user_metrics.UserMetricsPages(memoryview(self._map)[_BYTES:]) if with_metrics else None
        )
        #: In the worker: called at the start of a batch if no other batch is in flight.
        self.on_work: Callable[[], object] | None = None
        self._busy_ns = 0  #: the highest value read so far
        #: In the dispatcher: a descriptor of the page, passed to the next version on upgrade.
        self.kept: int | None = None

    @classmethod
    def create(cls) -> tuple[WorkerStatsPage, int]:
        """Create a stats page. Return it, and a descriptor for the worker, which the caller must close."""
        fd = linux.memfd_create("pytriton-gauge")
        try:
            os.ftruncate(fd, _BYTES_WITH_METRICS)
            linux.seal_against_shrinking(fd)
            stats = cls.adopt(os.dup(fd))
        except BaseException:
            os.close(fd)
            raise
        stats.records.want(request_records.NEVER, 0)
        return stats, fd

    @classmethod
    def adopt(cls, fd: int) -> WorkerStatsPage:
        """Return the dispatcher's end of an existing page, and take ownership of its descriptor."""
        try:
            stats = cls(os.dup(fd))
        except BaseException:
            os.close(fd)
            raise
        stats.kept = fd
        return stats

    @classmethod
    def create_file(cls, path: Path) -> WorkerStatsPage:
        """Create a stats page as a file, for a worker in a process that is not a child of this one.

        The disk space is reserved now, so that a full disk is reported here. The caller removes the file once the
        worker has opened it.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _BYTES)
            stats = cls(os.dup(fd))
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        stats.records.want(request_records.NEVER, 0)
        return stats

    # ── the worker's end ─────────────────────────────────────────────────────────────────────────

    def _remember(self) -> None:
        """Initialize the cache of written values from the page."""
        words = self._words
        self._begun, self._answered, self._requests = words[:_BEGUN_AT].tolist()
        self._rows, self._parts, self._overlapped = words[_ROWS], words[_PARTS], words[_OVERLAPPED]
        self._call_ns, self._wait_ns = words[_CALLS], words[_WAITS]
        self._first_ns, self._between_ns = words[_FIRSTS], words[_BETWEENS]
        self._since = 0  #: when the worker was last idle
        #: The buckets: their position on the page, and their counts.
        self._buckets = [
            words[_CALLS + 1 : _WAITS],
            words[_WAITS + 1 : _FIRSTS],
            words[_FIRSTS + 1 : _BETWEENS],
            words[_BETWEENS + 1 : _SIZES],
            words[_SIZES:_WORDS],
        ]
        self._call_page, self._wait_page, self._first_page, self._between_page, self._size_page = (
            self._buckets
        )
        self._calls, self._waits, self._firsts, self._betweens, self._sizes = [
            page.tolist() for page in self._buckets
        ]

    @property
    def begun(self) -> int:
        """The number of batches that this worker has begun."""
        return self._begun

    def begin(self, requests: int, rows: int = 0, taken_ns: int = 0) -> int:
        """Record the start of a batch, and return the time in nanoseconds.

        If `rows` is 0, each request counts as one row. `taken_ns` is when the proxy received the batch.
        """
        words = self._words
        words[_BEGUN_AT] = now = _now()  # before it counts as begun: `read` relies on this order
        begun = self._begun
        if begun == self._answered:
            self._since = now
            on_work = self.on_work  # another thread may reset it
            if on_work is not None:
                on_work()
            if self._overlapped:
                words[_BUSY_SINCE] = now
        elif not self._overlapped:
            self._overlap()
        self._begun = words[_BEGUN] = begun + 1
        self._requests = words[_REQUESTS] = self._requests + requests
        if 0 < rows <= _USUAL_ROWS:
            at = _BUCKET_OF_ROWS[rows]
        else:
            rows = rows if 0 < rows < _MAX_ROWS else requests or 1
            at = min((rows - 1).bit_length(), SIZE_BUCKETS - 1)
        self._rows = words[_ROWS] = self._rows + rows
        self._size_page[at] = self._sizes[at] = self._sizes[at] + 1
        waited = now - taken_ns
        if 0 <= waited < now:
            self._wait_ns = words[_WAITS] = self._wait_ns + waited
            at = bisect_left(BOUNDS_NS, waited)
            self._wait_page[at] = self._waits[at] = self._waits[at] + 1
        return now

    def _overlap(self) -> None:
        """From now on, count the time during which any call is running separately from the sum of the calls' durations."""
        words = self._words
        words[_BUSY_NS] = self._call_ns
        words[_BUSY_SINCE] = self._since
        self._overlapped = words[_OVERLAPPED] = 1

    def overlap(self) -> None:
        """Prepare for overlapping calls. Must be called before the first of them."""
        if not self._overlapped:
            self._overlap()

    def restarted(self) -> None:
        """Restart the clock of the current batch, because the callable is called again with a new time limit."""
        self._words[_BEGUN_AT] = _now()

    def merged(self, taken_ns: int) -> None:
        """Record that another batch is merged into the call that has just begun."""
        words = self._words
        words[_MERGED] += 1
        now = words[_BEGUN_AT]
        waited = now - taken_ns
        if 0 <= waited < now:
            self._wait_ns = words[_WAITS] = self._wait_ns + waited
            at = bisect_left(BOUNDS_NS, waited)
            self._wait_page[at] = self._waits[at] = self._waits[at] + 1

    def end(self, begun_ns: int, parts: Any = (), answers: Any = ()) -> int:
        """Record the end of the batch that began at `begun_ns`, and return the total number of answered batches.

        `parts` and `answers` are passed to `on_record`.
        """
        words = self._words
        now = _now()
        took = now - begun_ns
        # Before the busy time: `counts` relies on this order.
        self._answered = words[_ANSWERED] = answered = self._answered + 1
        self._call_ns = words[_CALLS] = self._call_ns + took
        at = bisect_left(BOUNDS_NS, took)
        self._call_page[at] = self._calls[at] = self._calls[at] + 1
        if self._overlapped:
            words[_BEGUN_AT] = 0  # it is unknown which of the remaining batches began last
            if answered == self._begun:
                words[_BUSY_NS] += now - self._since
        if took >= words[_THRESHOLD] and self._on_record is not None:
            self._on_record(begun_ns, now, parts, answers)
        return answered

    def responded(self, since_ns: int, *, first: bool) -> int:
        """Record a response of a stream, and return the time.

        `since_ns` is when the batch began (`first`), or when the previous response was sent.
        """
        words = self._words
        now = _now()
        took = now - since_ns
        at = bisect_left(BOUNDS_NS, took)
        self._parts = words[_PARTS] = self._parts + 1
        if first:
            self._first_ns = words[_FIRSTS] = self._first_ns + took
            self._first_page[at] = self._firsts[at] = self._firsts[at] + 1
        else:
            self._between_ns = words[_BETWEENS] = self._between_ns + took
            self._between_page[at] = self._betweens[at] = self._betweens[at] + 1
        return now

    def failed(self, kind: str, requests: int) -> None:
        """Record failed requests; `kind` is one of FAILURES."""
        self._words[_FAILED[kind]] += requests
        self.records.call_failed()

    def traced(self, trace: str, begun_ns: int = 0) -> None:
        """Record a traced call that is about to end. `begun_ns` is when it began; 0 means the call that began most recently."""
        self.exemplars.note(trace, _now() - (begun_ns or self._words[_BEGUN_AT]))

    def loaded(self, load_ns: int, warmup_ns: int) -> None:
        """Record how long the callable took to load and to warm up."""
        self._words[_LOAD_NS] = load_ns
        self._words[_WARMUP_NS] = warmup_ns

    def holds(self, nbytes: int) -> None:
        """Record the total size in bytes of the arenas of the worker's lanes."""
        self._words[_ARENA] = nbytes

    def mark_ending(self) -> None:
        """Record that the worker is about to exit."""
        self._words[_ENDING] = 1

    # ── the dispatcher's end ─────────────────────────────────────────────────────────────────────

    def read(self) -> StatsReading:
        """Return the worker's current state."""
        words = self._words
        begun, answered = words[_BEGUN], words[_ANSWERED]
        begun_at = words[_BEGUN_AT]  # of that batch, or of a later one
        busy_s = (_now() - begun_at) / 1e9 if begun_at and answered < begun else None
        ending, overlaps = words[_ENDING] != 0, words[_OVERLAPPED] != 0
        return StatsReading(begun, answered, busy_s, ending, overlaps)

    def counts(self) -> Counts:
        """Return the worker's counters, including the time that the current batch has taken so far."""
        live = self._words
        words = live[:_WORDS].tolist()
        overlapped = words[_OVERLAPPED]
        busy_ns = words[_BUSY_NS if overlapped else _CALLS]
        # Read batches in flight after ended ones, so that no batch counts as both.
        if live[_ANSWERED] < live[_BEGUN]:
            since = live[_BUSY_SINCE if overlapped else _BEGUN_AT]
            busy_ns += max(0, _now() - since) if since else 0
        # Read between two of the worker's stores, it may seem to decrease; a counter must not.
        self._busy_ns = max(self._busy_ns, busy_ns)
        histograms = [
            (words[at], tuple(words[at + 1 : at + 1 + DURATION_BUCKETS]))
            for at in (_CALLS, _WAITS, _FIRSTS, _BETWEENS)
        ]
        return Counts._make(
            [
                words[_BEGUN],
                words[_REQUESTS],
                words[_ROWS],
                words[_MERGED],
                words[_PARTS],
                self._busy_ns,
                tuple([words[at] for at in _FAILED.values()]),
                *chain.from_iterable(histograms),
                tuple(words[_SIZES:_WORDS]),
            ]
        )

    def outcomes(self) -> tuple[int, tuple[int, ...]]:
        """Return the number of requests begun, and the number of failed requests of each kind in FAILURES."""
        words = self._words
        return words[_REQUESTS], tuple(words[_FIRST_FAILED:_AFTER_FAILED].tolist())

    @property
    def load_s(self) -> float:
        """Return how long the callable took to load, in seconds."""
        return self._words[_LOAD_NS] / 1e9

    @property
    def warmup_s(self) -> float:
        """Return how long the callable took to warm up, in seconds."""
        return self._words[_WARMUP_NS] / 1e9

    @property
    def arena_bytes(self) -> int:
        """Return the total size of the arenas of the worker's lanes, in bytes."""
        return int(self._words[_ARENA])

    def close(self) -> None:
        """Unmap the page."""
        if self.kept is not None:
            os.close(self.kept)
            self.kept = None
        for page in self._buckets:
            page.release()
        self._words.release()
        self.exemplars.close()
        self.records.close()
        if self.user_metrics is not None:
            self.user_metrics.close()
        self._map.close()
