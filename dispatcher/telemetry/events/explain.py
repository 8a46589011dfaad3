"""Diagnosis of a model: a verdict, and findings with advice, from its state, its events and its failed requests.

All functions are pure, and the time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from pytriton._protocol import messages
from pytriton._protocol.messages.client import Event, Finding
from pytriton._protocol.rates import duration
from pytriton.dispatcher.telemetry.events import kinds

#: Number of consecutive failures of an instance that make a crash loop.
CRASH_LOOP = 3
#: Age up to which events are considered, in seconds.
RECENT_S = 3600.0
#: Duration from which a batch, a stream or a load is reported, in seconds.
_LONG_BATCH_S, _LONG_STREAM_S, _LONG_LOAD_S = 10.0, 600.0, 30.0
#: Number of recent recycles because of memory that indicates a leak.
_LEAKS = 2
#: Text in `status` about a model that tritonserver loads on its first request.
DEFERRED = "not used since the daemon started: loaded into tritonserver on the first request"
_BUDGET_ADVICE = (
    "`pytriton-daemon status` shows the budget. Increase it, or allow more models to be suspended."
)
_ORDER = ("down", "degraded", "notice")

_FAILED_REPLACEMENTS = (kinds.REPLACE_FAILED, kinds.ROLLBACK_FAILED, kinds.REGISTRATION_FAILED)
_REPLACEMENTS = (kinds.REGISTERED, kinds.REPLACED, kinds.ROLLED_BACK)
#: Kind of a failed change -> the participle in "it could not be …".
_FAILED_CHANGES = {
    kinds.REGISTRATION_FAILED.name: "registered",
    kinds.REPLACE_FAILED.name: "replaced",
    kinds.ROLLBACK_FAILED.name: "rolled back",
    kinds.SCALE_FAILED.name: "scaled",
}
_CHANGES = (*_REPLACEMENTS, kinds.SCALED, kinds.RESTORED)


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of a model's recent requests.

    Attributes:
        seconds: length of the period, in seconds
        requests: number of requests started in the period
        failed: number of failed requests by kind: those of `stats_page.FAILURES`, "lost", "hung"
        last_at: time of the last failure, in seconds since the epoch; None if unknown
        last_error: exception type of the last failure; "" if there was none, or if it is unknown
    """

    seconds: float
    requests: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    last_at: Optional[float] = None
    last_error: str = ""


@dataclass(frozen=True)
class Situation:
    """Everything that the daemon knows about a model.

    Attributes:
        name: name of the model
        info: status of the model; None if it is not served
        events: events of the model, oldest first
        server: status of tritonserver
        now: current time, in seconds since the epoch
        daemon_events: events of the daemon itself, oldest first
        problems: problems that the daemon reports
        waiting: number of requests in tritonserver's queue; None if unknown
        phase: phase of the daemon: "starting", "ready", "draining" or "stopping"
        outcomes: outcomes of recent requests; None if they are not counted
    """

    name: str
    info: messages.ModelInfo | None
    events: Sequence[Event]
    server: messages.ServerInfo
    now: float
    daemon_events: Sequence[Event] = ()
    problems: Sequence[str] = field(default_factory=tuple)
    waiting: int | None = None
    phase: str = "ready"
    outcomes: Outcomes | None = None

    def last(self, *of: kinds.EventKind, instance: int | None = None) -> Event | None:
        """Return the newest event of any of these kinds, or None. With `instance`, consider only events of this
        instance.
        """
        names = {kind.name for kind in of}
        matching = (
            event
            for event in reversed(self.events)
            if event.kind in names and instance in (None, event.instance)
        )
        return next(matching, None)

    def recent(self, *of: kinds.EventKind) -> list[Event]:
        """Return the events of these kinds from the last hour, oldest first, excluding those from before the current
        registration.
        """
        names = {kind.name for kind in of}
        begun = self.last(*_REPLACEMENTS)
        since = max(self.now - RECENT_S, begun.at if begun is not None else 0.0)
        return [event for event in self.events if event.kind in names and event.at >= since]


