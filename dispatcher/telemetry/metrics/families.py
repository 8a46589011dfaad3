"""The daemon's own metrics, declared once; /metrics and docs/reference/metrics.md are generated from this table.

Labels have few values: existing models, versions and instances, and states and reasons listed in the code. The label of
an instance is `model_instance`, because Prometheus labels its targets `instance` and renames an existing label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Optional, Union

from pytriton._protocol.lanes.stats_page import FAILURES
from pytriton._protocol.messages.metrics import (
    DaemonMetrics,
    Histogram,
    InstanceMetrics,
    MemoryInfo,
    MetricsSnapshot,
    ModelMetrics,
    Work,
)
from pytriton.dispatcher.runtime.states import InstanceState, ModelState
from pytriton.dispatcher.workers.worker import EXIT_REASONS

Value = Union[int, float, Histogram]
#: The values of a family's labels, in its order, and the counted or measured value.
Sample = tuple[tuple[str, ...], Value]

_INSTANCE = ("model", "version", "model_instance")
_MODEL = ("model", "version")
_MODEL_STATES = (
    *(state.value for state in ModelState), "degraded", "suspended", "resuming", "restoring", "loading", "failed"
)  # fmt: skip
_INSTANCE_STATES = (*(state.value for state in InstanceState), "not_ready")


@dataclass(frozen=True)
class DaemonMetric:
    """One metric.

    Args:
        name: name without the prefix; for a counter, without `_total`
        kind: "counter", "gauge", "seconds" or "rows"; the latter two are histograms
        help: help text
        labels: names of the labels
        read: returns its samples
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[MetricsSnapshot], Iterator[Sample]]

    @property
    def full_name(self) -> str:
        """The exposed name, without the suffixes of its kind (`_total`, `_bucket` …)."""
        return f"pytriton_{self.name}"

    @property
    def outlives_upgrades(self) -> bool:
        """Whether the next version of the daemon continues counting, as for models and tritonserver."""
        return "model" in self.labels or self.name == "tritonserver_restarts"


def _daemon(
    name: str, kind: str, text: str, read: Callable[[DaemonMetrics], Optional[Value]]
) -> DaemonMetric:
    def samples(figures: MetricsSnapshot) -> Iterator[Sample]:
        value = read(figures.daemon)
        if value is not None:
            yield (), value

    return DaemonMetric(name, kind, text, (), samples)


def _daemon_by(
    name: str, kind: str, text: str, label: str, read: Callable[[DaemonMetrics], Mapping[str, int]]
) -> DaemonMetric:
    def samples(figures: MetricsSnapshot) -> Iterator[Sample]:
        for value, count in read(figures.daemon).items():
            yield (value,), count

    return DaemonMetric(name, kind, text, (label,), samples)


def _model(
    name: str, kind: str, text: str, read: Callable[[ModelMetrics], Optional[Value]]
) -> DaemonMetric:
    def samples(figures: MetricsSnapshot) -> Iterator[Sample]:
        for model in figures.models:
            value = read(model) if model.served_by == "workers" else None
            if value is not None:
                yield (model.name, str(model.version)), value

    return DaemonMetric(name, kind, text, _MODEL, samples)


def _instances(figures: MetricsSnapshot) -> Iterator[tuple[tuple[str, ...], InstanceMetrics]]:
    for model in figures.models:
        for one in model.instances:
            yield (model.name, str(one.version), str(one.instance)), one


def _instance(
    name: str, kind: str, text: str, read: Callable[[InstanceMetrics], Optional[Value]]
) -> DaemonMetric:
    def samples(figures: MetricsSnapshot) -> Iterator[Sample]:
        for labels, one in _instances(figures):
            value = read(one)
            if value is not None:
                yield labels, value

    return DaemonMetric(name, kind, text, _INSTANCE, samples)


def _work(name: str, kind: str, text: str, read: Callable[[Work], Value]) -> DaemonMetric:
    return _instance(name, kind, text, lambda one: read(one.work))


def _stream(name: str, text: str, read: Callable[[Work], Histogram]) -> DaemonMetric:
    """Declare a histogram that only models with streams have."""
    return _instance(
        name, "seconds", text, lambda one: read(one.work) if one.work.responses else None
    )


