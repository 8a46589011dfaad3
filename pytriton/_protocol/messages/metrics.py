"""Metrics of the daemon, its models and their instances: one snapshot for all consumers.

Counters grow as long as a model is served, across exits and replacements of its workers; durations are seconds, sizes
bytes. A histogram is a sum and its buckets, whose bounds are in `pytriton._protocol.lanes.histograms` (`BOUNDS_S` for
durations, `SIZE_BOUNDS` for rows), the last one for values above all bounds; trailing empty buckets are omitted.
`histograms.quantile` returns a quantile of the buckets, or of the difference between two snapshots.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton._protocol.messages.base import Message


class GetMetrics(Message, frozen=True):
    """Ask for MetricsSnapshot."""


class Histogram(msgspec.Struct, frozen=True):
    """A sum of observations, and the number of observations in each bucket."""

    sum: float = 0.0
    buckets: list[int] = []

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.buckets)


class Work(msgspec.Struct, frozen=True):
    """The work done by an instance or a model.

    Attributes:
        calls: calls of the callable, begun.
        requests: in these calls.
        rows: in these calls; a request without a batch axis counts as one.
        merged: batches merged into another batch's call.
        responses: responses of streams.
        busy_s: time with a call in progress.
        failed: requests, by kind: those of `stats_page.FAILURES`; for models also "lost" and "hung" (their worker was).
        call_s: duration of calls.
        wait_s: how long batches waited between tritonserver passing them on and the start of their call.
        rows_per_call: the size of batches.
        first_s: time from the start of a stream's call to its first response.
        between_s: time between consecutive responses of a stream.
    """

    calls: int = 0
    requests: int = 0
    rows: int = 0
    merged: int = 0
    responses: int = 0
    busy_s: float = 0.0
    failed: dict[str, int] = {}
    call_s: Histogram = Histogram()
    wait_s: Histogram = Histogram()
    rows_per_call: Histogram = Histogram()
    first_s: Histogram = Histogram()
    between_s: Histogram = Histogram()


class InstanceMetrics(msgspec.Struct, frozen=True):
    """One instance of a model (of one version), or one of its standby workers. `state` is "" if it was removed.

    Attributes:
        worker: the current one, as for all fields down to `memory_limit`; "" if there is none.
        batch_s: how long its current call has been running; None when idle.
        resident: memory of its process; None if it does not have its own process.
        shared: the part of it that other processes may share.
        gpu: memory on GPUs; None if unknown.
        arenas: shared memory for answers on its lanes.
        memory_limit: the lower of the limits at which it is replaced or killed; None: no limit.
        load_s, warmup_s: how long its callable took to load and to warm up.
        starts: workers started for this instance.
        exits: its workers that exited, by reason: see `worker.EXIT_REASONS`.
        consecutive_exits: consecutive exits without an answered batch in between.
        next_try_at: when the next worker is started (seconds since the epoch), if a start is pending.
    """

    version: int
    instance: int
    standby: bool = False
    state: str = ""
    worker: str = ""
    pid: Optional[int] = None
    device: Optional[str] = None
    lanes: int = 0
    started_at: Optional[float] = None
    batch_s: Optional[float] = None
    resident: Optional[int] = None
    shared: Optional[int] = None
    gpu: Optional[int] = None
    arenas: int = 0
    load_s: float = 0.0
    warmup_s: float = 0.0
    memory_limit: Optional[int] = None
    starts: int = 0
    exits: dict[str, int] = {}
    consecutive_exits: int = 0
    next_try_at: Optional[float] = None
    last_exit: Optional[str] = None
    work: Work = Work()


class QueueMetrics(msgspec.Struct, frozen=True):
    """The queue of one version of a model, as reported by tritonserver: waiting requests, and counters of past ones."""

    version: int
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    queue_s: float = 0.0
    request_s: float = 0.0


class ModelMetrics(msgspec.Struct, frozen=True):
    """One model.

    Attributes:
        desired: the number of instances it should have.
        standby_workers: standby workers beyond these.
        retries: requests retried after their worker was lost.
        poison: requests identified as the cause of worker exits.
        resumes: how often it was resumed after a suspension.
        logged, not_logged: requests written to its access log, and those dropped for lack of space or time.
        work: the total of all its instances, plus failures that only the daemon sees.
        queue: by version; empty if tritonserver was not asked, or did not answer in time.
        memory: the estimated memory of one worker, with a memory_budget.
    """

    name: str
    version: int
    state: str
    served_by: str = "workers"
    isolation: str = "process"
    desired: int = 0
    standby_workers: int = 0
    retries: int = 0
    poison: int = 0
    resumes: int = 0
    logged: int = 0
    not_logged: int = 0
    error: Optional[str] = None
    instances: list[InstanceMetrics] = []
    work: Work = Work()
    queue: list[QueueMetrics] = []
    memory: Optional[int] = None


class MemoryInfo(msgspec.Struct, frozen=True):
    """The budget of one resource, "memory" or a GPU: total and used bytes, and the number of models waiting for it."""

    resource: str
    budget: int
    used: int
    waiting: int = 0


class WebhookMetrics(msgspec.Struct, frozen=True):
    """One webhook: events posted and dropped, failed requests, and events waiting."""

    sent: int = 0
    dropped: int = 0
    failures: int = 0
    waiting: int = 0


class DaemonMetrics(msgspec.Struct, frozen=True):
    """The daemon.

    Attributes:
        registrations: models by state.
        restored, restore_failures: models restored at startup, and failed attempts.
        requests: control messages answered, by type, then by outcome ("done", "refused", or a kind of failure).
        server_restarts: restarts of tritonserver, by reason: "exited", "planned", "replaced".
        loop_lag: delay of the event loop, measured every second.
        lines_dropped: dropped log lines of child processes.
        webhooks: by name.
        disk_free, disk_size: of the file system of the state directory; None without persistence.
        memory: the budgets, if any.
        memory_suspended, memory_waits, memory_refusals: models suspended to free memory, loads that waited for memory,
            and loads that were refused.
        shared_weights: bytes that workers share.
        events_lost: events missing from the files of the event log.
    """

    version: str
    state: str
    pid: int
    started_at: float
    server_state: str
    server_pid: Optional[int] = None
    resident: Optional[int] = None
    server_resident: Optional[int] = None
    registrations: dict[str, int] = {}
    restored: int = 0
    restore_failures: int = 0
    requests: dict[str, dict[str, int]] = {}
    server_restarts: dict[str, int] = {}
    loop_lag: Histogram = Histogram()
    lines_dropped: int = 0
    disk_free: Optional[int] = None
    disk_size: Optional[int] = None
    problems: list[str] = []
    webhooks: dict[str, WebhookMetrics] = {}
    memory: list[MemoryInfo] = []
    memory_suspended: int = 0
    memory_waits: int = 0
    memory_refusals: int = 0
    shared_weights: int = 0
    events_lost: int = 0


class MetricsSnapshot(Message, frozen=True):
    """Answer to GetMetrics; `at` is seconds since the epoch."""

    at: float
    daemon: DaemonMetrics
    models: list[ModelMetrics]