def explain(situation: Situation) -> tuple[str, list[Finding]]:
    """Return the verdict (one sentence), and the findings, worst first."""
    findings = [
        *_phase_findings(situation),
        *_server_findings(situation),
        *_model_findings(situation),
    ]
    info = situation.info
    if info is not None:
        for instance in info.instances:
            findings += _instance_findings(situation, instance)
        findings += _load_findings(info, situation.waiting)
        findings += _lease_findings(info)
        findings += _thread_findings(info)
    findings += _recent_findings(situation)
    if situation.outcomes is not None:
        findings += _request_findings(situation.name, situation.outcomes, situation.now)
    findings += _failed_operations(situation)
    findings += [Finding("notice", "daemon", text, hint(text)) for text in situation.problems]
    findings.sort(
        key=lambda finding: _ORDER.index(finding.severity)
    )  # stable sort: keeps the order above within each severity
    return _verdict(situation, findings), findings


def _verdict(situation: Situation, findings: Sequence[Finding]) -> str:
    info, name = situation.info, situation.name
    why = f": {findings[0].text}" if findings else ""
    if info is None:
        return f"{name} is not served{why}"
    if info.state != "ready":
        return f"{name} is {info.state.replace('_', ' ')}{why}"
    own = [one for one in info.instances if not one.standby]
    ready = sum(one.state == "ready" for one in own)
    if ready < len(own):
        return f"{name} serves with {ready} of {len(own)} instances{why}"
    if findings and findings[0].severity != "notice":
        return f"{name} is ready, but{why[1:]}"
    return f"{name} is ready" + (f"; {findings[0].text}" if findings else ": nothing is wrong")


# ── findings ─────────────────────────────────────────────────────────────────────────────────────


def _phase_findings(situation: Situation) -> Iterator[Finding]:
    """Yield a finding if the daemon is stopping or draining."""
    if situation.phase == "stopping":
        yield Finding(
            "down", "daemon", "the daemon is stopping", "Use another daemon, or start it again."
        )
    elif situation.phase == "draining":
        began = _last_of_daemon(situation, kinds.DRAINING)
        by = f", as requested by {began.who}" if began is not None and began.who else ""
        text = f"the daemon is draining{by}: it answers requests, reports not ready, and refuses changes"
        advice = (
            "Its host is about to go away: use another daemon. To keep it: pytriton-daemon restart."
        )
        yield Finding("degraded", "drain", text, advice, began.at if began is not None else None)


#: Operations on the daemon: kind of failure, kinds of success, what failed, consequence, advice.
_OPERATIONS = (
    (kinds.UPGRADE_FAILED, (kinds.UPGRADED, kinds.STARTED), "an upgrade of the daemon",
     "this version continues",
     "Fix the reported problem and retry; pytriton-daemon restart switches to the new version immediately, with an interruption."),
    (kinds.SERVER_REPLACE_FAILED, (kinds.SERVER_REPLACED, kinds.STARTED), "a replacement of tritonserver",
     "the running one keeps serving", "See its last output: pytriton-daemon logs."),
    (kinds.RELOAD_FAILED, (kinds.RELOADED, kinds.STARTED), "a reload of the settings",
     "the old ones stay in effect", "Fix the settings file and reload again."),
)  # fmt: skip


def _failed_operations(situation: Situation) -> Iterator[Finding]:
    """Yield a finding for each recent operation on the daemon that was requested but failed."""
    for failed, done, what, instead, advice in _OPERATIONS:
        last = _last_of_daemon(situation, failed, *done)
        if last is None or last.kind != failed.name or last.at < situation.now - RECENT_S:
            continue
        by = f" by {last.who}" if last.who else ""
        text = f"{what}{by} failed; {instead}: {last.reason}"
        yield Finding(
            "notice", "daemon", text, advice, last.at
        )  # without `hint`, which is about callables


