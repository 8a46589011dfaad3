"""The daemon's own metrics: all are declared in `FAMILIES`, and collected by `MetricsCollector`.

To add one, count it where it happens, add a field to `Scrape` and set it in `MetricsCollector.scrape`, and add a row to
`FAMILIES`: /metrics, OTLP and docs/reference/metrics.md are generated from that table. A value that `top`, the
dashboard and clients show as well is a field of `MetricsSnapshot` instead. The counters of models and workers are
declared beside their messages, in pytriton/_protocol/messages/metrics.py.

Labels have few values: existing models, versions and instances, and states and reasons listed in the code. The label of
an instance is `model_instance`, because Prometheus labels its targets `instance` and renames an existing label.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.lanes.histograms import BOUNDS_S, DURATION_BUCKETS, Exemplar
from pytriton._protocol.lanes.stats_page import FAILURES, NOTHING, Counts
from pytriton._protocol.messages.metrics import (
    MODEL_COUNTERS,
    WORK_COUNTERS,
    CounterMetric,
    DaemonMetrics,
    Histogram,
    InstanceMetrics,
    MemoryInfo,
    MetricsSnapshot,
    ModelCounts,
    ModelMetrics,
    QueueMetrics,
    WebhookMetrics,
    Work,
)
from pytriton.dispatcher.control.control_socket import ControlServer
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.openai.state import MetricData
from pytriton.dispatcher.runtime.child import DROPPED_LINES
from pytriton.dispatcher.runtime.states import InstanceState, ModelState
from pytriton.dispatcher.runtime.tasks import until_next_tick
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.telemetry.metrics.blocking_source import CachedReading
from pytriton.dispatcher.telemetry.metrics.process_memory import GpuMemory, memory_of
from pytriton.dispatcher.telemetry.metrics.user_metrics import (
    MergedUserMetrics,
    Merger,
    add_frontend,
    raw_user_metrics,
)
from pytriton.dispatcher.workers.model_counters import InstanceCounters, ModelCounters
from pytriton.dispatcher.workers.worker import EXIT_REASONS, Worker

if TYPE_CHECKING:
    from pytriton.dispatcher.telemetry.metrics.triton_metrics import TritonMetrics


class Scrape(NamedTuple):
    """All data that one scrape collects."""

    snapshot: MetricsSnapshot
    triton: TritonMetrics | None
    users: MergedUserMetrics
    #: Exemplars of call durations, by model, version and instance.
    exemplars: Mapping[tuple[str, ...], Sequence[Exemplar]] = {}
    #: Number of OTLP exports by outcome.
    exports: Mapping[str, int] = {}
    #: Start time of the counters that an upgrade resets, in seconds since the epoch; 0 for the daemon's start.
    since: float = 0.0


Value = Union[int, float, Histogram]
#: The values of a metric's labels, in the order of `labels`, and the value of the metric.
Sample = tuple[tuple[str, ...], Value]

_INSTANCE = ("model", "version", "model_instance")
_MODEL = ("model", "version")
_MODEL_STATES = (
    *(state.value for state in ModelState), "degraded", "suspended", "resuming", "restoring", "loading", "failed"
)  # fmt: skip
_INSTANCE_STATES = (*(state.value for state in InstanceState), "not_ready")


@dataclass(frozen=True)
class DaemonMetric:
    """Declaration of a metric.

    Args:
        name: name without the prefix `pytriton_`; for a counter, without `_total`
        kind: "counter", "gauge", or the unit of a histogram: "seconds" or "rows"
        help: help text
        labels: names of the labels
        read: yields its samples, from the data of a scrape
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Scrape], Iterator[Sample]]

    @property
    def full_name(self) -> str:
        """Name with the prefix, but without the suffix for its kind (`_total`, `_bucket` …)."""
        return f"pytriton_{self.name}"

    @property
    def exposed_name(self) -> str:
        """Name in Prometheus, with `_total` for a counter."""
        return f"{self.full_name}_total" if self.kind == "counter" else self.full_name

    @property
    def is_histogram(self) -> bool:
        """Whether the metric is a histogram."""
        return self.kind in ("seconds", "rows")

    @property
    def outlives_upgrades(self) -> bool:
        """Whether the metric survives an upgrade of the daemon, as those of models and of tritonserver do."""
        return "model" in self.labels or self.name == "tritonserver_restarts"


