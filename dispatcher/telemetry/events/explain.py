"""Why a model is as it is: a verdict from its state and its events. Pure functions, no clock of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytriton._protocol import messages
from pytriton._protocol.messages.events import Event, Finding
from pytriton._protocol.rates import duration
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.failure_rate import Outcomes, failing
from pytriton.dispatcher.telemetry.events.hints import hint

#: What happened longer ago says nothing of the present.
RECENT_S = 3600.0
#: A batch, or a load, that runs so long without a limit is worth a word.
_LONG_BATCH_S, _LONG_STREAM_S, _LONG_LOAD_S = 10.0, 600.0, 30.0
#: Exchanges of a worker for its memory in the recent past that make a leak.
_LEAKS = 2
#: The word of status on a model that begins asleep, and that tritonserver does not have yet.
RESTS = "not asked for since the daemon's start: tritonserver gets it with the first request"
_ORDER = ("down", "degraded", "notice")

_FAILED_REPLACEMENTS = (kinds.NOT_REPLACED, kinds.NOT_ROLLED_BACK, kinds.NOT_REGISTERED)
_REPLACEMENTS = (kinds.REGISTERED, kinds.REPLACED, kinds.ROLLED_BACK)
_CHANGES = (*_REPLACEMENTS, kinds.SCALED, kinds.RESTORED)


@dataclass(frozen=True)
class Situation:
    """The facts that are known of a model.

    Attributes:
        name: of the model
        info: as status shows it; None: it is not served
        events: of the model, oldest first
        server: tritonserver
        daemon_events: of the daemon itself, oldest first
        problems: of the daemon, in words
        now: seconds since the epoch
        waiting: requests in its queue, as tritonserver says; None: it does not
        phase: of the daemon: "starting", "ready", "draining" or "stopping"
        outcomes: of its requests in the recent past; None: nobody has counted them
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

    def last(self, *wanted: kinds.Kind, instance: int | None = None) -> Event | None:
        """Return the newest event of these kinds (of an instance)."""
        names = {kind.name for kind in wanted}
        fitting = (
            event
            for event in reversed(self.events)
            if event.kind in names and instance in (None, event.instance)
        )
        return next(fitting, None)

    def recent(self, *wanted: kinds.Kind) -> list[Event]:
        """Return the events of these kinds of the recent past, oldest first; a former registration's are over."""
        names = {kind.name for kind in wanted}
        begun = self.last(*_REPLACEMENTS)
        since = max(self.now - RECENT_S, begun.at if begun is not None else 0.0)
        return [event for event in self.events if event.kind in names and event.at >= since]


def explain(situation: Situation) -> tuple[str, list[Finding]]:
    """Return the verdict, one sentence, and what was found, the worst first."""
    findings = [*_of_phase(situation), *_of_server(situation), *_of_model(situation)]
    info = situation.info
    if info is not None:
        for instance in info.instances:
            findings += _of_instance(situation, instance)
        findings += _of_load(info, situation.waiting)
        findings += _on_trial(info)
        findings += _of_threads(info)
    findings += _of_the_past(situation)
    if situation.outcomes is not None:
        findings += failing(situation.name, situation.outcomes, situation.now)
    findings += _given_up(situation)
    findings += [Finding("notice", "daemon", text, hint(text)) for text in situation.problems]
    findings.sort(
        key=lambda finding: _ORDER.index(finding.severity)
    )  # stable: the order above within each
    return _verdict(situation, findings), findings


def _verdict(situation: Situation, findings: Sequence[Finding]) -> str:
    info, name = situation.info, situation.name
    why = f": {findings[0].text}" if findings else ""
    if info is None:
        return f"{name} is not served{why}"
    if info.state != "ready":
        return f"{name} is {info.state}{why}"
    own = [one for one in info.instances if not one.spare]
    ready = sum(one.state == "ready" for one in own)
    if ready < len(own):
        return f"{name} serves with {ready} of {len(own)} instances{why}"
    if findings and findings[0].severity != "notice":
        return f"{name} is ready, but{why[1:]}"
    return f"{name} is ready" + (f"; {findings[0].text}" if findings else ": nothing is wrong")


# ── what can be found ────────────────────────────────────────────────────────────────────────────


def _of_phase(situation: Situation) -> Iterator[Finding]:
    """Tell of a daemon that is about to leave: its models are as good as gone."""
    if situation.phase == "stopping":
        yield Finding("down", "daemon", "the daemon is stopping", "Ask another one, or start it.")
    elif situation.phase == "draining":
        began = _last_of_daemon(situation, kinds.DRAINING)
        by = f", as {began.who} asked" if began is not None and began.who else ""
        text = f"the daemon drains{by}: it answers requests, is not ready, and takes no changes"
        advice = (
            "Its machine is to go: ask another daemon. Should it stay: pytriton-daemon restart."
        )
        yield Finding("degraded", "drain", text, advice, began.at if began is not None else None)