def _last_of_daemon(situation: Situation, *of: kinds.EventKind) -> Event | None:
    names = {kind.name for kind in of}
    return next((one for one in reversed(situation.daemon_events) if one.kind in names), None)


def _server_findings(situation: Situation) -> Iterator[Finding]:
    server = situation.server
    if server.state in ("ready", "serving", "running"):
        return
    last = _last_of_daemon(
        situation, kinds.SERVER_EXITED, kinds.SERVER_FAILED, kinds.SERVER_BACKOFF
    )
    why = f": {last.reason}" if last is not None and last.reason else ""
    advice = "It restarts automatically. See its last output: pytriton-daemon logs."
    yield Finding("down", "tritonserver", f"tritonserver is {server.state}{why}", advice)


def _model_findings(situation: Situation) -> Iterator[Finding]:
    info = situation.info
    if info is None:
        yield _not_served(situation)
        return
    if info.state == "failed":
        yield _failed(info)
    elif info.state in ("restoring", "loading"):
        yield _restoring(info, situation.now)
        yield from _waiting_for_memory(situation)
    elif info.state == "unloaded":
        text = "a tritonserver client unloaded it"
        yield Finding(
            "down", "unloaded", text, "Load it again with that client, or register it again."
        )
    elif info.state == "suspended":
        yield _suspended(situation)
    elif info.state in ("resuming", "starting", "not_ready"):
        yield from _waiting_for_memory(situation)
    refused = situation.last(kinds.REFUSED, kinds.READY_AGAIN, *_CHANGES)
    if (
        refused is not None
        and refused.kind == kinds.REFUSED.name
        and info.state not in ("ready", "degraded")
    ):
        text = f"tritonserver rejected it: {refused.reason}"
        yield Finding("down", "tritonserver", text, hint(refused.reason), refused.at)


def _restoring(info: messages.ModelInfo, now: float) -> Finding:
    begin = "it is in a model repository and"
    if info.state == "restoring":
        begin = "it was registered before the daemon's start and"
    if not info.loading_since:
        text = f"{begin} is waiting to be loaded"
        return Finding(
            "down",
            "restore",
            text,
            "Wait: `pytriton-daemon status` shows the models that are loaded first.",
        )
    text = f"{begin} has been loading for {duration(now - info.loading_since)}"
    advice = f"Wait: `pytriton-daemon logs {info.name}` shows its progress. load_timeout_s aborts a load that hangs."
    return Finding("down", "restore", text, advice, info.loading_since)


def _failed(info: messages.ModelInfo) -> Finding:
    """Return the finding about a model that could not be restored or could not be loaded from its repository."""
    why = info.error or "the cause is unknown"
    if info.served_by != "workers":
        text = f"it is in a model repository and could not be loaded: {why}"
        then = f"Fix its files, then load it: pytriton-daemon repository load {info.name}."
        return Finding("down", "repository", text, _joined(hint(why), then))
    text = f"it was registered before the daemon's start and could not be restored: {why}"
    then = f"Then register it again, or remove it: pytriton-daemon unregister {info.name}."
    return Finding("down", "restore", text, _joined(hint(why), then))


def _lease_findings(info: messages.ModelInfo) -> Iterator[Finding]:
    if info.lease is not None:
        text = "it is provisional: part of a change across several nodes, and rolled back unless that completes"
        yield Finding(
            "notice", "provisional", text, "`pytriton-daemon fleet models` shows all nodes."
        )


def _thread_findings(info: messages.ModelInfo) -> Iterator[Finding]:
    if info.threads:
        text = (
            f"numpy, torch and similar libraries use at most {info.threads} thread{'s' * (info.threads > 1)} in each "
            "worker: its share of the cores, because the model has or may have several workers"
        )
        advice = "To change this, register with env={'OMP_NUM_THREADS': 'N'}."
        yield Finding("notice", "threads", text, advice)