def _daemon(
    name: str, kind: str, text: str, read: Callable[[DaemonMetrics], Optional[Value]]
) -> DaemonMetric:
    def samples(scrape: Scrape) -> Iterator[Sample]:
        value = read(scrape.snapshot.daemon)
        if value is not None:
            yield (), value

    return DaemonMetric(name, kind, text, (), samples)


def _daemon_by(
    name: str, kind: str, text: str, label: str, read: Callable[[DaemonMetrics], Mapping[str, int]]
) -> DaemonMetric:
    def samples(scrape: Scrape) -> Iterator[Sample]:
        for value, count in read(scrape.snapshot.daemon).items():
            yield (value,), count

    return DaemonMetric(name, kind, text, (label,), samples)


def _model(
    name: str, kind: str, text: str, read: Callable[[ModelMetrics], Optional[Value]]
) -> DaemonMetric:
    def samples(scrape: Scrape) -> Iterator[Sample]:
        for model in scrape.snapshot.models:
            value = read(model) if model.served_by == "workers" else None
            if value is not None:
                yield (model.name, str(model.version)), value

    return DaemonMetric(name, kind, text, _MODEL, samples)


def _model_counter(counter: CounterMetric[ModelCounts]) -> DaemonMetric:
    return _model(counter.name, "counter", counter.help, lambda model: counter.read(model.counts))


def _instances(scrape: Scrape) -> Iterator[tuple[tuple[str, ...], InstanceMetrics]]:
    for model in scrape.snapshot.models:
        for one in model.instances:
            yield (model.name, str(one.version), str(one.instance)), one


def _instance(
    name: str, kind: str, text: str, read: Callable[[InstanceMetrics], Optional[Value]]
) -> DaemonMetric:
    def samples(scrape: Scrape) -> Iterator[Sample]:
        for labels, one in _instances(scrape):
            value = read(one)
            if value is not None:
                yield labels, value

    return DaemonMetric(name, kind, text, _INSTANCE, samples)


def _work(name: str, kind: str, text: str, read: Callable[[Work], Value]) -> DaemonMetric:
    return _instance(name, kind, text, lambda one: read(one.work))


def _work_counter(counter: CounterMetric[Work]) -> DaemonMetric:
    return _work(counter.name, "counter", counter.help, counter.read)


def _stream(name: str, text: str, read: Callable[[Work], Histogram]) -> DaemonMetric:
    """Declare a histogram of durations that only decoupled models have."""
    return _instance(
        name, "seconds", text, lambda one: read(one.work) if one.work.responses else None
    )


def _model_states(scrape: Scrape) -> Iterator[Sample]:
    for model in scrape.snapshot.models:
        for state in _MODEL_STATES:
            yield (model.name, str(model.version), state), int(model.state == state)


def _instance_states(scrape: Scrape) -> Iterator[Sample]:
    for labels, one in _instances(scrape):
        for state in _INSTANCE_STATES if one.state else ():
            yield (*labels, state), int(one.state == state)


def _failures(scrape: Scrape) -> Iterator[Sample]:
    for labels, one in _instances(scrape):
        for kind in FAILURES:
            yield (*labels, kind), one.work.failed.get(kind, 0)
    for model in scrape.snapshot.models:
        for kind in ("lost", "hung") if model.served_by == "workers" else ():
            yield (model.name, str(model.version), "", kind), model.work.failed.get(kind, 0)


def _exits(scrape: Scrape) -> Iterator[Sample]:
    for labels, one in _instances(scrape):
        for reason in EXIT_REASONS:
            yield (*labels, reason), one.exits.get(reason, 0)


def _requests(scrape: Scrape) -> Iterator[Sample]:
    for message, outcomes in scrape.snapshot.daemon.requests.items():
        for outcome, count in outcomes.items():
            yield (message, outcome), count


def _webhook_events(scrape: Scrape) -> Iterator[Sample]:
    for name, one in scrape.snapshot.daemon.webhooks.items():
        yield (name, "sent"), one.sent
        yield (name, "dropped"), one.dropped


def _pending(scrape: Scrape) -> Iterator[Sample]:
    for model in scrape.snapshot.models:
        for queue in model.queue:
            yield (model.name, str(queue.version)), queue.pending


