"""The kinds of events, declared once, for the log, `explain`, webhooks and docs/operations/explain.md."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.dispatcher.telemetry.events.audit_kinds import *  # noqa: F403
from pytriton.dispatcher.telemetry.events.kind import Kind as Kind

_INSTANCES = {"instances": "how many it has now"}
_PID = {"pid": "process of the worker"}

# ── models ───────────────────────────────────────────────────────────────────────────────────────

RESTORED = Kind(
    "restored",
    "info",
    "model restored",
    "What was registered before the start is served.",
    _INSTANCES,
)
NOT_RESTORED = Kind(
    "not_restored",
    "error",
    "model was not restored",
    "What was registered before the start could not be served.",
)
UNREADY = Kind(
    "unready",
    "error",
    "model is not ready: it has no worker",
    "No worker has been there for a while: Triton says that the model is not ready, and requests fail at once.",
)
READY_AGAIN = Kind(
    "ready_again", "info", "model is ready again", "A worker is back, and Triton has the model."
)
REFUSED = Kind(
    "refused", "error", "tritonserver refused", "tritonserver did not load or unload the model."
)
CLIENT_LOADED = Kind(
    "client_loaded",
    "warning",
    "a client of tritonserver has loaded a model",
    "A client of tritonserver has loaded the model.",
)
CLIENT_UNLOADED = Kind(
    "client_unloaded",
    "warning",
    "a client of tritonserver has unloaded a model",
    "A client of tritonserver has unloaded the model: it is not served until a client loads it.",
)
PROXY_BROKEN = Kind(
    "proxy_broken",
    "error",
    "a proxy ended by itself, the model is loaded anew",
    "A proxy ended without a word, so Triton loads the model anew.",
)
GRACE_OVER = Kind(
    "grace_over",
    "warning",
    "batches still run after the grace period",
    "Batches of a model that is being ended were cut off.",
    {"grace_s": "the grace period, seconds", "proxies": "proxies that still had a batch"},
)

SLEPT = Kind(
    "slept",
    "info",
    "model sleeps",
    "Nothing was asked of the model for a while, or another one needs its memory: its workers end until a request "
    "comes.",
    {"idle_s": "without a request, seconds", "workers": "that end"},
)
WAITS_FOR_MEMORY = Kind(
    "waits_for_memory",
    "info",
    "model waits for memory",
    "A model has to load, and of memory_budget or gpu_memory_budget there is not enough before others sleep.",
    {"needs": "of memory, bytes", "free": "of memory_budget, bytes"},
)
NO_MEMORY = Kind(
    "no_memory",
    "error",
    "model gets no memory",
    "A model was not loaded: it is larger than the budget, or nobody gave it enough in time.",
    {"needs": "bytes", "budget": "of all models, bytes"},
)
WOKEN = Kind(
    "woken",
    "info",
    "model is awake",
    "A model that slept has a worker again.",
    {"asleep_s": "how long it slept, seconds", "took_s": "the first worker's start, seconds"},
)

# ── instances ────────────────────────────────────────────────────────────────────────────────────

LOADING = Kind(
    "loading", "info", "worker started", "A worker was started, and begins to load the model.", _PID
)
READY = Kind(
    "ready",
    "info",
    "worker is ready",
    "A worker has loaded the model, and serves.",
    {**_PID, "took_s": "from its start, seconds"},
)
LOAD_FAILED = Kind(
    "load_failed",
    "error",
    "worker could not be loaded",
    "A worker raised an exception, ended, or took too long before it was ready.",
    {"took_s": "from its start, seconds"},
)
CRASHED = Kind(
    "crashed",
    "warning",
    "worker ended",
    "A worker that served has ended without being asked to.",
    {
        **_PID,
        "batches": "that it had answered",
        "in_batch": "1: it had a batch",
        "peak_memory": "the most that it used, bytes",
    },
)
BACKOFF = Kind(
    "backoff",
    "warning",
    "worker is started again later",
    "The next worker is started after a pause.",
    {"failures": "ends in a row", "next_try_s": "the pause, seconds"},
)
CRASH_LOOP = Kind(
    "crash_loop",
    "error",
    "crash loop",
    "Three workers or more ended in a row without having served; the next one is started after a pause.",
    {"failures": "ends in a row", "next_try_s": "the pause, seconds"},
)
GIVEN_UP = Kind(
    "given_up",
    "error",
    "instance is given up",
    "As many workers in a row as worker_restart_limit says have ended: no other one is started.",
    {"failures": "ends in a row"},
)
HANG = Kind(
    "hang",
    "error",
    "worker hangs and is replaced",
    "A batch ran longer than execution_timeout_s; its worker is ended.",
    {**_PID, "limit_s": "execution_timeout_s"},
)
LIMIT = Kind(
    "limit",
    "error",
    "worker has passed a hard limit and is ended",
    "A worker used more memory or processes than its limits allow, and was ended at once.",
    _PID,
)
SPENT = Kind(
    "spent",
    "info",
    "worker is replaced",
    "A worker has reached max_batches or limits.memory; another one is loaded beside it, then it ends.",
    {**_PID, "batches": "that it had answered"},
)
NOT_EXCHANGED = Kind(
    "not_exchanged",
    "error",
    "no replacement, the worker serves on",
    "No other worker could be loaded in a spent one's place: that serves on for a while.",
)
UNWILLING = Kind(
    "unwilling",
    "warning",
    "worker says that it is not ready",
    "The model's own is_ready says no: other instances get its batches.",
)
WILLING = Kind(
    "willing", "info", "worker says that it is ready", "The model's own is_ready says yes again."
)
LANE_WITHDRAWN = Kind(
    "lane_withdrawn",
    "debug",
    "lane withdrawn",
    "A worker gives one of its proxies to another worker, which has none or more right to it.",
)

# ── batches ──────────────────────────────────────────────────────────────────────────────────────

RETRIED = Kind(
    "retried",
    "info",
    "a batch has lost its worker, its requests are tried again, each by itself",
    "A batch has lost its worker; its requests are tried again, each by itself.",
    {"requests": "of the batch"},
)
POISON = Kind(
    "poison",
    "error",
    "a request ends every worker that runs it, and fails",
    "A request has ended one worker after the other, the last time by itself: it fails, and is not tried again.",
    {"losses": "workers that it has ended"},
)
BATCH_FAILED = Kind(
    "batch_failed",
    "error",
    "requests fail",
    "A batch has lost its worker, or hangs, and is not tried again.",
    {"in_row": "requests of one batch that went so, one after the other"},
)

# ── tritonserver ─────────────────────────────────────────────────────────────────────────────────

SERVER_STARTED = Kind(
    "server_started",
    "info",
    "tritonserver is up",
    "tritonserver answers.",
    {"pid": "its process", "took_s": "the start, seconds"},
)
SERVER_ENDED = Kind(
    "server_ended",
    "error",
    "tritonserver ended by itself",
    "tritonserver has ended or hung; it is started again, and workers keep their models.",
)
SERVER_LATER = Kind(
    "server_later",
    "warning",
    "tritonserver is started again later",
    "tritonserver is started again after a pause.",
    {"failures": "ends and failed starts in a row", "next_try_s": "the pause, seconds"},
)
SERVER_FAILED = Kind(
    "server_failed",
    "error",
    "tritonserver could not be started",
    "tritonserver did not start.",
)
UNRECOVERABLE = Kind(
    "unrecoverable",
    "error",
    "unrecoverable error in a model, the daemon stops",
    "A callable said that only a fresh start will help, so the daemon stops.",
)

# ── the event log itself ─────────────────────────────────────────────────────────────────────────

EVENTS_LOST = Kind(
    "events_lost",
    "warning",
    "events could not be kept",
    "The state directory could not be written, or not fast enough: events are missing in its files.",
    {"events": "that are missing"},
)

KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, Kind)
}
