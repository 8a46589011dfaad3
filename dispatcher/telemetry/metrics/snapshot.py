"""The metrics snapshot: all counters and measurements at one moment."""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from pytriton._protocol import messages
from pytriton._protocol.lanes.histograms import BOUNDS_S, DURATION_BUCKETS, Exemplar
from pytriton._protocol.lanes.stats_page import FAILURES, NOTHING, Counts
from pytriton._protocol.messages.metrics import (
    DaemonMetrics,
    Histogram,
    InstanceMetrics,
    MetricsSnapshot,
    ModelMetrics,
    QueueMetrics,
    WebhookMetrics,
    Work,
)
from pytriton.dispatcher.control.control_socket import ControlServer
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.openai.state import MetricData
from pytriton.dispatcher.runtime.child import LEFT_OUT
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.telemetry.metrics.blocking_source import CachedReading
from pytriton.dispatcher.telemetry.metrics.gpu_memory import GpuMemory
from pytriton.dispatcher.telemetry.metrics.user_metrics import (
    MergedUserMetrics,
    Merger,
    add_frontend,
    said,
)
from pytriton.dispatcher.workers.model_counters import InstanceCounters, ModelCounters
from pytriton.dispatcher.workers.worker import Worker

if TYPE_CHECKING:
    from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics


# ── Converts raw counters of workers' stats pages to the values that are reported ──

#: Upper limit of counters: a page may contain anything, and messages have no larger integers.
_MAX_INT64 = (1 << 63) - 1
#: Upper limit of a bucket, so that the total of a histogram stays within the limit, too.
_MAX_IN_BUCKET = _MAX_INT64 >> 7


def work_of(counts: Counts, failed: Mapping[str, int] | None = None) -> Work:
    """Return the reported counters; `failed` has the failures that only the daemon sees."""
    failures = dict(zip(FAILURES, counts.failed))
    failures.update(failed or {})
    return Work(
        calls=_bounded(counts.calls),
        requests=_bounded(counts.requests),
        rows=_bounded(counts.rows),
        merged=_bounded(counts.merged),
        responses=_bounded(counts.parts),
        busy_s=counts.busy_ns / 1e9,
        failed={kind: _bounded(count) for kind, count in failures.items() if count},
        call_s=histogram(counts.call_ns / 1e9, counts.call_buckets),
        wait_s=histogram(counts.wait_ns / 1e9, counts.wait_buckets),
        rows_per_call=histogram(counts.rows, counts.size_buckets),
        first_s=histogram(counts.first_ns / 1e9, counts.first_buckets),
        between_s=histogram(counts.between_ns / 1e9, counts.between_buckets),
    )


def histogram(total: float, buckets: Sequence[int]) -> Histogram:
    """Return a histogram without trailing empty buckets."""
    size = len(buckets)
    while size and not buckets[size - 1]:
        size -= 1
    filled = list(buckets[:size])
    if filled and max(filled) > _MAX_IN_BUCKET:
        filled = [min(count, _MAX_IN_BUCKET) for count in filled]
    return Histogram(float(total), filled)


def _bounded(count: int) -> int:
    return min(count, _MAX_INT64)


# ── Delay of the dispatcher's event loop, which delays every registration and every retry decision ──

_POLL_INTERVAL_S = 1.0


class LoopLag:
    """Measures once a second how much later than scheduled the loop wakes it."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._buckets = [0] * DURATION_BUCKETS

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + _POLL_INTERVAL_S
            await asyncio.sleep(_POLL_INTERVAL_S)
            self.note(loop.time() - wanted)

    def note(self, late_s: float) -> None:
        """Record one measurement."""
        late_s = max(0.0, late_s)
        self._sum += late_s
        self._buckets[bisect_left(BOUNDS_S, late_s)] += 1

    def histogram(self) -> Histogram:
        """Return the measurements so far."""
        return Histogram(self._sum, list(self._buckets))


# ── Memory of processes as reported by the kernel ──

_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessMemory(NamedTuple):
    """Resident bytes, and the part of them that may be shared with other processes."""

    resident: int
    shared: int


def memory_of(pid: int) -> ProcessMemory | None:
    """Return the memory of a process; None if it has exited."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return ProcessMemory(int(resident) * _PAGE, int(shared) * _PAGE)