#: What was to change the daemon, and was given up; and what shows that a later try was not.
_GIVEN_UP = (
    (kinds.NOT_UPGRADED, (kinds.UPGRADED, kinds.STARTED), "the daemon was to be upgraded",
     "this version goes on",
     "Mend what it says, and try again; pytriton-daemon restart takes the new version at once, with a pause."),
    (kinds.SERVER_NOT_REPLACED, (kinds.SERVER_REPLACED, kinds.STARTED), "tritonserver was to be replaced",
     "the one that runs serves on", "`pytriton-daemon logs` has its last words."),
    (kinds.NOT_RELOADED, (kinds.RELOADED, kinds.STARTED), "settings were to be read anew",
     "the old ones hold", "Mend the settings file, and reload again."),
)  # fmt: skip


def _given_up(situation: Situation) -> Iterator[Finding]:
    """Tell of what somebody wanted of the daemon in the recent past, and did not get."""
    for failed, done, what, instead, advice in _GIVEN_UP:
        last = _last_of_daemon(situation, failed, *done)
        if last is None or last.kind != failed.name or last.at < situation.now - RECENT_S:
            continue
        by = f" by {last.who}" if last.who else ""
        text = f"{what}{by}, which failed, and {instead}: {last.reason}"
        yield Finding("notice", "daemon", text, advice, last.at)  # hints are for callables


def _last_of_daemon(situation: Situation, *wanted: kinds.Kind) -> Event | None:
    names = {kind.name for kind in wanted}
    return next((one for one in reversed(situation.daemon_events) if one.kind in names), None)


def _of_server(situation: Situation) -> Iterator[Finding]:
    server = situation.server
    if server.state in ("ready", "serving", "running"):
        return
    last = _last_of_daemon(situation, kinds.SERVER_ENDED, kinds.SERVER_FAILED, kinds.SERVER_LATER)
    why = f": {last.reason}" if last is not None and last.reason else ""
    advice = "It is started again by itself; `pytriton-daemon logs` has its last words."
    yield Finding("down", "tritonserver", f"tritonserver is {server.state}{why}", advice)


def _of_model(situation: Situation) -> Iterator[Finding]:
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
        text = "a client of tritonserver has unloaded it"
        yield Finding(
            "down", "unloaded", text, "Have that client load it again, or register it anew."
        )
    elif info.state == "asleep":
        yield _asleep(situation)
    elif info.state in ("waking", "starting", "unready"):
        yield from _waiting_for_memory(situation)
    refused = situation.last(kinds.REFUSED, kinds.READY_AGAIN, *_CHANGES)
    if (
        refused is not None
        and refused.kind == kinds.REFUSED.name
        and info.state not in ("ready", "degraded")
    ):
        text = f"tritonserver refused it: {refused.reason}"
        yield Finding("down", "tritonserver", text, hint(refused.reason), refused.at)


def _restoring(info: messages.ModelInfo, now: float) -> Finding:
    begin = "it lies in a model repository, and"
    if info.state == "restoring":
        begin = "it was registered before the daemon's start, and"
    if not info.loading_since:
        text = f"{begin} waits for its turn to be loaded"
        return Finding(
            "down", "restore", text, "Wait: `pytriton-daemon status` shows what is loaded first."
        )
    text = f"{begin} has been loading for {duration(now - info.loading_since)}"
    advice = f"Wait: `pytriton-daemon logs {info.name}` shows what it does. load_timeout_s ends a load that hangs."
    return Finding("down", "restore", text, advice, info.loading_since)


def _failed(info: messages.ModelInfo) -> Finding:
    """Tell of a model that is kept, or lies in a model repository, and could not be served."""
    why = info.error or "nobody knows why"
    if info.served_by != "workers":
        text = f"it lies in a model repository and could not be loaded: {why}"
        then = f"Mend its files, then load it: pytriton-daemon repository load {info.name}."
        return Finding("down", "repository", text, _joined(hint(why), then))
    text = f"it was registered before the daemon's start and could not be restored: {why}"
    then = f"Then register it again, or forget it: pytriton-daemon unregister {info.name}."
    return Finding("down", "restore", text, _joined(hint(why), then))


