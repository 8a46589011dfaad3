"""Every metric of the daemon's own, declared once: /metrics and docs/reference/metrics.md are made of this table.

Labels have few values: models, versions and instances that there are, states and reasons that are listed in the code.
An instance is `model_instance`: Prometheus itself calls what it scrapes `instance`, and renames a label that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Optional, Union

from pytriton._protocol.lanes.stats_page import FAILURES
from pytriton._protocol.messages.figures import (
    DaemonFigures,
    Figures,
    Histogram,
    InstanceFigures,
    MemoryInfo,
    ModelFigures,
    Work,
)
from pytriton.dispatcher.runtime.states import InstanceState, ModelState
from pytriton.dispatcher.workers.process.worker import END_REASONS

Value = Union[int, float, Histogram]
#: The values of a family's labels, in its order, and what was counted or measured.
Sample = tuple[tuple[str, ...], Value]

_INSTANCE = ("model", "version", "model_instance")
_MODEL = ("model", "version")
_MODEL_STATES = (
    *(state.value for state in ModelState), "degraded", "asleep", "waking", "restoring", "loading", "failed"
)  # fmt: skip
_INSTANCE_STATES = (*(state.value for state in InstanceState), "unready")


@dataclass(frozen=True)
class Family:
    """One metric.

    Args:
        name: without the prefix; of a counter, without `_total`
        kind: "counter", "gauge", "seconds" or "rows": the latter two are histograms
        help: what it says
        labels: their names
        read: returns its samples
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Figures], Iterator[Sample]]

    @property
    def full_name(self) -> str:
        """The name as it is told, without what a kind adds (`_total`, `_bucket` …)."""
        return f"pytriton_{self.name}"

    @property
    def outlives_upgrades(self) -> bool:
        """Whether the next version of the daemon goes on counting, as it does for models and for tritonserver."""
        return "model" in self.labels or self.name == "tritonserver_restarts"


def _daemon(
    name: str, kind: str, text: str, read: Callable[[DaemonFigures], Optional[Value]]
) -> Family:
    def samples(figures: Figures) -> Iterator[Sample]:
        value = read(figures.daemon)
        if value is not None:
            yield (), value

    return Family(name, kind, text, (), samples)


def _daemon_by(
    name: str, kind: str, text: str, label: str, read: Callable[[DaemonFigures], Mapping[str, int]]
) -> Family:
    def samples(figures: Figures) -> Iterator[Sample]:
        for value, count in read(figures.daemon).items():
            yield (value,), count

    return Family(name, kind, text, (label,), samples)


def _model(
    name: str, kind: str, text: str, read: Callable[[ModelFigures], Optional[Value]]
) -> Family:
    def samples(figures: Figures) -> Iterator[Sample]:
        for model in figures.models:
            value = read(model) if model.served_by == "workers" else None
            if value is not None:
                yield (model.name, str(model.version)), value

    return Family(name, kind, text, _MODEL, samples)


def _instances(figures: Figures) -> Iterator[tuple[tuple[str, ...], InstanceFigures]]:
    for model in figures.models:
        for one in model.instances:
            yield (model.name, str(one.version), str(one.instance)), one


def _instance(
    name: str, kind: str, text: str, read: Callable[[InstanceFigures], Optional[Value]]
) -> Family:
    def samples(figures: Figures) -> Iterator[Sample]:
        for labels, one in _instances(figures):
            value = read(one)
            if value is not None:
                yield labels, value

    return Family(name, kind, text, _INSTANCE, samples)


def _work(name: str, kind: str, text: str, read: Callable[[Work], Value]) -> Family:
    return _instance(name, kind, text, lambda one: read(one.work))


def _stream(name: str, text: str, read: Callable[[Work], Histogram]) -> Family:
    """A histogram that only models with streams have."""
    return _instance(
        name, "seconds", text, lambda one: read(one.work) if one.work.responses else None
    )


def _model_states(figures: Figures) -> Iterator[Sample]:
    for model in figures.models:
        for state in _MODEL_STATES:
            yield (model.name, str(model.version), state), int(model.state == state)