MemoryOf = Callable[[int], Optional[ProcessMemory]]

#: How long tritonserver's metrics are cached, and how long to wait for them.
_TRITON_KEPT_S, _TRITON_S = 0.5, 2.5
#: The same for the state directory's disk, which may be on a file server that does not answer.
_DISK_KEPT_S, _DISK_S = 1.0, 0.5


class _Disk(NamedTuple):
    """The free and total bytes of a file system, if known."""

    free: int | None = None
    size: int | None = None


class Scraped(NamedTuple):
    """Everything that a scrape returns."""

    figures: MetricsSnapshot
    triton: TritonMetrics | None
    users: MergedUserMetrics
    #: Exemplars of call durations by model, version and instance.
    exemplars: Mapping[tuple[str, ...], Sequence[Exemplar]] = {}
    #: Number of OTLP exports by outcome.
    exports: Mapping[str, int] = {}
    #: Start (seconds since the epoch) of the counters that an upgrade resets; 0 for the daemon's start.
    since: float = 0.0


class Snapshots:
    """Takes snapshots. Readings that may block run in a thread with a time limit; no worker is asked.

    Args:
        status: returns the daemon's status
        metrics_url: returns the URL of tritonserver's metrics; "" if there is none
        state_dir: the directory whose file system is measured; "" for none
        registry: the models
        watch: counts tritonserver's restarts
        control: counts control messages
        memory: returns the memory of a process

    Attributes:
        lag: the delay of the event loop; the owner must run it.
        webhooks: returns the counters of webhook events.
        exports: returns the counters of OTLP exports.
        shared_weights: returns the number of bytes that workers share.
        openai: returns the metrics of the OpenAI frontend.
        events_lost: returns the number of events missing in the event log's files.
        server_pid: returns the pid of the tritonserver that serves the metrics, None during a replacement; called in
            any thread.
    """

    def __init__(
        self,
        status: Callable[[], messages.Status],
        metrics_url: Callable[[], str],
        state_dir: str,
        registry: Registry,
        watch: ServerWatch,
        control: ControlServer,
        *,
        memory: MemoryOf = memory_of,
    ) -> None:
        self.lag = LoopLag()
        self.webhooks: Callable[[], dict[str, WebhookMetrics]] = dict
        self.exports: Callable[[], Mapping[str, int]] = dict
        self.shared_weights: Callable[[], int] = lambda: 0
        self.openai: Callable[[], Awaitable[Sequence[MetricData]]] | None = None
        self.events_lost: Callable[[], int] = lambda: 0
        self.server_pid: Callable[[], int | None] = lambda: None
        self._since = time.time()
        self._status = status
        self._metrics_url = metrics_url
        self._state_dir = state_dir
        self._registry = registry
        self._watch = watch
        self._control = control
        self._memory = memory
        self._triton: CachedReading[TritonMetrics | None] = CachedReading(
            None, kept_s=_TRITON_KEPT_S, patience_s=_TRITON_S
        )
        self._merger = Merger()
        self._nvml = GpuMemory()
        self._gpu: Mapping[int, int] = {}
        self._gpu_reading: CachedReading[Mapping[int, int]] = CachedReading(
            {}, kept_s=_DISK_KEPT_S, patience_s=_DISK_S
        )
        self._disk = CachedReading(_Disk(), kept_s=_DISK_KEPT_S, patience_s=_DISK_S)

    async def current(self) -> MetricsSnapshot:
        """Return the current figures, with tritonserver's queue statistics if they arrive in time."""
        return (await self._take(anew=False))[0]

    async def queues(self) -> Mapping[str, Sequence[QueueMetrics]]:
        """Return tritonserver's queue statistics by model; empty if they do not arrive in time."""
        triton = await self._ask_triton(anew=False)
        return triton.queues if triton is not None else {}

    async def scraped(self) -> Scraped:
        """Return the same, with the metrics of callables, the OpenAI frontend and tritonserver if they arrive in time."""
        users = await self._ask_users()
        if self.openai is not None:
            add_frontend(users, await self.openai())
        figures, triton = await self._take(anew=True)
        return Scraped(figures, triton, users, self._exemplars(), self.exports(), self._since)

    def _exemplars(self) -> dict[tuple[str, ...], list[Exemplar]]:
        found: dict[tuple[str, ...], list[Exemplar]] = {}
        for name, counters in self._registry.counter_registry.items():
            for (version, number), instance in counters.instances.items():
                for worker in instance.workers:
                    exemplars = worker.stats.exemplars.read() if worker.alive else []
                    if exemplars:
                        found.setdefault((name, str(version), str(number)), []).extend(exemplars)
        return found

    async def _ask_users(self) -> MergedUserMetrics:
        """Return the callables' own metrics: collected here, decoded and merged in a thread."""
        counter_registry = self._registry.counter_registry
        instances = [
            one for name, counters in counter_registry.items() for one in said(name, counters)
        ]
        if not instances:
            return MergedUserMetrics()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._merger.merged, instances)

    async def _take(self, *, anew: bool) -> tuple[MetricsSnapshot, TritonMetrics | None]:
        triton = await self._ask_triton(anew=anew)
        queues = triton.queues if triton is not None else {}
        if self._nvml.there is not False:
            self._gpu = await self._gpu_reading.get(self._nvml.read)
        disk = await self._disk.get(lambda: _disk(self._state_dir))
        status = self._status()
        figures = MetricsSnapshot(
            at=time.time(),
            daemon=self._of_daemon(status, disk),
            models=[self._of_model(info, queues.get(info.name, ())) for info in status.models],
        )
        return figures, triton

    async def _ask_triton(self, *, anew: bool) -> TritonMetrics | None:
        url = self._metrics_url()
        return await self._triton.get(lambda: _read_triton(url, self.server_pid), anew=anew)

    def _of_daemon(self, status: messages.Status, disk: _Disk) -> DaemonMetrics:
        outcomes, accounts = self._registry.restoring.outcomes, self._registry.accounts
        requests: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in self._control.answered.items():
            requests.setdefault(kind, {})[outcome] = count
        return DaemonMetrics(
            version=status.version,
            state=status.state,
            pid=status.pid,
            started_at=status.started_at,
            server_state=status.server.state,
            server_pid=status.server.pid,
            resident=self._resident(status.pid),
            server_resident=self._resident(status.server.pid),
            registrations=dict(Counter(model.state for model in status.models)),
            restored=outcomes["restored"],
            restore_failures=outcomes["failed"],
            requests=requests,
            server_restarts=dict(self._watch.restarts),
            loop_lag=self.lag.histogram(),
            lines_dropped=LEFT_OUT.lines,
            disk_free=disk.free,
            disk_size=disk.size,
            problems=status.problems,
            webhooks=self.webhooks(),
            memory=status.memory,
            memory_suspended=accounts.suspended,
            memory_waits=accounts.waits,
            memory_refusals=accounts.refusals,
            shared_weights=self.shared_weights(),
            events_lost=self.events_lost(),
        )

    def _of_model(self, info: messages.ModelInfo, queue: Sequence[QueueMetrics]) -> ModelMetrics:
        counters = self._registry.counter_registry.get(info.name) or ModelCounters()
        registration = self._registry.get(info.name)
        done = counters.done()
        spec = registration.spec if registration is not None else None
        return ModelMetrics(
            name=info.name,
            version=info.version,
            state=info.state,
            served_by=info.served_by,
            isolation=info.isolation,
            desired=registration.instances if registration is not None else 0,
            standby_workers=spec.standby_workers if spec is not None else 0,
            retries=counters.retries,
            poison=counters.poison,
            resumes=counters.resumes,
            logged=counters.records_logged,
            not_logged=counters.records_left_out,
            error=info.error,
            instances=list(self._of_instances(info, counters, registration, done.instances)),
            work=work_of(done.total, counters.failed),
            queue=list(queue),
            memory=registration.pool.account.worker_bytes if registration is not None else None,
        )

    def _of_instances(
        self,
        info: messages.ModelInfo,
        counters: ModelCounters,
        registration: Registration | None,
        counts: Mapping[tuple[int, int], Counts],
    ) -> Iterator[InstanceMetrics]:
        """Yield the current instances, then those that no longer exist, whose counters stay."""
        reported: set[tuple[int, int]] = set()
        for instance in info.instances:
            key = (instance.version or info.version, instance.index)
            reported.add(key)
            yield self._of_instance(
                key, instance, counters.instances.get(key), registration, counts.get(key, NOTHING)
            )
        for key in sorted(counters.instances.keys() - reported):
            yield self._of_instance(key, None, counters.instances[key], None, counts[key])

    def _of_instance(
        self,
        key: tuple[int, int],
        info: messages.InstanceInfo | None,
        counters: InstanceCounters | None,
        registration: Registration | None,
        counts: Counts,
    ) -> InstanceMetrics:
        counters = counters or InstanceCounters()
        worker = _present(counters, info.pid) if info is not None and info.pid is not None else None
        own_process = registration is not None and registration.registrant is None
        alive = worker is not None and worker.alive
        memory = self._memory(worker.pid) if worker and alive and own_process else None
        limits = registration.spec.limits if registration is not None else None
        known = (
            [limit for limit in (limits.recycle_above, limits.memory_limit) if limit]
            if limits
            else []
        )
        version, number = key
        return InstanceMetrics(
            version=version,
            instance=number,
            standby=info is not None and info.standby,
            state=info.state if info is not None else "",
            worker=worker.name if worker is not None else "",
            pid=worker.pid if worker is not None else None,
            device=info.device if info is not None else None,
            lanes=info.lanes if info is not None else 0,
            started_at=worker.started_at if worker is not None else None,
            batch_s=info.busy_s if info is not None else None,
            resident=memory.resident if memory else None,
            shared=memory.shared if memory else None,
            gpu=self._gpu.get(worker.pid) if worker and own_process else None,
            arenas=worker.stats.arena_bytes if worker and alive else 0,
            load_s=worker.stats.load_s if worker and alive else 0.0,
            warmup_s=worker.stats.warmup_s if worker and alive else 0.0,
            memory_limit=min(known) if known else None,
            starts=counters.starts,
            exits=dict(counters.exits),
            consecutive_exits=info.consecutive_exits if info is not None else 0,
            next_try_at=info.next_try_at if info is not None else None,
            last_exit=info.last_exit if info is not None else None,
            work=work_of(counts),
        )

    def _resident(self, pid: int | None) -> int | None:
        memory = self._memory(pid) if pid is not None else None
        return memory.resident if memory is not None else None


def _present(counters: InstanceCounters, pid: int) -> Worker | None:
    """Return the worker of an instance by the pid that `status` shows; of several threads in one process, the newest."""
    return next((worker for worker in reversed(counters.workers) if worker.pid == pid), None)


def _read_triton(url: str, server_pid: Callable[[], int | None]) -> TritonMetrics | None:
    if not url:
        return None
    from pytriton.dispatcher.telemetry.metrics import triton_metrics

    return triton_metrics.read(url, server_pid)


def _disk(folder: str) -> _Disk:
    """Return the size of a directory's file system; blocks, forever if its file server is gone."""
    try:
        seen = os.statvfs(folder) if folder else None
    except OSError:
        seen = None
    return _Disk(seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize) if seen else _Disk()
