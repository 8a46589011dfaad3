"""Metrics of the daemon, its models and their instances: one snapshot for all consumers.

Counters increase as long as a model is served, across exits and replacements of its workers. Durations are in seconds,
sizes in bytes. A histogram is a sum and its buckets, whose bounds are in `pytriton._protocol.lanes.histograms`
(`BOUNDS_S` for durations, `SIZE_BOUNDS` for rows); the last bucket is for values above all bounds, and trailing empty
buckets are omitted. `histograms.quantile` computes quantiles of buckets, or of the difference between two snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Optional, TypeVar

import msgspec

from pytriton._protocol.messages.base import Message

_T = TypeVar("_T")


@dataclass(frozen=True)
class CounterMetric(Generic[_T]):
    """A counter as a metric. The daemon exposes it as `pytriton_<name>_total`.

    Args:
        name: name without the prefix `pytriton_` and without `_total`
        help: help text
        read: returns the counter's value
    """

    name: str
    help: str
    read: Callable[[_T], float]


class GetMetrics(Message, frozen=True):
    """Request for a snapshot of all metrics, answered with MetricsSnapshot."""


class Histogram(msgspec.Struct, frozen=True):
    """The sum of all observations, and the number of observations in each bucket."""

    sum: float = 0.0
    buckets: list[int] = []

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.buckets)


class Work(msgspec.Struct, frozen=True):
    """The work done by an instance or a model. `WORK_COUNTERS` describes the counters.

    Attributes:
        failed: failed requests, by reason: see `stats_page.FAILURES`; for models also "lost" and "hung", when their
            worker was lost or hung.
        call_s: duration of calls.
        wait_s: time from tritonserver passing a batch to the proxy until the start of its call.
        rows_per_call: number of rows per call.
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


WORK_COUNTERS: tuple[CounterMetric[Work], ...] = (
    CounterMetric("calls", "Calls of the callable, one per batch.", lambda work: work.calls),
    CounterMetric("requests", "Requests passed to the callable.", lambda work: work.requests),
    CounterMetric(
        "rows",
        "Rows passed to the callable; a request without a batch axis counts as one.",
        lambda work: work.rows,
    ),
    CounterMetric(
        "merged_batches",
        "Batches merged into one call with a batch from another proxy.",
        lambda work: work.merged,
    ),
    CounterMetric(
        "stream_responses", "Responses of decoupled models.", lambda work: work.responses
    ),
    CounterMetric(
        "busy_seconds",
        "Time spent in calls, including the current one.",
        lambda work: work.busy_s,
    ),
)


class InstanceMetrics(msgspec.Struct, frozen=True):
    """Metrics of one instance or standby worker of a model's version. `state` is "" if the instance was removed.

    Attributes:
        worker: name of the current worker, which all fields down to `memory_limit` describe; "" if there is none.
        batch_s: how long its current call has been running; None when idle.
        resident: resident memory of its process; None if it runs in another process.
        shared: the part of `resident` that other processes may share.
        gpu: memory on GPUs; None if unknown.
        arenas: shared memory for responses on its lanes.
        memory_limit: the lower of the limits at which the worker is replaced or killed; None: no limit.
        load_s, warmup_s: how long the callable took to load and to warm up.
        starts: number of workers started for this instance.
        exits: number of exits of its workers, by reason: see `worker.EXIT_REASONS`.
        consecutive_exits: number of exits since the last answered batch.
        next_try_at: when the next worker is started, in seconds since the epoch, if a start is pending.
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
    """The queue of one version of a model, from tritonserver's statistics: waiting requests and counters of past ones."""

    version: int
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    queue_s: float = 0.0
    request_s: float = 0.0


class ModelCounts(msgspec.Struct):
    """What the daemon counts for a model, apart from its workers' work. `MODEL_COUNTERS` describes each counter.

    The daemon increments the fields, reports them in `ModelMetrics`, and keeps them during an upgrade.
    """

    resumes: int = 0
    retries: int = 0
    poison: int = 0
    logged: int = 0
    not_logged: int = 0


MODEL_COUNTERS: tuple[CounterMetric[ModelCounts], ...] = (
    CounterMetric(
        "resumes",
        "Number of times that the model was resumed after a suspension.",
        lambda counts: counts.resumes,
    ),
    CounterMetric(
        "retried_requests",
        "Requests retried after their worker was lost.",
        lambda counts: counts.retries,
    ),
    CounterMetric(
        "poison_requests",
        "Requests that crashed several workers, and are not retried.",
        lambda counts: counts.poison,
    ),
    CounterMetric(
        "access_log_requests",
        "Requests written to the access log, if it is enabled.",
        lambda counts: counts.logged,
    ),
    CounterMetric(
        "access_log_dropped_requests",
        "Requests missing from the access log because there were too many at once or the disk was not writable.",
        lambda counts: counts.not_logged,
    ),
)


class ModelMetrics(msgspec.Struct, frozen=True):
    """Metrics of one model.

    Attributes:
        desired: the number of instances that the model should have.
        standby_workers: number of standby workers beyond the instances.
        counts: what the daemon has counted.
        work: the total of all instances, plus failures that only the daemon sees.
        queue: the queue of each version; empty if tritonserver was not queried or did not answer in time.
        memory: the estimated memory of one worker, if there is a memory budget.
    """

    name: str
    version: int
    state: str
    served_by: str = "workers"
    isolation: str = "process"
    desired: int = 0
    standby_workers: int = 0
    counts: ModelCounts = msgspec.field(default_factory=ModelCounts)
    error: Optional[str] = None
    instances: list[InstanceMetrics] = []
    work: Work = Work()
    queue: list[QueueMetrics] = []
    memory: Optional[int] = None


class MemoryInfo(msgspec.Struct, frozen=True):
    """The budget of one resource, "memory" or a GPU: its size and use in bytes, and how many models are waiting for
    it.
    """

    resource: str
    budget: int
    used: int
    waiting: int = 0


class WebhookMetrics(msgspec.Struct, frozen=True):
    """Counters of one webhook: events sent and dropped, failed HTTP requests, and events waiting to be sent."""

    sent: int = 0
    dropped: int = 0
    failures: int = 0
    waiting: int = 0


class DaemonMetrics(msgspec.Struct, frozen=True):
    """Metrics of the daemon itself.

    Attributes:
        registrations: number of models, by state.
        restored, restore_failures: numbers of models restored at startup, and of failed attempts.
        requests: answered control messages, by type, then by outcome ("done", "refused", or a kind of failure).
        server_restarts: restarts of tritonserver, by reason: "exited", "planned", "replaced".
        loop_lag: delay of the event loop, measured every second.
        lines_dropped: number of dropped log lines of child processes.
        webhooks: counters of each webhook, by its name.
        disk_free, disk_size: space on the file system of the state directory; None without persistence.
        memory: the memory budgets, if any.
        memory_suspended, memory_waits, memory_refusals: numbers of models suspended to free memory, of loads that
            waited for memory, and of loads that were refused.
        shared_weights: size of the memory that workers share, in bytes.
        events_lost: number of events missing from the files of the event log.
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
    """Answer to GetMetrics. `at` is in seconds since the epoch."""

    at: float
    daemon: DaemonMetrics
    models: list[ModelMetrics]