def _on_trial(info: messages.ModelInfo) -> Iterator[Finding]:
    if info.trial is not None:
        text = "it is on trial: somebody is changing several nodes, and it is taken back if they do not go on"
        yield Finding("notice", "trial", text, "`pytriton-daemon fleet models` shows all nodes.")


def _of_threads(info: messages.ModelInfo) -> Iterator[Finding]:
    if info.threads:
        text = (
            f"numpy, torch and the like compute with at most {info.threads} thread{'s' * (info.threads > 1)} in each "
            "worker: its share of the cores, as the model has, or may have, several workers"
        )
        advice = "For another number: env={'OMP_NUM_THREADS': 'N'} at the registration."
        yield Finding("notice", "threads", text, advice)


def _asleep(situation: Situation) -> Finding:
    slept = situation.last(kinds.SLEPT)
    why = slept.reason if slept is not None else "it has not been loaded yet"
    if situation.info is not None and situation.info.scaling == RESTS:
        why = RESTS
    # A worker that served shows that whatever was before is over.
    trouble = situation.last(kinds.NO_MEMORY, kinds.CRASH_LOOP, kinds.READY, kinds.WOKEN, *_CHANGES)
    if trouble is None or trouble.kind not in (kinds.NO_MEMORY.name, kinds.CRASH_LOOP.name):
        return Finding("notice", "asleep", why, "Nothing need be done: a request wakes it.")
    if trouble.kind == kinds.NO_MEMORY.name:
        advice = "`pytriton-daemon status` shows the budget; more of it, or models that may sleep, would help."
        text = f"there was no memory when it was to wake: {trouble.reason}"
        return Finding("degraded", "memory", text, advice, trouble.at)
    text = f"its workers were in a crash loop before it fell asleep ({why}): {trouble.reason}"
    advice = _joined(
        hint(trouble.reason),
        "The next request starts one again.",
        f"Its words: pytriton-daemon logs {situation.name}.",
    )
    return Finding("degraded", "crash_loop", text, advice, trouble.at)


def _waiting_for_memory(situation: Situation) -> Iterator[Finding]:
    last = situation.last(kinds.WAITS_FOR_MEMORY, kinds.NO_MEMORY, kinds.LOADING)
    if last is not None and last.kind == kinds.WAITS_FOR_MEMORY.name:
        advice = "`pytriton-daemon status` shows the budget; more of it, or models that may sleep, would help."
        text = f"it waits for memory: {last.reason}"
        yield Finding("degraded", "memory", text, advice, last.at)


def _not_served(situation: Situation) -> Finding:
    last = situation.last(
        kinds.UNREGISTERED, kinds.NOT_REGISTERED, kinds.UNLOADED, kinds.NOT_LOADED, *_CHANGES
    )
    if last is None:
        return Finding("down", "unknown", "nothing is known of it", "Register it.")
    by = f" by {last.who}" if last.who else ""
    why = f": {last.reason}" if last.reason else ""
    if last.kind == kinds.NOT_LOADED.name:
        text = f"it could not be loaded from a model repository{by}{why}"
        return Finding("down", "repository", text, hint(last.reason), last.at)
    if last.kind == kinds.NOT_REGISTERED.name:
        return Finding(
            "down", "registration", f"its registration{by} failed{why}", hint(last.reason), last.at
        )
    if last.kind in (kinds.UNREGISTERED.name, kinds.UNLOADED.name):
        return Finding(
            "down", "unregistered", f"it was unregistered{by}{why}", "Register it again.", last.at
        )
    return Finding(
        "down", "unknown", "it is not there any more, and nobody has said why", "Register it again."
    )