def _model_states(figures: MetricsSnapshot) -> Iterator[Sample]:
    for model in figures.models:
        for state in _MODEL_STATES:
            yield (model.name, str(model.version), state), int(model.state == state)


def _instance_states(figures: MetricsSnapshot) -> Iterator[Sample]:
    for labels, one in _instances(figures):
        for state in _INSTANCE_STATES if one.state else ():
            yield (*labels, state), int(one.state == state)


def _failures(figures: MetricsSnapshot) -> Iterator[Sample]:
    for labels, one in _instances(figures):
        for kind in FAILURES:
            yield (*labels, kind), one.work.failed.get(kind, 0)
    for model in figures.models:
        for kind in ("lost", "hung") if model.served_by == "workers" else ():
            yield (model.name, str(model.version), "", kind), model.work.failed.get(kind, 0)


def _ends(figures: MetricsSnapshot) -> Iterator[Sample]:
    for labels, one in _instances(figures):
        for reason in EXIT_REASONS:
            yield (*labels, reason), one.exits.get(reason, 0)


def _requests(figures: MetricsSnapshot) -> Iterator[Sample]:
    for message, outcomes in figures.daemon.requests.items():
        for outcome, count in outcomes.items():
            yield (message, outcome), count


def _webhook_events(figures: MetricsSnapshot) -> Iterator[Sample]:
    for name, one in figures.daemon.webhooks.items():
        yield (name, "sent"), one.sent
        yield (name, "dropped"), one.dropped


def _pending(figures: MetricsSnapshot) -> Iterator[Sample]:
    for model in figures.models:
        for queue in model.queue:
            yield (model.name, str(queue.version)), queue.pending


def _memory(figures: MetricsSnapshot, read: Callable[[MemoryInfo], int]) -> Iterator[Sample]:
    for one in figures.daemon.memory:
        yield (one.resource,), read(one)


def _build(figures: MetricsSnapshot) -> Iterator[Sample]:
    yield (figures.daemon.version, figures.daemon.state), 1


def _ready(model: ModelMetrics) -> int:
    return sum(one.state == "ready" and not one.standby for one in model.instances)


#: The family whose buckets are exposed with exemplars.
WITH_EXEMPLARS = "call_duration_seconds"

#: Two families without samples in the figures. The samples of one come with the callables' own metrics.
USERS_LEFT_OUT = DaemonMetric(
    "omitted_user_values", "gauge",
    "Values of the callables' own metrics that are not exposed; the daemon's log has the reasons.", ("model",),
    lambda figures: iter(()),
)  # fmt: skip