def _memory(scrape: Scrape, read: Callable[[MemoryInfo], int]) -> Iterator[Sample]:
    for one in scrape.snapshot.daemon.memory:
        yield (one.resource,), read(one)


def _otlp_exports(scrape: Scrape) -> Iterator[Sample]:
    for outcome, count in scrape.exports.items():
        yield (outcome,), count


def _omitted_user_values(scrape: Scrape) -> Iterator[Sample]:
    for model, count in scrape.users.omitted.items():
        yield (model,), count


def _build(scrape: Scrape) -> Iterator[Sample]:
    yield (scrape.snapshot.daemon.version, scrape.snapshot.daemon.state), 1


def _ready(model: ModelMetrics) -> int:
    return sum(one.state == "ready" and not one.standby for one in model.instances)


#: Name of the histogram whose buckets have exemplars.
WITH_EXEMPLARS = "call_duration_seconds"

FAMILIES: tuple[DaemonMetric, ...] = (
    # ── the daemon ───────────────────────────────────────────────────────────────────────────────
    DaemonMetric(
        "info", "gauge", "Constant 1, labelled with the daemon's version and state: starting, ready, draining or stopping.",
        ("version", "state"), _build,
    ),
    _daemon("start_time_seconds", "gauge", "Start time of the daemon, in seconds since the epoch.",
            lambda daemon: daemon.started_at),
    _daemon("resident_bytes", "gauge", "Resident memory of the dispatcher, in bytes.",
            lambda daemon: daemon.resident),
    _daemon("event_loop_lag_seconds", "seconds",
            "Delay of the dispatcher's event loop, sampled every five seconds.",
            lambda daemon: daemon.loop_lag),
    _daemon("dropped_log_lines", "counter",
            "Lines of output from workers and tritonserver that were dropped because they arrived too fast to be logged.",
            lambda daemon: daemon.lines_dropped),
    _daemon("lost_events", "counter",
            "Events missing from the event log's files because the disk was full or too slow.",
            lambda daemon: daemon.events_lost),
    _daemon("state_directory_free_bytes", "gauge",
            "Free space of the state directory's file system, in bytes.",
            lambda daemon: daemon.disk_free),
    _daemon("state_directory_size_bytes", "gauge", "Size of the state directory's file system, in bytes.",
            lambda daemon: daemon.disk_size),
    _daemon("restored_models", "counter", "Persisted models restored since the daemon started.",
            lambda daemon: daemon.restored),
    _daemon("restore_failures", "counter", "Failed attempts to restore a persisted model.",
            lambda daemon: daemon.restore_failures),
    DaemonMetric("memory_budget_bytes", "gauge",
           "Memory budget of all workers together, for main memory and for each GPU that has a budget, in bytes.",
           ("resource",), lambda scrape: _memory(scrape, lambda one: one.budget)),
    DaemonMetric("memory_used_bytes", "gauge", "Used or reserved part of the memory budget, in bytes.",
           ("resource",), lambda scrape: _memory(scrape, lambda one: one.used)),
    DaemonMetric("memory_waiting_models", "gauge", "Models waiting for memory from the budget.",
           ("resource",), lambda scrape: _memory(scrape, lambda one: one.waiting)),
    _daemon("memory_suspended_models", "counter", "Models suspended because others needed their memory.",
            lambda daemon: daemon.memory_suspended if daemon.memory else None),
    _daemon("memory_waits", "counter", "Model loads that had to wait for memory.",
            lambda daemon: daemon.memory_waits if daemon.memory else None),
    _daemon("memory_refusals", "counter", "Model loads that failed for lack of memory.",
            lambda daemon: daemon.memory_refusals if daemon.memory else None),
    _daemon("shared_weights_bytes", "gauge", "Memory shared between workers (pytriton.shared), in bytes.",
            lambda daemon: daemon.shared_weights),
    _daemon_by("registrations", "gauge", "Number of models by state.", "state",
               lambda daemon: daemon.registrations),
    DaemonMetric(
        "control_requests", "counter",
        "Requests on the control socket by message type and outcome: done, refused, or the kind of failure.",
        ("message", "outcome"), _requests,
    ),
    _daemon("tritonserver_up", "gauge", "1 while tritonserver is ready for requests, otherwise 0.",
            lambda daemon: int(daemon.server_state == "ready")),
    _daemon("tritonserver_resident_bytes", "gauge", "Resident memory of tritonserver, in bytes.",
            lambda daemon: daemon.server_resident),
    _daemon_by("tritonserver_restarts", "counter",
               "Restarts of tritonserver: after an unexpected exit (exited), or initiated by the daemon "
               "(planned, or replaced while the previous process kept serving).", "reason",
               lambda daemon: {
                   reason: daemon.server_restarts.get(reason, 0)
                   for reason in ("exited", "planned", "replaced")
               }),
    DaemonMetric("webhook_events", "counter",
           "Events posted to a webhook (sent), or dropped because the webhook rejected them, did not accept them "
           "for an hour, or had too many events waiting (dropped).", ("webhook", "outcome"), _webhook_events),
    _daemon_by("webhook_failed_posts", "counter", "Failed requests to a webhook; most are retried.",
               "webhook", lambda daemon: {
                   name: one.failures for name, one in daemon.webhooks.items()
               }),
    _daemon_by("webhook_waiting_events", "gauge", "Events waiting to be posted to a webhook.", "webhook",
               lambda daemon: {name: one.waiting for name, one in daemon.webhooks.items()}),
    DaemonMetric("otlp_exports", "counter",
           "Metrics snapshots that an OpenTelemetry collector accepted (sent) or did not accept (dropped).",
           ("outcome",), _otlp_exports),
    # ── models ───────────────────────────────────────────────────────────────────────────────────
    DaemonMetric("model_state", "gauge", "1 for the model's current state, otherwise 0.",
           (*_MODEL, "state"), _model_states),
    _model("desired_instances", "gauge", "Desired number of instances.",
           lambda model: model.desired),
    _model("ready_instances", "gauge", "Instances that can serve, excluding standby workers.", _ready),
    _model("standby_workers", "gauge", "Desired number of standby workers.",
           lambda model: model.standby_workers),
    _model("ready_standby_workers", "gauge", "Standby workers that are loaded and ready to take over.",
           lambda model: sum(one.state == "ready" and one.standby for one in model.instances)),
    *map(_model_counter, MODEL_COUNTERS),
    DaemonMetric("omitted_user_values", "gauge",
           "Values of user-defined metrics that are not exposed; the daemon's log has the reasons.",
           ("model",), _omitted_user_values),
    _model("worker_memory_bytes", "gauge",
           "Estimated memory that a worker of the model needs from memory_budget, in bytes.", lambda model: model.memory),
    DaemonMetric("pending_requests", "gauge",
           "Requests waiting in tritonserver's queue, as it last reported.", _MODEL, _pending),
    DaemonMetric("failed_requests", "counter",
           "Failed requests: the callable raised (callable), the inputs were invalid (input), its results were "
           "invalid (result), an asynchronous callable exceeded execution_timeout_s (timeout), or it raised "
           "PyTritonUnrecoverableError (unrecoverable); with an empty model_instance, their worker exited "
           "(lost) or hung (hung).",
           (*_INSTANCE, "kind"), _failures),
    # ── instances ────────────────────────────────────────────────────────────────────────────────
    *map(_work_counter, WORK_COUNTERS),
    _work(WITH_EXEMPLARS, "seconds", "Duration of calls, including reading inputs and writing outputs.",
          lambda work: work.call_s),
    _work("batch_wait_seconds", "seconds",
          "Time from when tritonserver passed a batch to a proxy until the start of its call.",
          lambda work: work.wait_s),
    _work("call_rows", "rows", "Rows per call (batch size).", lambda work: work.rows_per_call),
    _stream("first_response_seconds", "Time from the start of a call to its first response, for streams.",
            lambda work: work.first_s),
    _stream("response_interval_seconds", "Time from one response to the next, for streams.",
            lambda work: work.between_s),
    DaemonMetric("instance_state", "gauge", "1 for the instance's current state, otherwise 0.",
           (*_INSTANCE, "state"), _instance_states),
    _instance("instance_lanes", "gauge", "Proxies attached to an instance.",
              lambda one: one.lanes if one.state else None),
    _instance("batch_running_seconds", "gauge", "Time that the current call has been running; 0 when idle.",
              lambda one: one.batch_s or 0.0 if one.worker else None),
    _instance("worker_resident_bytes", "gauge", "Resident memory of a worker's process, in bytes.",
              lambda one: one.resident),
    _instance("worker_shared_bytes", "gauge", "Part of the resident memory that may be shared with other processes, in bytes.",
              lambda one: one.shared),
    _instance("worker_gpu_bytes", "gauge", "GPU memory of a worker's process, in bytes, if NVML reports it.",
              lambda one: one.gpu),
    _instance("worker_memory_limit_bytes", "gauge",
              "Private memory (resident, not shared) at which a worker is recycled or killed, in bytes, if limited.",
              lambda one: one.memory_limit if one.worker else None),
    _instance("arena_bytes", "gauge", "Shared memory for responses on a worker's lanes, in bytes.",
              lambda one: one.arenas if one.worker else None),
    _instance("worker_start_time_seconds", "gauge", "Start time of the current worker, in seconds since the epoch.",
              lambda one: one.started_at),
    _instance("load_seconds", "gauge", "Time that the current worker took to load its callable.",
              lambda one: one.load_s if one.worker else None),
    _instance("warmup_seconds", "gauge", "Time that the current worker's warm-up took.",
              lambda one: one.warmup_s if one.worker else None),
    _instance("worker_starts", "counter", "Workers started.", lambda one: one.starts),
    DaemonMetric("worker_exits", "counter",
           "Worker exits by reason: unexpected while serving (crash) or loading (load); hung in a batch (hang); "
           "hard limit exceeded (limit); recycled (recycle); scaling (scale), "
           "replacement of the model (replace), or any other stop (stop).",
           (*_INSTANCE, "reason"), _exits),
    _instance("consecutive_worker_exits", "gauge", "Consecutive worker exits without an answered batch.",
              lambda one: one.consecutive_exits if one.state else None),
)  # fmt: skip