def _suspended(situation: Situation) -> Finding:
    slept = situation.last(kinds.SUSPENDED)
    why = slept.reason if slept is not None else "it has not been loaded yet"
    if situation.info is not None and situation.info.scaling == DEFERRED:
        why = DEFERRED
    # A worker that became ready later shows that earlier problems are over.
    trouble = situation.last(
        kinds.INSUFFICIENT_MEMORY, kinds.CRASH_LOOP, kinds.READY, kinds.RESUMED, *_CHANGES
    )
    if trouble is None or trouble.kind not in (
        kinds.INSUFFICIENT_MEMORY.name,
        kinds.CRASH_LOOP.name,
    ):
        return Finding("notice", "suspended", why, "No action needed: a request resumes it.")
    if trouble.kind == kinds.INSUFFICIENT_MEMORY.name:
        text = f"there was not enough memory to resume it: {trouble.reason}"
        return Finding("degraded", "memory", text, _BUDGET_ADVICE, trouble.at)
    text = f"its workers were in a crash loop before it was suspended ({why}): {trouble.reason}"
    advice = _joined(
        hint(trouble.reason),
        "The next request starts a worker.",
        f"See: pytriton-daemon logs {situation.name}.",
    )
    return Finding("degraded", "crash_loop", text, advice, trouble.at)


def _waiting_for_memory(situation: Situation) -> Iterator[Finding]:
    last = situation.last(kinds.WAITING_FOR_MEMORY, kinds.INSUFFICIENT_MEMORY, kinds.LOADING)
    if last is not None and last.kind == kinds.WAITING_FOR_MEMORY.name:
        text = f"it is waiting for memory: {last.reason}"
        yield Finding("degraded", "memory", text, _BUDGET_ADVICE, last.at)


def _not_served(situation: Situation) -> Finding:
    last = situation.last(
        kinds.UNREGISTERED,
        kinds.REGISTRATION_FAILED,
        kinds.UNLOADED,
        kinds.REPOSITORY_LOAD_FAILED,
        *_CHANGES,
    )
    if last is None:
        return Finding("down", "unknown", "the model is unknown", "Register it.")
    by = f" by {last.who}" if last.who else ""
    why = f": {last.reason}" if last.reason else ""
    if last.kind == kinds.REPOSITORY_LOAD_FAILED.name:
        text = f"it could not be loaded from a model repository{by}{why}"
        return Finding("down", "repository", text, hint(last.reason), last.at)
    if last.kind == kinds.REGISTRATION_FAILED.name:
        return Finding(
            "down", "registration", f"its registration{by} failed{why}", hint(last.reason), last.at
        )
    if last.kind in (kinds.UNREGISTERED.name, kinds.UNLOADED.name):
        return Finding(
            "down", "unregistered", f"it was unregistered{by}{why}", "Register it again.", last.at
        )
    return Finding(
        "down", "unknown", "it is no longer registered; the reason is unknown", "Register it again."
    )


def _instance_findings(situation: Situation, instance: messages.InstanceInfo) -> Iterator[Finding]:
    number, name = instance.index, situation.name
    who = f"{'standby worker' if instance.standby else 'instance'} {number}"
    on = f" on device {instance.device}" if instance.device is not None else ""
    severity = "notice" if instance.standby else "degraded"
    last = instance.last_exit or "reason unknown"
    log = f"See: pytriton-daemon logs {name}."
    remedy = hint(last)
    if instance.state == "failed":
        then = "no worker is started until you scale or replace the model (worker_restart_limit)"
        text = describe_exits(
            f"{who}{on}", instance.consecutive_exits, last, then, limit_reached=True
        )
        then = f"Fix it, then run pytriton-daemon scale {name} N or register with replace=True."
        yield Finding(
            severity, "restart_limit_reached", text, _joined(remedy, then, log), instance=number
        )
    elif instance.consecutive_exits > 0 and instance.state != "ready":
        left_s = max(0.0, (instance.next_try_at or situation.now) - situation.now)
        then = next_attempt(left_s)
        began = situation.last(kinds.LOADING, instance=number)
        if instance.state == "loading" and began is not None:
            then = f"the next worker has been loading for {situation.now - began.at:.0f} s (pid {instance.pid})"
        text = describe_exits(f"{who}{on}", instance.consecutive_exits, last, then)
        advice = _joined(
            remedy, f"After fixing it, run pytriton-daemon scale {name} N to retry now.", log
        )
        yield Finding(severity, "crash_loop", text, advice, instance=number)
    elif instance.state in ("starting", "loading"):
        yield from _loading(situation, instance, who, severity)
    elif instance.state == "not_ready":
        event = situation.last(kinds.NOT_ACCEPTING, instance=number)
        why = event.reason if event is not None else "no reason given"
        text = f"{who}: the model's is_ready returns false: {why}"
        yield Finding(severity, "not_accepting", text, log, instance=number)
    elif instance.busy_s is not None and instance.busy_s > _long_s(situation.info):
        text = f"{who}{on} has been busy with one batch for {instance.busy_s:.0f} s (pid {instance.pid})"
        advice = (
            f"kill -QUIT {instance.pid} prints its stacks to the log. Register with "
            "execution_timeout_s to abort batches that hang."
        )
        yield Finding("degraded", "hang", text, _joined(advice, log), instance=number)