def _of_instance(situation: Situation, instance: messages.InstanceInfo) -> Iterator[Finding]:
    number, name = instance.index, situation.name
    who = f"{'spare' if instance.spare else 'instance'} {number}"
    on = f" on device {instance.device}" if instance.device is not None else ""
    severity = "notice" if instance.spare else "degraded"
    last = instance.last_exit or "no reason is known"
    log = f"Its words: pytriton-daemon logs {name}."
    mend = hint(last)
    if instance.state == "failed":
        text = f"{who}{on} has been given up after worker_restart_limit ends: {last}"
        then = f"Mend it, then pytriton-daemon scale {name} N, or register with replace=True."
        yield Finding(severity, "given_up", text, _joined(mend, then, log), instance=number)
    elif instance.fruitless_ends > 0 and instance.state != "ready":
        left_s = max(0.0, (instance.next_try_at or situation.now) - situation.now)
        what = "is in a crash loop" if instance.fruitless_ends >= 3 else "has lost its worker"
        then = f"the next try is in {left_s:.0f} s" if left_s else "the next try is under way"
        began = situation.last(kinds.LOADING, instance=number)
        if instance.state == "loading" and began is not None:
            then = f"the next one has been loading for {situation.now - began.at:.0f} s (pid {instance.pid})"
        text = (
            f"{who}{on} {what}: {instance.fruitless_ends} in a row ended, the last: {last}; {then}"
        )
        advice = _joined(mend, f"After mending: pytriton-daemon scale {name} N tries at once.", log)
        yield Finding(severity, "crash_loop", text, advice, instance=number)
    elif instance.state in ("starting", "loading"):
        yield from _loading(situation, instance, who, severity)
    elif instance.state == "unready":
        told = situation.last(kinds.UNWILLING, instance=number)
        why = told.reason if told is not None else "it does not say why"
        text = f"{who}: the model's own is_ready says no: {why}"
        yield Finding(severity, "unwilling", text, log, instance=number)
    elif instance.busy_s is not None and instance.busy_s > _long_s(situation.info):
        text = f"{who}{on} has been busy with one batch for {instance.busy_s:.0f} s (pid {instance.pid})"
        advice = (
            f"What it does: kill -QUIT {instance.pid} prints its stacks to the log. Register with "
            "execution_timeout_s, and what hangs is ended."
        )
        yield Finding("degraded", "hang", text, _joined(advice, log), instance=number)


def _long_s(info: messages.ModelInfo | None) -> float:
    """Return how long a batch may take without a word: a stream is as long as what it has to say."""
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
        text += f"; the last load that was ready took {before.numbers.get('took_s', 0):.1f} s"
    slow = since_s > _LONG_LOAD_S
    advice = (
        "A load that should not take so long: kill -QUIT PID prints what it does to the log."
        if slow
        else ""
    )
    at = began.at if began is not None else None
    yield Finding(severity, "loading", text, advice, at, instance.index)


def _of_load(info: messages.ModelInfo, waiting: int | None) -> Iterator[Finding]:
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


def _of_the_past(situation: Situation) -> Iterator[Finding]:
    name = situation.name
    for kind, concern, severity, what, advice in (
        (kinds.POISON, "poison", "degraded", "requests ended every worker that ran them",
         "Find out what is special about that request; check inputs in the callable before native code sees them."),
        (kinds.HANG, "hang", "degraded", "batches hung and their workers were replaced",
         f"The stacks are in the log: pytriton-daemon logs {name}."),
        (kinds.LIMIT, "limit", "degraded", "workers passed a hard limit and were ended",
         "Raise limits.memory_hard or limits.processes, or mend the leak."),
        (kinds.CRASHED, "crashes", "notice", "workers ended by themselves", ""),
        (kinds.NOT_EXCHANGED, "spent", "degraded", "spent workers got no replacement", ""),
    ):  # fmt: skip
        seen = situation.recent(kind)
        if seen:
            last = seen[-1]
            text = f"in the last hour, {what} {_times(len(seen))}; the last: {last.reason}"
            told = _joined(hint(last.reason), advice)
            yield Finding(severity, concern, text, told, last.at, last.instance)
    spent = [event for event in situation.recent(kinds.SPENT) if "memory" in event.reason]
    if len(spent) >= _LEAKS:
        batches = spent[-1].numbers.get("batches", 0)
        text = (
            f"in the last hour, workers reached limits.memory {_times(len(spent))}, the last after {batches} batches: "
            f"it leaks ({spent[-1].reason})"
        )
        advice = "No request fails of it, but each time a model is loaded anew. Mend the leak, or set max_batches."
        yield Finding("notice", "leak", text, advice, spent[-1].at, spent[-1].instance)
    yield from _failed_change(situation)


def _failed_change(situation: Situation) -> Iterator[Finding]:
    """Tell of the last change that was asked for, if it failed and the model serves as it was."""
    if situation.info is None:
        return
    # A model that was scaled since is still not what somebody wanted to put in its place.
    last = situation.last(*_FAILED_REPLACEMENTS, *_REPLACEMENTS)
    if last is None or last.kind in {kind.name for kind in _REPLACEMENTS}:
        last = situation.last(kinds.NOT_SCALED, kinds.SCALED, *_REPLACEMENTS)
    if last is None or not last.kind.startswith("not_"):
        return
    what = last.kind.replace("not_", "").replace("_", " ")
    by = f" by {last.who}" if last.who else ""
    text = f"it was to be {what}{by}, which failed, and it is as it was: {last.reason}"
    yield Finding("degraded", "change", text, hint(last.reason), last.at)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