def _instance_states(figures: Figures) -> Iterator[Sample]:
    for labels, one in _instances(figures):
        for state in _INSTANCE_STATES if one.state else ():
            yield (*labels, state), int(one.state == state)


def _failures(figures: Figures) -> Iterator[Sample]:
    for labels, one in _instances(figures):
        for kind in FAILURES:
            yield (*labels, kind), one.work.failed.get(kind, 0)
    for model in figures.models:
        for kind in ("lost", "hung") if model.served_by == "workers" else ():
            yield (model.name, str(model.version), "", kind), model.work.failed.get(kind, 0)


def _ends(figures: Figures) -> Iterator[Sample]:
    for labels, one in _instances(figures):
        for reason in END_REASONS:
            yield (*labels, reason), one.ends.get(reason, 0)


def _requests(figures: Figures) -> Iterator[Sample]:
    for message, outcomes in figures.daemon.requests.items():
        for outcome, count in outcomes.items():
            yield (message, outcome), count


def _webhook_events(figures: Figures) -> Iterator[Sample]:
    for name, one in figures.daemon.webhooks.items():
        yield (name, "sent"), one.sent
        yield (name, "dropped"), one.dropped


def _pending(figures: Figures) -> Iterator[Sample]:
    for model in figures.models:
        for queue in model.queue:
            yield (model.name, str(queue.version)), queue.pending


def _memory(figures: Figures, read: Callable[[MemoryInfo], int]) -> Iterator[Sample]:
    for one in figures.daemon.memory:
        yield (one.resource,), read(one)


def _build(figures: Figures) -> Iterator[Sample]:
    yield (figures.daemon.version, figures.daemon.state), 1


def _ready(model: ModelFigures) -> int:
    return sum(one.state == "ready" and not one.spare for one in model.instances)


#: The one whose buckets are told with the trace of a call.
WITH_EXEMPLARS = "call_duration_seconds"

#: Two that the figures do not have. The samples of one come with the metrics of the callables' own.
USERS_LEFT_OUT = Family(
    "left_out_user_values", "gauge",
    "Values of metrics of the callables' own that are not told; the daemon's log says why.", ("model",),
    lambda figures: iter(()),
)  # fmt: skip