def describe_exits(
    who: str, exits: int, last_exit: str, then: str, *, limit_reached: bool = False
) -> str:
    """Describe, in one sentence, an instance that keeps losing its workers.

    Args:
        who: the instance
        exits: number of consecutive workers that exited without having answered a batch
        last_exit: how the last one ended, or why it was not loaded
        then: what happens next
        limit_reached: whether the restart limit was reached
    """
    if limit_reached:
        what = "has reached its restart limit"
    else:
        what = "is in a crash loop" if exits >= CRASH_LOOP else "has lost its worker"
    times = "1 exit" if exits == 1 else f"{exits} exits in a row"
    return f"{who} {what}: {times}, the last: {last_exit}; {then}"


def next_attempt(left_s: float) -> str:
    """Say when the next worker starts: in `left_s` seconds, or now."""
    return f"the next attempt is in {left_s:.0f} s" if left_s else "the next attempt is in progress"


def _long_s(info: messages.ModelInfo | None) -> float:
    """Return the number of seconds after which a batch (or a stream, if the model is decoupled) is reported as long."""
    policy = info.config.get("model_transaction_policy") if info is not None else None
    return _LONG_STREAM_S if (policy or {}).get("decoupled") else _LONG_BATCH_S


def _loading(
    situation: Situation, instance: messages.InstanceInfo, who: str, severity: str
) -> Iterator[Finding]:
    began = situation.last(kinds.LOADING, instance=instance.index)
    before = situation.last(kinds.READY)
    since_s = situation.now - began.at if began is not None else 0.0
    text = f"{who} has been loading for {since_s:.0f} s (pid {instance.pid})"
    if before is not None:
        text += f"; the last successful load took {before.numbers.get('took_s', 0):.1f} s"
    slow = since_s > _LONG_LOAD_S
    advice = "If this is unexpected: kill -QUIT PID prints its stacks to the log." if slow else ""
    at = began.at if began is not None else None
    yield Finding(severity, "loading", text, advice, at, instance.index)


def _load_findings(info: messages.ModelInfo, waiting: int | None) -> Iterator[Finding]:
    serving = [one for one in info.instances if one.state == "ready"]
    if waiting == 0:
        return
    if serving and all(one.busy_s is not None for one in serving):
        longest = max(one.busy_s or 0.0 for one in serving)
        wait = "requests may wait" if waiting is None else f"requests wait in the queue: {waiting}"
        text = f"all {len(serving)} ready instances are busy, the longest batch for {longest:.2f} s: {wait}"
        advice = (
            f"More instances (pytriton-daemon scale {info.name} N), or batching (max_batch_size)."
        )
        yield Finding("notice", "queue", text, advice)


