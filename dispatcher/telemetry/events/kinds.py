"""Kinds of events, declared once for the log, `explain`, webhooks and docs/operations/explain.md.

To add a kind, declare it here, and pass it to `Events.emit` where the decision is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pytriton._protocol.messages import RecycleReason


@dataclass(frozen=True)
class EventKind:
    """A kind of event.

    Args:
        name: name of the kind in the event log
        level: level of its records in the daemon's log
        says: text of these records
        meaning: what has happened, for the documentation
        numbers: the numbers of such events: name -> description with unit
        codes: the codes that state the reason: code -> description
        is_audit: whether the event reports something that an actor requested. Audit events record the actor, and are
            stored in a separate file, where a crash loop cannot displace them.
    """

    name: str
    level: str
    says: str
    meaning: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    is_audit: bool = False
    codes: Mapping[str, str] = field(default_factory=dict)


_INSTANCES = {"instances": "current number of instances"}
_CHANGED = {**_INSTANCES, "before": "previous number of instances"}
_PID = {"pid": "process id of the worker"}

# ── requested by an actor (audit events) ─────────────────────────────────────────────────────────

#: Declares a kind of audit event.
_audit = partial(EventKind, is_audit=True)

REGISTERED = _audit(
    "registered",
    "info",
    "model registered",
    "A model was registered and is served.",
    _INSTANCES,
)
REGISTRATION_FAILED = _audit(
    "registration_failed",
    "error",
    "model was not registered",
    "A model could not be registered; the attempt was rolled back.",
)
REPLACED = _audit(
    "replaced",
    "info",
    "model replaced",
    "A new registration replaced the previous one of the same name.",
    _CHANGED,
)
REPLACE_FAILED = _audit(
    "replace_failed",
    "error",
    "model was not replaced",
    "A replacement could not be served; the previous registration keeps serving.",
)
ROLLED_BACK = _audit(
    "rolled_back",
    "info",
    "model rolled back",
    "The model was rolled back to its registration before the last replacement.",
    _CHANGED,
)
ROLLBACK_FAILED = _audit(
    "rollback_failed",
    "error",
    "model was not rolled back",
    "The previous registration could not be served; the current one keeps serving.",
)
REGISTRATION_CONFIRMED = _audit(
    "registration_confirmed",
    "info",
    "registration confirmed",
    "A provisional registration, part of a change across nodes, was made permanent.",
)
SCALED = _audit("scaled", "info", "model scaled", "The number of instances was changed.", _CHANGED)
SCALE_FAILED = _audit(
    "scale_failed",
    "error",
    "model was not scaled",
    "The number of instances could not be changed, or not all instances got a worker.",
    {"instances": "requested number of instances", "before": "previous number of instances"},
)
ACCESS_LOG = _audit(
    "access_log",
    "info",
    "access log turned on or off",
    "The model's access log was enabled or disabled.",
    {"on": "1 if enabled, otherwise 0"},
)
UNREGISTERED = _audit(
    "unregistered",
    "info",
    "model unregistered",
    "A model was unregistered and is no longer served.",
)
LOADED = _audit(
    "loaded",
    "info",
    "model loaded",
    "A model was loaded from a model repository and is served.",
)
REPOSITORY_LOAD_FAILED = _audit(
    "repository_load_failed",
    "error",
    "repository model was not loaded",
    "A model could not be loaded from a model repository.",
)
UNLOADED = _audit(
    "unloaded",
    "info",
    "model unloaded",
    "A model from a model repository is no longer served.",
)
RELOADED = _audit(
    "reloaded",
    "info",
    "settings reloaded",
    "The settings were reloaded; the reason lists those that changed.",
    {"applied": "settings applied", "waiting": "settings that take effect after a restart"},
)
RELOAD_FAILED = _audit(
    "reload_failed",
    "error",
    "settings were not reloaded; the old ones stay in effect",
    "The new settings are invalid; the old ones stay in effect.",
)
STARTED = _audit(
    "started",
    "info",
    "daemon started",
    "The daemon started.",
    {"pid": "process id of the daemon"},
)
DRAINING = _audit(
    "draining",
    "info",
    "daemon draining",
    "The daemon is draining: it reports not ready and refuses registrations.",
    {
        "settle_s": "seconds for which it still accepts requests",
        "stop": "1 if it stops afterwards, otherwise 0",
    },
)
STOPPING = _audit("stopping", "info", "daemon stopping", "The daemon was asked to stop.")
STOPPED = _audit(
    "stopped",
    "info",
    "daemon stopped",
    "The daemon shut down gracefully.",
    {"exit_code": "exit code of the daemon"},
)
UPGRADED = _audit(
    "upgraded",
    "info",
    "daemon upgraded",
    "Another version of the daemon took over everything that the previous one served; the reason names both.",
    {"upgrades": "number of upgrades since the start", "models": "number of models served"},
)
UPGRADE_FAILED = _audit(
    "upgrade_failed",
    "error",
    "daemon was not upgraded",
    "Another version of the daemon could not take over; the running one continues.",
)
SERVER_REPLACED = _audit(
    "server_replaced",
    "info",
    "tritonserver was replaced",
    "Another tritonserver replaced the running one.",
    {"pid": "process id of the new tritonserver"},
)
SERVER_REPLACE_FAILED = _audit(
    "server_replace_failed",
    "error",
    "tritonserver was not replaced",
    "The replacement for tritonserver did not start; the running one keeps serving.",
)

# ── models ───────────────────────────────────────────────────────────────────────────────────────

RESTORED = EventKind(
    "restored",
    "info",
    "model restored",
    "A persisted model was restored at startup.",
    _INSTANCES,
)
RESTORE_FAILED = EventKind(
    "restore_failed",
    "error",
    "model was not restored",
    "A persisted model failed to load at startup.",
)
NOT_READY = EventKind(
    "not_ready",
    "error",
    "model is not ready: no worker",
    "The model has had no worker for a few seconds: Triton reports it not ready, and requests fail immediately.",
)
READY_AGAIN = EventKind(
    "ready_again",
    "info",
    "model is ready again",
    "The model has a worker again and is loaded in Triton.",
)
REFUSED = EventKind(
    "refused",
    "error",
    "tritonserver refused a request",
    "tritonserver refused to load or unload the model.",
)
CLIENT_LOADED = EventKind(
    "client_loaded",
    "warning",
    "a tritonserver client loaded a model",
    "A client of tritonserver loaded the model.",
)
CLIENT_UNLOADED = EventKind(
    "client_unloaded",
    "warning",
    "a tritonserver client unloaded a model",
    "A client of tritonserver unloaded the model; it is not served until a client loads it again.",
)
PROXY_BROKEN = EventKind(
    "proxy_broken",
    "error",
    "proxy exited unexpectedly, reloading the model",
    "A proxy exited unexpectedly, so Triton reloads the model.",
)
GRACE_PERIOD_EXPIRED = EventKind(
    "grace_period_expired",
    "warning",
    "batches still running after the grace period",
    "The grace period of a model that is being stopped expired, and its running batches were aborted.",
    {"grace_s": "grace period in seconds", "proxies": "number of proxies that still had a batch"},
)

SUSPENDED = EventKind(
    "suspended",
    "info",
    "model suspended",
    "The model was idle, or another model needs its memory: its workers stop until the next request "
    "arrives.",
    {"idle_s": "time without a request, in seconds", "workers": "number of workers stopped"},
)
WAITING_FOR_MEMORY = EventKind(
    "waiting_for_memory",
    "info",
    "model waits for memory",
    "A model cannot load until other models release part of memory_budget or gpu_memory_budget.",
    {"needs": "memory needed, in bytes", "free": "free part of the budget, in bytes"},
)
INSUFFICIENT_MEMORY = EventKind(
    "insufficient_memory",
    "error",
    "not enough memory for model",
    "A model was not loaded: it needs more than the budget, or not enough memory was released in time.",
    {"needs": "memory needed, in bytes", "budget": "budget of all models, in bytes"},
)
RESUMED = EventKind(
    "resumed",
    "info",
    "model resumed",
    "A suspended model has a worker again.",
    {
        "suspended_s": "time suspended, in seconds",
        "took_s": "start of the first worker, in seconds",
    },
)

# ── instances ────────────────────────────────────────────────────────────────────────────────────

LOADING = EventKind(
    "loading", "info", "worker started", "A worker was started and is loading the model.", _PID
)
READY = EventKind(
    "ready",
    "info",
    "worker is ready",
    "A worker has loaded the model and accepts batches.",
    {**_PID, "took_s": "time since its start, in seconds"},
)
LOAD_FAILED = EventKind(
    "load_failed",
    "error",
    "worker failed to load",
    "A worker raised an exception, exited, or exceeded the time limit before it was ready.",
    {"took_s": "time since its start, in seconds"},
)
CRASHED = EventKind(
    "crashed",
    "warning",
    "worker exited unexpectedly",
    "A worker that was serving exited without being stopped.",
    {
        **_PID,
        "batches": "number of batches answered",
        "in_batch": "1 if it was running a batch, otherwise 0",
        "peak_memory": "peak memory, in bytes",
    },
)
BACKOFF = EventKind(
    "backoff",
    "warning",
    "worker restart delayed",
    "The next worker starts after a back-off.",
    {
        "failures": "consecutive failures: exits between batches and failed loads",
        "next_try_s": "back-off, in seconds",
    },
)
CRASH_LOOP = EventKind(
    "crash_loop",
    "error",
    "worker in a crash loop",
    "At least three workers in a row exited without having served; the next one starts after a back-off.",
    {
        "failures": "consecutive failures: exits between batches and failed loads",
        "next_try_s": "back-off, in seconds",
    },
)
RESTART_LIMIT_REACHED = EventKind(
    "restart_limit_reached",
    "error",
    "restart limit reached",
    "More than worker_restart_limit consecutive starts failed; the instance starts no more workers.",
    {"failures": "consecutive failures: exits between batches and failed loads"},
)
HANG = EventKind(
    "hang",
    "error",
    "worker hangs, replacing it",
    "A batch exceeded execution_timeout_s; its worker is killed.",
    {**_PID, "limit_s": "execution_timeout_s"},
)
LIMIT_EXCEEDED = EventKind(
    "limit_exceeded",
    "error",
    "worker exceeded a hard limit",
    "A worker exceeded its limit of memory or processes and was killed.",
    _PID,
)
RECYCLE_DUE = EventKind(
    "recycle_due",
    "info",
    "recycling worker",
    "A worker is due for recycling; a replacement loads, then the worker exits.",
    {**_PID, "batches": "number of batches answered"},
    codes={
        RecycleReason.MAX_BATCHES.value: "it has answered max_batches batches",
        RecycleReason.MEMORY.value: "it uses more memory than limits.recycle_above",
        RecycleReason.NO_LANE.value: "it has no file descriptor left for another proxy",
        RecycleReason.PROTOCOL.value: "it was started by a version with another protocol",
        RecycleReason.GPU.value: "a batch ran out of GPU memory, or CUDA failed",
    },
)
RECYCLE_FAILED = EventKind(
    "recycle_failed",
    "error",
    "worker was not recycled, it keeps serving",
    "The replacement for a worker due for recycling failed to load; the worker keeps serving until the next attempt.",
)
NOT_ACCEPTING = EventKind(
    "not_accepting",
    "warning",
    "worker reports not ready",
    "The model's is_ready returns false; other instances get its batches.",
)
ACCEPTING = EventKind(
    "accepting", "info", "worker reports ready", "The model's is_ready returns true again."
)
LANE_WITHDRAWN = EventKind(
    "lane_withdrawn",
    "debug",
    "lane withdrawn",
    "A proxy was moved from one worker to another that had no proxy, or fewer than its share.",
)

# ── batches ──────────────────────────────────────────────────────────────────────────────────────

RETRIED = EventKind(
    "retried",
    "info",
    "batch lost its worker, retrying its requests one by one",
    "A batch lost its worker; its requests are retried one by one.",
    {"requests": "number of requests in the batch"},
)
POISON = EventKind(
    "poison",
    "error",
    "request failed: it crashed every worker that ran it",
    "A request crashed several workers, the last one alone in its batch; it failed and is not retried.",
    {"lost_workers": "number of workers lost"},
)
BATCH_FAILED = EventKind(
    "batch_failed",
    "error",
    "requests failed",
    "The requests in a batch failed because its worker exited or hung, and the batch is not retried.",
    {"consecutive_losses": "consecutive requests in the batch that failed this way"},
)

# ── tritonserver ─────────────────────────────────────────────────────────────────────────────────

SERVER_STARTED = EventKind(
    "server_started",
    "info",
    "tritonserver is up",
    "tritonserver has started and answers probes.",
    {"pid": "process id of tritonserver", "took_s": "duration of the start, in seconds"},
)
SERVER_EXITED = EventKind(
    "server_exited",
    "error",
    "tritonserver exited unexpectedly",
    "tritonserver exited unexpectedly or hung; it restarts, and workers keep their models.",
)
SERVER_BACKOFF = EventKind(
    "server_backoff",
    "warning",
    "tritonserver restart delayed",
    "tritonserver restarts after a back-off.",
    {"failures": "consecutive exits and failed starts", "next_try_s": "back-off, in seconds"},
)
SERVER_FAILED = EventKind(
    "server_failed",
    "error",
    "tritonserver failed to start",
    "tritonserver could not be restarted, or its models could not be loaded; the restart is retried.",
)
UNRECOVERABLE = EventKind(
    "unrecoverable",
    "error",
    "unrecoverable error in a model, stopping the daemon",
    "A callable raised PyTritonUnrecoverableError, so the daemon stops.",
)

# ── the event log itself ─────────────────────────────────────────────────────────────────────────

EVENTS_LOST = EventKind(
    "events_lost",
    "warning",
    "events lost",
    "The state directory was not writable or too slow; events are missing from its files.",
    {"events": "number of missing events"},
)

KINDS: Mapping[str, EventKind] = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, EventKind)
}