OTLP_EXPORTS = Family(
    "otlp_exports", "counter",
    "Snapshots of all metrics that were sent to a collector of OpenTelemetry (sent), or were not taken (dropped).",
    ("outcome",), lambda figures: iter(()),
)  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    # ── the daemon ───────────────────────────────────────────────────────────────────────────────
    Family(
        "info", "gauge", "1, with the daemon's version and its state: starting, ready, draining or stopping.",
        ("version", "state"), _build,
    ),
    _daemon("start_time_seconds", "gauge", "When the daemon was started, since the epoch.",
            lambda daemon: daemon.started_at),
    _daemon("resident_bytes", "gauge", "Resident memory of the dispatcher.",
            lambda daemon: daemon.resident),
    _daemon("event_loop_lag_seconds", "seconds",
            "How late the dispatcher's event loop was woken, looked at each second.",
            lambda daemon: daemon.loop_lag),
    _daemon("dropped_log_lines", "counter",
            "Lines of workers and tritonserver that were left out, since more was printed than the log takes.",
            lambda daemon: daemon.lines_dropped),
    _daemon("lost_events", "counter",
            "Events that are missing in the files of the event log: its disk was full, or too slow.",
            lambda daemon: daemon.events_lost),
    _daemon("state_directory_free_bytes", "gauge",
            "Free bytes of the file system of the state directory.",
            lambda daemon: daemon.disk_free),
    _daemon("state_directory_size_bytes", "gauge", "All bytes of that file system.",
            lambda daemon: daemon.disk_size),
    _daemon("restored_models", "counter", "Models that were restored after the start.",
            lambda daemon: daemon.restored),
    _daemon("restore_failures", "counter", "Tries to restore a model that failed.",
            lambda daemon: daemon.restore_failures),
    Family("memory_budget_bytes", "gauge",
           "What the workers of all models may take together: of memory, and of each GPU that has a budget.",
           ("resource",), lambda figures: _memory(figures, lambda one: one.budget)),
    Family("memory_used_bytes", "gauge", "What of it they take, or have been granted.",
           ("resource",), lambda figures: _memory(figures, lambda one: one.used)),
    Family("memory_waiting_models", "gauge", "Models that wait for some of it.",
           ("resource",), lambda figures: _memory(figures, lambda one: one.waiting)),
    _daemon("memory_slept_models", "counter", "Models that slept because others needed their memory.",
            lambda daemon: daemon.memory_slept if daemon.memory else None),
    _daemon("memory_waits", "counter", "Loads that had to wait for memory.",
            lambda daemon: daemon.memory_waits if daemon.memory else None),
    _daemon("memory_refusals", "counter", "Loads that came to nothing for want of memory.",
            lambda daemon: daemon.memory_refusals if daemon.memory else None),
    _daemon("shared_weights_bytes", "gauge", "Memory that workers share (pytriton.shared).",
            lambda daemon: daemon.shared_weights),
    _daemon_by("registrations", "gauge", "Models, by state.", "state",
               lambda daemon: daemon.registrations),
    Family(
        "control_requests", "counter",
        "Messages on the control socket, by type and by outcome: done, refused, or the kind of the failure.",
        ("message", "outcome"), _requests,
    ),
    _daemon("tritonserver_up", "gauge", "1 while tritonserver is ready to take requests, else 0.",
            lambda daemon: int(daemon.server_state == "ready")),
    _daemon("tritonserver_resident_bytes", "gauge", "Resident memory of tritonserver.",
            lambda daemon: daemon.server_resident),
    _daemon_by("tritonserver_restarts", "counter",
               "Starts of another tritonserver: it had ended by itself (ended), or the daemon wanted a new one "
               "(planned, or replaced while the former one served on).", "reason",
               lambda daemon: {
                   reason: daemon.server_restarts.get(reason, 0)
                   for reason in ("ended", "planned", "replaced")
               }),
    Family("webhook_events", "counter",
           "Events of a webhook: posted (sent), or left out because it refused them, did not answer for an hour, or "
           "too many waited (dropped).", ("webhook", "outcome"), _webhook_events),
    _daemon_by("webhook_failed_posts", "counter", "Requests to a webhook that failed; most are tried again.",
               "webhook", lambda daemon: {
                   name: one.failures for name, one in daemon.webhooks.items()
               }),
    _daemon_by("webhook_waiting_events", "gauge", "Events that wait to be posted.", "webhook",
               lambda daemon: {name: one.waiting for name, one in daemon.webhooks.items()}),
    OTLP_EXPORTS,
    # ── models ───────────────────────────────────────────────────────────────────────────────────
    Family("model_state", "gauge", "1 for the state that a model is in, 0 for all others.",
           (*_MODEL, "state"), _model_states),
    _model("desired_instances", "gauge", "Instances that a model should have.",
           lambda model: model.desired),
    _model("ready_instances", "gauge", "Instances that can serve; spares are not counted.", _ready),
    _model("spare_workers", "gauge", "Workers that a model should have beyond its instances.",
           lambda model: model.spares),
    _model("ready_spare_workers", "gauge", "Spares that are loaded, and ready to take over.",
           lambda model: sum(one.state == "ready" and one.spare for one in model.instances)),
    _model("wakes", "counter", "How often the model slept and got a worker again.",
           lambda model: model.wakes),
    _model("retried_requests", "counter", "Requests that were tried again after their worker was lost.",
           lambda model: model.retries),
    _model("poison_verdicts", "counter", "Requests that were taken to be what ends workers.",
           lambda model: model.poison),
    _model("access_log_requests", "counter", "Requests that the access log has, where it is on.",
           lambda model: model.logged),
    _model("access_log_dropped_requests", "counter",
           "Requests that it lacks: workers wrote more than was taken, or the disk could not be written.",
           lambda model: model.not_logged),
    USERS_LEFT_OUT,
    _model("worker_memory_bytes", "gauge",
           "What a worker of the model is taken to need of memory_budget.", lambda model: model.memory),
    Family("pending_requests", "gauge",
           "Requests that wait in tritonserver's queue, as it said a moment ago.", _MODEL, _pending),
    Family("failed_requests", "counter",
           "Requests that failed: by what the callable raised (callable), by what came in (input), by what it "
           "returned (result), by execution_timeout_s of an asynchronous callable (timeout), or by "
           "PyTritonUnrecoverableError (unrecoverable); with an empty model_instance, because their worker ended "
           "(lost) or hung (hung).",
           (*_INSTANCE, "kind"), _failures),
    # ── instances ────────────────────────────────────────────────────────────────────────────────
    _work("calls", "counter", "Calls of the callable that were begun: one for each batch.",
          lambda work: work.calls),
    _work("requests", "counter", "Requests in these calls.", lambda work: work.requests),
    _work("rows", "counter", "Rows in these calls; a request without a batch axis is one.",
          lambda work: work.rows),
    _work("merged_batches", "counter", "Batches of one proxy that went into the call of another one's.",
          lambda work: work.merged),
    _work("stream_responses", "counter", "Responses of decoupled models.",
          lambda work: work.responses),
    _work("busy_seconds", "counter", "Time with a call under way, the one at hand included.",
          lambda work: work.busy_s),
    _work(WITH_EXEMPLARS, "seconds", "How long calls took, with reading inputs and writing outputs.",
          lambda work: work.call_s),
    _work("batch_wait_seconds", "seconds",
          "How long batches waited for their worker: from when tritonserver handed them over, until their call began.",
          lambda work: work.wait_s),
    _work("call_rows", "rows", "Rows in a call: the batch size.", lambda work: work.rows_per_call),
    _stream("first_response_seconds", "Of streams: from the beginning of a call to its first response.",
            lambda work: work.first_s),
    _stream("response_interval_seconds", "Of streams: from one response to the next.",
            lambda work: work.between_s),
    Family("instance_state", "gauge", "1 for the state that an instance is in, 0 for all others.",
           (*_INSTANCE, "state"), _instance_states),
    _instance("instance_lanes", "gauge", "Proxies that are attached to an instance.",
              lambda one: one.lanes if one.state else None),
    _instance("batch_running_seconds", "gauge", "How long the call at hand has been running; 0 when idle.",
              lambda one: one.batch_s or 0.0 if one.worker else None),
    _instance("worker_resident_bytes", "gauge", "Resident memory of a worker's process.",
              lambda one: one.resident),
    _instance("worker_shared_bytes", "gauge", "What of it other processes may share.",
              lambda one: one.shared),
    _instance("worker_gpu_bytes", "gauge", "Memory of a worker's process on NVIDIA GPUs, where NVML tells it.",
              lambda one: one.gpu),
    _instance("worker_memory_limit_bytes", "gauge",
              "At which own memory (resident, not shared) a worker is replaced or ended, if there is such a limit.",
              lambda one: one.memory_limit if one.worker else None),
    _instance("arena_bytes", "gauge", "Shared memory for answers on a worker's lanes.",
              lambda one: one.arenas if one.worker else None),
    _instance("worker_start_time_seconds", "gauge", "When the present worker was started, since the epoch.",
              lambda one: one.started_at),
    _instance("load_seconds", "gauge", "How long the present worker took to load its callable.",
              lambda one: one.load_s if one.worker else None),
    _instance("warmup_seconds", "gauge", "How long its warm-up took.",
              lambda one: one.warmup_s if one.worker else None),
    _instance("worker_starts", "counter", "Workers that were started.", lambda one: one.starts),
    Family("worker_ends", "counter",
           "Workers that ended: by themselves, serving (crash) or before they served (load); hung in a batch (hang); "
           "past a hard limit (limit); replaced because they were spent (spent); because of a scaling (scale), a "
           "replacement of the model (replace), or any other wish (stop).",
           (*_INSTANCE, "reason"), _ends),
    _instance("fruitless_ends", "gauge", "Workers that ended in a row, none of which had answered a batch.",
              lambda one: one.fruitless_ends if one.state else None),
)  # fmt: skip