def _recent_findings(situation: Situation) -> Iterator[Finding]:
    name = situation.name
    for kind, concern, severity, what, advice in (
        (kinds.POISON, "poison", "degraded", "requests crashed every worker that ran them",
         "Find out what is special about that request; validate inputs in the callable before passing them to native code."),
        (kinds.HANG, "hang", "degraded", "batches hung and their workers were replaced",
         f"The stacks are in the log: pytriton-daemon logs {name}."),
        (kinds.LIMIT_EXCEEDED, "limit", "degraded", "workers exceeded a hard limit and were killed",
         "Raise limits.memory_limit or limits.processes, or fix the leak."),
        (kinds.CRASHED, "crashes", "notice", "workers exited unexpectedly", ""),
        (kinds.RECYCLE_FAILED, "recycle_failed", "degraded", "replacements for workers due for recycling failed to load", ""),
    ):  # fmt: skip
        seen = situation.recent(kind)
        if seen:
            last = seen[-1]
            text = f"in the last hour, {what} {_times(len(seen))}; the last: {last.reason}"
            remedy = _joined(hint(last.reason), advice)
            yield Finding(severity, concern, text, remedy, last.at, last.instance)
    due = situation.recent(kinds.RECYCLE_DUE)
    recycled = [event for event in due if event.code == messages.RecycleReason.MEMORY.value]
    if len(recycled) >= _LEAKS:
        batches = recycled[-1].numbers.get("batches", 0)
        text = (
            f"in the last hour, workers reached limits.recycle_above {_times(len(recycled))}, the last after {batches} batches: "
            f"it leaks ({recycled[-1].reason})"
        )
        advice = "No request fails, but the model is reloaded each time. Fix the leak, or set max_batches."
        yield Finding("notice", "leak", text, advice, recycled[-1].at, recycled[-1].instance)
    yield from _failed_change(situation)


def _failed_change(situation: Situation) -> Iterator[Finding]:
    """Yield a finding if the last requested change failed and left the model as it was."""
    if situation.info is None:
        return
    # A failed replacement is reported even if the model was scaled since.
    last = situation.last(*_FAILED_REPLACEMENTS, *_REPLACEMENTS)
    if last is None or last.kind in {kind.name for kind in _REPLACEMENTS}:
        last = situation.last(kinds.SCALE_FAILED, kinds.SCALED, *_REPLACEMENTS)
    if last is None or last.kind not in _FAILED_CHANGES:
        return
    what = _FAILED_CHANGES[last.kind]
    by = f", as requested by {last.who}," if last.who else ""
    text = f"it could not be {what}{by} and is unchanged: {last.reason}"
    yield Finding("degraded", "change", text, hint(last.reason), last.at)


# ── failed requests ──────────────────────────────────────────────────────────────────────────────

#: Share of failed requests from which a model is degraded, and below which failures are not reported.
_MOSTLY, _RARELY = 0.5, 0.01
#: Descriptions of the kinds of failures.
_FAILURE_TEXTS = {
    "callable": "the callable raised",
    "input": "inputs were invalid",
    "result": "the callable's results were invalid",
    "timeout": "execution_timeout_s was exceeded",
    "unrecoverable": "the callable reported an unrecoverable error",
    "lost": "their worker exited",
    "hung": "their worker hung",
}
_LOG_ADVICE = "See: pytriton-daemon logs {0}."
#: Advice for each kind of failure.
_FAILURE_ADVICE = {
    "callable": "Tracebacks: pytriton-daemon logs {0}; the last failed requests: pytriton-daemon requests {0}.",
    "input": "Clients send inputs that do not match the declared ones; details: pytriton-daemon logs {0}.",
    "result": "The callable returns results that do not match the declared outputs; details: pytriton-daemon logs {0}.",
    "timeout": "Profile the model: pytriton-daemon profile {0}; or register with a higher execution_timeout_s.",
}


