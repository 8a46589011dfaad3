"""Figures of the daemon, its models and their instances: one snapshot for all who show it.

Counters grow for as long as a model is served, over ends of its workers and replacements; durations are seconds, sizes
bytes. A histogram is a sum and its buckets, whose bounds are in `pytriton._protocol.lanes.histograms` (`BOUNDS_S` for
durations, `SIZE_BOUNDS` for rows), the last one for what is larger than all; empty buckets at the end are left out.
`histograms.quantile` tells a percentile of the buckets, or of the difference of two snapshots'.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton._protocol.messages.base import Message


class GetFigures(Message, frozen=True):
    """Ask for Figures."""


class Histogram(msgspec.Struct, frozen=True):
    """A sum of observations, and how many were in each bucket."""

    sum: float = 0.0
    buckets: list[int] = []

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.buckets)


class Work(msgspec.Struct, frozen=True):
    """The work that an instance, or a model, has done.

    Attributes:
        calls: of the callable, begun.
        requests: in these calls.
        rows: in these calls; a request without a batch axis is one.
        merged: batches that went into the call of another one.
        responses: of streams.
        busy_s: time with a call under way.
        failed: requests, by kind: those of `gauge.FAILURES`; of models also "lost" and "hung" (their worker was).
        call_s: how long calls took.
        wait_s: how long batches waited, from when tritonserver handed them over until their call began.
        rows_per_call: the size of batches.
        first_s: of streams, from a call's beginning until its first response.
        between_s: of streams, from one response to the next.
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


class InstanceFigures(msgspec.Struct, frozen=True):
    """One instance of a model (of one version), or one of its spares; `state` is "" of one that there is no more.

    Attributes:
        worker: the present one, as all that follows it down to `memory_limit`; "" when there is none.
        batch_s: how long its call at hand has been running; None when idle.
        resident: memory of its process; None where it is not a process of its own.
        shared: that of it which other processes may share.
        gpu: memory on GPUs; None when that cannot be told.
        arenas: shared memory for answers on its lanes.
        memory_limit: at which it is replaced or ended, the lower of both; None: there is none.
        load_s, warmup_s: how long its callable took to load and to warm up.
        starts: workers that were started for this instance.
        ends: workers of it that ended, by reason: see `worker.END_REASONS`.
        fruitless_ends: in a row, without an answered batch between them.
        next_try_at: when the next worker is started (seconds since the epoch), if that is waited for.
    """

    version: int
    instance: int
    spare: bool = False
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
    ends: dict[str, int] = {}
    fruitless_ends: int = 0
    next_try_at: Optional[float] = None
    last_exit: Optional[str] = None
    work: Work = Work()


class QueueFigures(msgspec.Struct, frozen=True):
    """The queue of a version of a model, as tritonserver tells: requests that wait, counters of those it has had."""

    version: int
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    queue_s: float = 0.0
    request_s: float = 0.0


class ModelFigures(msgspec.Struct, frozen=True):
    """One model.

    Attributes:
        desired: instances that it should have.
        spares: workers beyond these.
        retries: requests tried again after their worker was lost.
        poison: requests that were taken to be what ends workers.
        wakes: how often it slept and got a worker again.
        logged, not_logged: requests that its access log has, and that there was no room or time for.
        work: of all its instances together, and failures that only the daemon sees.
        queue: by version; empty when tritonserver was not asked, or did not answer in time.
        memory: what a worker is taken to need, with a memory_budget.
    """

    name: str
    version: int
    state: str
    served_by: str = "workers"
    isolation: str = "process"
    desired: int = 0
    spares: int = 0
    retries: int = 0
    poison: int = 0
    wakes: int = 0
    logged: int = 0
    not_logged: int = 0
    error: Optional[str] = None
    instances: list[InstanceFigures] = []
    work: Work = Work()
    queue: list[QueueFigures] = []
    memory: Optional[int] = None


class MemoryInfo(msgspec.Struct, frozen=True):
    """The budget of one resource, "memory" or that of a GPU: bytes in all, those in use, models that wait for some."""

    resource: str
    budget: int
    used: int
    waiting: int = 0


class WebhookFigures(msgspec.Struct, frozen=True):
    """One webhook: events that were posted, that were left out, requests that failed, and events that wait."""

    sent: int = 0
    dropped: int = 0
    failures: int = 0
    waiting: int = 0


class DaemonFigures(msgspec.Struct, frozen=True):
    """The daemon.

    Attributes:
        registrations: models by state.
        restored, restore_failures: models restored after the start, and tries that failed.
        requests: control messages answered, by type, then by outcome ("done", "refused", or a kind of failure).
        server_restarts: of tritonserver, by reason: "ended", "planned", "replaced".
        loop_lag: how late the event loop was, looked at each second.
        lines_dropped: log lines of children that were left out.
        webhooks: by name.
        disk_free, disk_size: of the file system of the state directory; None when nothing is kept.
        memory: the budgets, if there are any.
        memory_slept, memory_waits, memory_refusals: models that slept for others, loads that had to wait for memory,
            and that came to nothing.
        shared_weights: bytes that workers share.
        events_lost: events that are missing in the files of the event log.
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
    webhooks: dict[str, WebhookFigures] = {}
    memory: list[MemoryInfo] = []
    memory_slept: int = 0
    memory_waits: int = 0
    memory_refusals: int = 0
    shared_weights: int = 0
    events_lost: int = 0


class Figures(Message, frozen=True):
    """Answer to GetFigures; `at` is seconds since the epoch."""

    at: float
    daemon: DaemonFigures
    models: list[ModelFigures]