OTLP_EXPORTS = DaemonMetric(
    "otlp_exports", "counter",
    "Metrics snapshots sent to an OpenTelemetry collector (sent) or not accepted by it (dropped).",
    ("outcome",), lambda figures: iter(()),
)  # fmt: skip

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
            "Delay of the dispatcher's event loop, sampled every second.",
            lambda daemon: daemon.loop_lag),
    _daemon("dropped_log_lines", "counter",
            "Lines of workers and tritonserver dropped because they exceeded the log's rate limit.",
            lambda daemon: daemon.lines_dropped),
    _daemon("lost_events", "counter",
            "Events missing in the files of the event log because its disk was full or too slow.",
            lambda daemon: daemon.events_lost),
    _daemon("state_directory_free_bytes", "gauge",
            "Free space of the state directory's file system, in bytes.",
            lambda daemon: daemon.disk_free),
    _daemon("state_directory_size_bytes", "gauge", "Size of the state directory's file system, in bytes.",
            lambda daemon: daemon.disk_size),
    _daemon("restored_models", "counter", "Models restored after the start.",
            lambda daemon: daemon.restored),
    _daemon("restore_failures", "counter", "Failed attempts to restore a model.",
            lambda daemon: daemon.restore_failures),
    DaemonMetric("memory_budget_bytes", "gauge",
           "Memory budget of all workers together, for main memory and for each GPU that has a budget, in bytes.",
           ("resource",), lambda figures: _memory(figures, lambda one: one.budget)),
    DaemonMetric("memory_used_bytes", "gauge", "Used or reserved part of the memory budget, in bytes.",
           ("resource",), lambda figures: _memory(figures, lambda one: one.used)),
    DaemonMetric("memory_waiting_models", "gauge", "Models waiting for memory of the budget.",
           ("resource",), lambda figures: _memory(figures, lambda one: one.waiting)),
    _daemon("memory_suspended_models", "counter", "Models suspended because others needed their memory.",
            lambda daemon: daemon.memory_suspended if daemon.memory else None),
    _daemon("memory_waits", "counter", "Loads that had to wait for memory.",
            lambda daemon: daemon.memory_waits if daemon.memory else None),
    _daemon("memory_refusals", "counter", "Loads that failed for lack of memory.",
            lambda daemon: daemon.memory_refusals if daemon.memory else None),
    _daemon("shared_weights_bytes", "gauge", "Memory shared between workers (pytriton.shared), in bytes.",
            lambda daemon: daemon.shared_weights),
    _daemon_by("registrations", "gauge", "Number of models by state.", "state",
               lambda daemon: daemon.registrations),
    DaemonMetric(
        "control_requests", "counter",
        "Messages on the control socket by type and outcome: done, refused, or the kind of failure.",
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
           "Events of a webhook: posted (sent), or dropped because it rejected them, did not answer for an hour, or "
           "too many were waiting (dropped).", ("webhook", "outcome"), _webhook_events),
    _daemon_by("webhook_failed_posts", "counter", "Failed requests to a webhook; most are retried.",
               "webhook", lambda daemon: {
                   name: one.failures for name, one in daemon.webhooks.items()
               }),
    _daemon_by("webhook_waiting_events", "gauge", "Events waiting to be posted.", "webhook",
               lambda daemon: {name: one.waiting for name, one in daemon.webhooks.items()}),
    OTLP_EXPORTS,
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
    _model("resumes", "counter", "Number of times that the suspended model was resumed.",
           lambda model: model.resumes),
    _model("retried_requests", "counter", "Requests retried after their worker was lost.",
           lambda model: model.retries),
    _model("poison_requests", "counter", "Requests identified as crashing workers, and not retried.",
           lambda model: model.poison),
    _model("access_log_requests", "counter", "Requests written to the access log, if it is enabled.",
           lambda model: model.logged),
    _model("access_log_dropped_requests", "counter",
           "Requests missing in the access log because workers wrote too many or the disk was not writable.",
           lambda model: model.not_logged),
    USERS_LEFT_OUT,
    _model("worker_memory_bytes", "gauge",
           "Estimated share of memory_budget that a worker of the model needs, in bytes.", lambda model: model.memory),
    DaemonMetric("pending_requests", "gauge",
           "Requests waiting in tritonserver's queue, as it last reported.", _MODEL, _pending),
    DaemonMetric("failed_requests", "counter",
           "Failed requests: the callable raised (callable), the inputs were invalid (input), its results were "
           "invalid (result), an asynchronous callable exceeded execution_timeout_s (timeout), or it raised "
           "PyTritonUnrecoverableError (unrecoverable); with an empty model_instance, their worker exited "
           "(lost) or hung (hung).",
           (*_INSTANCE, "kind"), _failures),
    # ── instances ────────────────────────────────────────────────────────────────────────────────
    _work("calls", "counter", "Calls of the callable started, one per batch.",
          lambda work: work.calls),
    _work("requests", "counter", "Requests in these calls.", lambda work: work.requests),
    _work("rows", "counter", "Rows in these calls; a request without a batch axis counts as one.",
          lambda work: work.rows),
    _work("merged_batches", "counter", "Batches merged into the call for another proxy's batch.",
          lambda work: work.merged),
    _work("stream_responses", "counter", "Responses of decoupled models.",
          lambda work: work.responses),
    _work("busy_seconds", "counter", "Time spent in calls, including the current one.",
          lambda work: work.busy_s),
    _work(WITH_EXEMPLARS, "seconds", "Duration of calls, including reading inputs and writing outputs.",
          lambda work: work.call_s),
    _work("batch_wait_seconds", "seconds",
          "Time that batches waited for their worker, from tritonserver's hand-over to the start of their call.",
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
    _instance("worker_gpu_bytes", "gauge", "Memory of a worker's process on NVIDIA GPUs in bytes, if NVML reports it.",
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
           (*_INSTANCE, "reason"), _ends),
    _instance("consecutive_worker_exits", "gauge", "Consecutive worker exits without an answered batch.",
              lambda one: one.consecutive_exits if one.state else None),
)  # fmt: skip