def _request_findings(name: str, outcomes: Outcomes, now: float) -> Iterator[Finding]:
    """Yield a finding if a large share of a model's recent requests failed."""
    failed = sum(outcomes.failed.values())
    requests = max(outcomes.requests, failed)  # some of the failed ones started before the period
    if not failed or failed < _RARELY * requests:
        return
    ago_s = None if outcomes.last_at is None else max(0.0, now - outcomes.last_at)
    text = f"{_share(failed, requests)} of the last {_span(outcomes.seconds)} failed: {_failures(outcomes.failed)}"
    if ago_s is not None and ago_s <= outcomes.seconds:
        error = f": {outcomes.last_error}" if outcomes.last_error else ""
        text += f"; the last one {ago_s:.0f} s ago{error}"
    severity = "degraded" if failed >= _MOSTLY * requests else "notice"
    main = max(outcomes.failed, key=lambda kind: outcomes.failed[kind])
    advice = (
        f"{hint(outcomes.last_error)} {_FAILURE_ADVICE.get(main, _LOG_ADVICE).format(name)}".strip()
    )
    yield Finding(severity, "failing", text, advice)


def _share(failed: int, requests: int) -> str:
    if failed == requests:
        return "the only request" if requests == 1 else f"all {requests} requests"
    return f"{failed} of {requests} requests ({failed / requests:.0%})"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"


def _failures(failed: Mapping[str, int]) -> str:
    found = sorted(
        ((count, kind) for kind, count in failed.items() if count), key=lambda one: -one[0]
    )
    if len(found) == 1:
        return _FAILURE_TEXTS[found[0][1]]
    return ", ".join(f"{count} {_FAILURE_TEXTS[kind]}" for count, kind in found)


# ── advice ───────────────────────────────────────────────────────────────────────────────────────

#: Pattern of a failure's reason, and advice. The first match wins.
_HINTS = (
    (
        r"No space left on device|Disk quota exceeded|Read-only file system|File too large",
        "Free space on the disk that the message names, and check that it is writable.",
    ),
    (
        r"memory_budget",
        "`pytriton-daemon status` shows the budget. Increase it, or allow models to be suspended while they are "
        "idle: suspend_any_idle_model = true, or instances=(0, 1) or lazy=True for those that hold memory.",
    ),
    (
        r"out of GPU memory|CUDA.{,40}out of memory|torch\S*\.OutOfMemoryError|cupy\S*\.OutOfMemoryError",
        "The GPU has too little memory for the model and its batches (nvidia-smi shows what uses it): use smaller "
        "batches (max_batch_size), fewer instances on this GPU, or another one (devices=).",
    ),
    (
        r"CUDA|cuda|NCCL|hipError",
        "Compare the devices that the model was registered with (devices=) with the available ones (nvidia-smi): "
        "an instance's CUDA_VISIBLE_DEVICES contains only its own device.",
    ),
    (
        r"load_timeout_s",
        "Loading takes longer than load_timeout_s: register with a higher value, or load less.",
    ),
    (
        r"did not start within",
        "The worker process did not start: check the interpreter (python=) and the load on the machine.",
    ),
    (
        r"memory_limit|bytes of memory|lack of memory|MemoryError|OutOfMemory",
        "It needs more memory than its limit: raise the limit, or use smaller batches or fewer instances.",
    ),
    (
        r"No module named|ModuleNotFoundError|cannot import name|ImportError",
        "A package is missing from the workers' environment: install it there, or select another one with python=.",
    ),
    (
        r"is already registered",
        "Use replace=True (--replace) to replace it, or choose another name.",
    ),
    (
        r"No such file or directory|FileNotFoundError",
        "A file is missing where the callable expects it: workers run on the daemon's machine and resolve relative paths "
        "against the directory that it was registered from (cwd=).",
    ),
    (
        r"Permission denied",
        "The daemon's user lacks permission to read or execute the file that the message names.",
    ),
    (
        r"signal 11|SIGSEGV|signal 6|SIGABRT|signal 7|SIGBUS",
        "Native code of the callable crashed: the stack traces of all threads are in the log.",
    ),
)


def hint(reason: str) -> str:
    """Return advice on a failure, given its reason; "" if there is none."""
    return next((advice for words, advice in _HINTS if re.search(words, reason)), "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