# ── collection ───────────────────────────────────────────────────────────────────────────────────

#: How long to reuse tritonserver's metrics, and how long to wait for them, in seconds.
_TRITON_MAX_AGE_S, _TRITON_TIMEOUT_S = 0.5, 2.5
#: The same for the state directory's file system, which may be on a file server that does not answer.
_DISK_MAX_AGE_S, _DISK_TIMEOUT_S = 1.0, 0.5
#: Time after which a snapshot lets the dispatcher's event loop run, in seconds. 100 loaded models take about 10 ms.
_MAX_BLOCK_S = 0.01


class _Disk(NamedTuple):
    """The free and the total bytes of a file system; None if unknown."""

    free: int | None = None
    size: int | None = None


class MetricsCollector:
    """Collects all metrics. It sends no requests to workers, and uses threads to read sources that may block.

    Args:
        status: returns the daemon's status, without the models
        models: yields the status of all models, which may change during the iteration
        metrics_url: returns the URL of tritonserver's metrics; "" if it has none
        state_dir: directory whose file system is measured; "" for none
        registry: the models
        watch: has the number of tritonserver's restarts
        control: has the numbers of control requests
        webhooks: returns the counters of the webhooks, by name
        openai: returns the metrics of the OpenAI frontend
        events_lost: returns the number of events that are missing from the event log's files
        server_pid: returns the pid of the tritonserver that serves the metrics; None during a replacement. Called in any
            thread.
        shared_weights: returns the number of bytes that workers share

    Attributes:
        lag: measures the lag of the event loop; the owner must run it
        otlp_exports: number of OTLP exports by outcome, counted by the export
    """

    def __init__(
        self,
        status: Callable[[], messages.Status],
        models: Callable[[], Iterator[messages.ModelInfo]],
        metrics_url: Callable[[], str],
        state_dir: str,
        registry: Registry,
        watch: ServerWatch,
        control: ControlServer,
        *,
        webhooks: Callable[[], dict[str, WebhookMetrics]],
        openai: Callable[[], Awaitable[Sequence[MetricData]]],
        events_lost: Callable[[], int],
        server_pid: Callable[[], int | None],
        shared_weights: Callable[[], int],
    ) -> None:
        self.lag = LoopLag()
        self.otlp_exports: Counter[str] = Counter()
        self._webhooks = webhooks
        self._openai = openai
        self._events_lost = events_lost
        self._server_pid = server_pid
        self._shared_weights = shared_weights
        self._since = time.time()
        self._status = status
        self._models = models
        self._metrics_url = metrics_url
        self._state_dir = state_dir
        self._registry = registry
        self._watch = watch
        self._control = control
        self._triton: CachedReading[TritonMetrics | None] = CachedReading(
            None, max_age_s=_TRITON_MAX_AGE_S, timeout_s=_TRITON_TIMEOUT_S
        )
        self._merger = Merger()
        self._nvml = GpuMemory()
        self._gpu: Mapping[int, int] = {}
        self._gpu_reading: CachedReading[Mapping[int, int]] = CachedReading(
            {}, max_age_s=_DISK_MAX_AGE_S, timeout_s=_DISK_TIMEOUT_S
        )
        self._disk = CachedReading(_Disk(), max_age_s=_DISK_MAX_AGE_S, timeout_s=_DISK_TIMEOUT_S)

    async def snapshot(self) -> MetricsSnapshot:
        """Take a metrics snapshot. It contains tritonserver's queue statistics if they arrive in time."""
        return (await self._take(refresh=False))[0]

    async def queues(self) -> Mapping[str, Sequence[QueueMetrics]]:
        """Return tritonserver's queue statistics, by model; empty if they do not arrive in time."""
        triton = await self._read_triton_metrics(refresh=False)
        return triton.queues if triton is not None else {}

    async def scrape(self) -> Scrape:
        """Take a snapshot. Include metrics of callables, of the OpenAI frontend and of tritonserver if they arrive
        in time.
        """
        users = await self._read_users()
        add_frontend(users, await self._openai())
        snapshot, triton = await self._take(refresh=True)
        return Scrape(
            snapshot, triton, users, self._exemplars(), dict(self.otlp_exports), self._since
        )

    def _exemplars(self) -> dict[tuple[str, ...], list[Exemplar]]:
        found: dict[tuple[str, ...], list[Exemplar]] = {}
        for name, counters in self._registry.served.counter_registry.items():
            for (version, number), instance in counters.instances.items():
                for worker in instance.workers:
                    exemplars = worker.stats.exemplars.read() if worker.alive else []
                    if exemplars:
                        found.setdefault((name, str(version), str(number)), []).extend(exemplars)
        return found

    async def _read_users(self) -> MergedUserMetrics:
        """Collect the metrics that callables define; decode and merge them in a thread."""
        counter_registry = self._registry.served.counter_registry
        instances = [
            one
            for name, counters in counter_registry.items()
            for one in raw_user_metrics(name, counters)
        ]
        if not instances:
            return MergedUserMetrics()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._merger.merge, instances)

    async def _take(self, *, refresh: bool) -> tuple[MetricsSnapshot, TritonMetrics | None]:
        triton = await self._read_triton_metrics(refresh=refresh)
        queues = triton.queues if triton is not None else {}
        if self._nvml.is_available is not False:
            self._gpu = await self._gpu_reading.get(self._nvml.by_process)
        disk = await self._disk.get(lambda: _disk(self._state_dir))
        loop = asyncio.get_running_loop()
        models = []
        yield_at = loop.time() + _MAX_BLOCK_S
        for info in self._models():
            models.append(self._model_metrics(info, queues.get(info.name, ())))
            if loop.time() > yield_at:  # registrations and retries go first
                await asyncio.sleep(0)
                yield_at = loop.time() + _MAX_BLOCK_S
        daemon = self._daemon_metrics(self._status(), models, disk)
        return MetricsSnapshot(at=time.time(), daemon=daemon, models=models), triton

    async def _read_triton_metrics(self, *, refresh: bool) -> TritonMetrics | None:
        url = self._metrics_url()
        return await self._triton.get(lambda: _read_triton(url, self._server_pid), refresh=refresh)

    def _daemon_metrics(
        self, status: messages.Status, models: Sequence[ModelMetrics], disk: _Disk
    ) -> DaemonMetrics:
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
            registrations=dict(Counter(model.state for model in models)),
            restored=outcomes["restored"],
            restore_failures=outcomes["failed"],
            requests=requests,
            server_restarts=dict(self._watch.restarts),
            loop_lag=self.lag.histogram(),
            lines_dropped=DROPPED_LINES.count,
            disk_free=disk.free,
            disk_size=disk.size,
            problems=status.problems,
            webhooks=self._webhooks(),
            memory=status.memory,
            memory_suspended=accounts.suspended,
            memory_waits=accounts.waits,
            memory_refusals=accounts.refusals,
            shared_weights=self._shared_weights(),
            events_lost=self._events_lost(),
        )

    def _model_metrics(
        self, info: messages.ModelInfo, queue: Sequence[QueueMetrics]
    ) -> ModelMetrics:
        counters = self._registry.served.counter_registry.get(info.name) or ModelCounters()
        registration = self._registry.served.get(info.name)
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
            counts=msgspec.structs.replace(counters.counts),
            error=info.error,
            instances=list(
                self._all_instance_metrics(info, counters, registration, done.instances)
            ),
            work=done.total.as_work(counters.failed),
            queue=list(queue),
            memory=registration.pool.account.worker_bytes if registration is not None else None,
        )

    def _all_instance_metrics(
        self,
        info: messages.ModelInfo,
        counters: ModelCounters,
        registration: Registration | None,
        counts: Mapping[tuple[int, int], Counts],
    ) -> Iterator[InstanceMetrics]:
        """Yield the metrics of current instances, then those of former instances, whose counters are kept."""
        reported: set[tuple[int, int]] = set()
        for instance in info.instances:
            key = (instance.version or info.version, instance.index)
            reported.add(key)
            yield self._instance_metrics(
                key, instance, counters.instances.get(key), registration, counts.get(key, NOTHING)
            )
        for key in sorted(counters.instances.keys() - reported):
            yield self._instance_metrics(key, None, counters.instances[key], None, counts[key])

    def _instance_metrics(
        self,
        key: tuple[int, int],
        info: messages.InstanceInfo | None,
        counters: InstanceCounters | None,
        registration: Registration | None,
        counts: Counts,
    ) -> InstanceMetrics:
        counters = counters or InstanceCounters()
        worker = (
            _worker_of(counters, info.pid) if info is not None and info.pid is not None else None
        )
        own_process = registration is not None and registration.registrant is None
        alive = worker is not None and worker.alive
        memory = memory_of(worker.pid) if worker and alive and own_process else None
        limits = registration.spec.limits if registration is not None else None
        memory_limits = (
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
            memory_limit=min(memory_limits) if memory_limits else None,
            starts=counters.starts,
            exits=dict(counters.exits),
            consecutive_exits=info.consecutive_exits if info is not None else 0,
            next_try_at=info.next_try_at if info is not None else None,
            last_exit=info.last_exit if info is not None else None,
            work=counts.as_work(),
        )

    def _resident(self, pid: int | None) -> int | None:
        memory = memory_of(pid) if pid is not None else None
        return memory.resident if memory is not None else None


def _worker_of(counters: InstanceCounters, pid: int) -> Worker | None:
    """Return an instance's worker, given the pid in its status; the newest one if several run in that process."""
    return next((worker for worker in reversed(counters.workers) if worker.pid == pid), None)


def _read_triton(url: str, server_pid: Callable[[], int | None]) -> TritonMetrics | None:
    if not url:
        return None
    from pytriton.dispatcher.telemetry.metrics import triton_metrics

    return triton_metrics.read(url, server_pid)


def _disk(folder: str) -> _Disk:
    """Return the free and total bytes of a directory's file system. Blocks forever if the file server has
    disappeared.
    """
    try:
        seen = os.statvfs(folder) if folder else None
    except OSError:
        seen = None
    return _Disk(seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize) if seen else _Disk()


# ── delay of the dispatcher's event loop, which delays every registration and retry ──────────────

_POLL_INTERVAL_S = 5.0


class LoopLag:
    """Measures the event loop's lag every five seconds: how much later than scheduled a task wakes up."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._buckets = [0] * DURATION_BUCKETS

    async def run(self) -> None:
        """Measure every five seconds, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause_s = until_next_tick(_POLL_INTERVAL_S)
            due = loop.time() + pause_s
            await asyncio.sleep(pause_s)
            self.observe(loop.time() - due)

    def observe(self, late_s: float) -> None:
        """Record a measurement, in seconds."""
        late_s = max(0.0, late_s)
        self._sum += late_s
        self._buckets[bisect_left(BOUNDS_S, late_s)] += 1

    def histogram(self) -> Histogram:
        """Return a histogram of all measurements."""
        return Histogram(self._sum, list(self._buckets))
