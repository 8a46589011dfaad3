"""What `explain` says about broken set-ups, each given as a state and events."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.explain import (
    RECENT_S,
    Outcomes,
    Situation,
    explain,
    hint,
)
from pytriton.dispatcher.telemetry.events.kinds import EventKind

NOW = 1_000_000.0
UP = messages.ServerInfo("ready", 5)


def event(kind: EventKind, reason: str = "", ago_s: float = 10.0, **fields: Any) -> messages.Event:
    return messages.Event(1, NOW - ago_s, kind.name, "m", 1, reason=reason, **fields)


def instance(index: int = 0, state: str = "ready", **fields: Any) -> messages.InstanceInfo:
    return messages.InstanceInfo(index, state, 77, **fields)


def info(
    *instances: messages.InstanceInfo, state: str = "ready", **fields: Any
) -> messages.ModelInfo:
    return messages.ModelInfo("m", 1, state, list(instances), **fields)


_DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


def test_streams_may_take_longer_than_batches() -> None:
    streams = situation(info(instance(busy_s=95.0), config=_DECOUPLED), waiting=0)
    assert explain(streams) == ("m is ready: nothing is wrong", [])
    stuck = situation(info(instance(busy_s=601.0), config=_DECOUPLED), waiting=0)
    assert "has been busy with one batch for 601 s" in explain(stuck)[0]


def test_the_share_of_the_cores_is_reported() -> None:
    verdict, (found,) = explain(situation(info(instance(), threads=2), waiting=0))
    assert (found.severity, found.about) == ("notice", "threads")
    assert "at most 2 threads in each worker" in verdict


def test_unknown_facts_are_omitted() -> None:
    """Such as waiting requests that tritonserver has not reported."""
    verdict, _ = explain(situation(info(instance(busy_s=0.4))))
    assert verdict.endswith("the longest batch for 0.40 s: requests may wait")


@pytest.mark.parametrize("kind", [kinds.HANG, kinds.POISON, kinds.LIMIT_EXCEEDED, kinds.CRASHED])
@pytest.mark.parametrize("mended", [kinds.REPLACED, kinds.REGISTERED, kinds.ROLLED_BACK])
def test_events_of_a_previous_registration_are_ignored(kind: EventKind, mended: EventKind) -> None:
    """It may have been replaced because of them."""
    before = event(kind, "as it was", ago_s=100)
    after = event(mended, ago_s=50)
    assert explain(situation(info(instance()), before, after))[1] == []
    again = event(kind, "as it is", ago_s=10)
    (found,) = explain(situation(info(instance()), before, after, again))[1]
    assert "once; the last: as it is" in found.text


def test_failing_requests_are_in_the_verdict() -> None:
    outcomes = Outcomes(300, 8, {"callable": 8}, NOW - 1, "ValueError")
    found = situation(info(instance()), outcomes=outcomes)
    verdict, findings = explain(found)
    assert verdict == f"m is ready, but {findings[0].text}"
    assert findings[0].about == "failing"


def situation(what: messages.ModelInfo | None, *events: messages.Event, **more: Any) -> Situation:
    return Situation("m", what, list(events), **{"server": UP, "now": NOW, **more})


_LOOPS = instance(
    state="backoff", consecutive_exits=4, next_try_at=NOW + 8, last_exit="RuntimeError: no weights"
)
_NO_GPU = instance(
    state="backoff",
    consecutive_exits=3,
    next_try_at=NOW + 1,
    device="7",
    last_exit="RuntimeError: CUDA error: invalid device ordinal",
)
_FULL = "the registration of model m cannot be persisted: x.unfinished: No space left on device. Free space"
_LEAK = "memory of its own: 600 MiB, limits.recycle_above is 500 MiB"

#: name: situation, in the verdict, about what, in the advice
TABLE: dict[str, tuple[Situation, str, str, str]] = {
    "well": (situation(info(instance())), "m is ready: nothing is wrong", "", ""),
    "suspended": (
        situation(
            info(state="suspended"), event(kinds.SUSPENDED, "nothing was asked of it for 600 s")
        ),
        "m is suspended: nothing was asked of it for 600 s",
        "suspended",
        "a request resumes it",
    ),
    "waits for memory": (
        situation(info(state="resuming"), event(kinds.WAITING_FOR_MEMORY, "it needs 600 MiB")),
        "m is resuming: it is waiting for memory: it needs 600 MiB",
        "memory",
        "allow more models to be suspended",
    ),
    "waited for memory": (
        situation(info(state="resuming"), event(kinds.WAITING_FOR_MEMORY), event(kinds.LOADING)),
        "m is resuming",
        "",
        "",
    ),
    "starts, and waits for memory": (
        situation(info(state="starting"), event(kinds.WAITING_FOR_MEMORY, "it needs 600 MiB")),
        "m is starting: it is waiting for memory: it needs 600 MiB",
        "memory",
        "allow more models to be suspended",
    ),
    "could not wake for want of memory": (
        situation(
            info(state="suspended"),
            event(kinds.SUSPENDED, "idle"),
            event(kinds.INSUFFICIENT_MEMORY, "it needs 9 GiB"),
        ),
        "m is suspended: there was not enough memory to resume it: it needs 9 GiB",
        "memory",
        "shows the budget",
    ),
    "could not wake, and did later": (
        situation(
            info(state="suspended"),
            event(kinds.INSUFFICIENT_MEMORY, "it needs 9 GiB"),
            event(kinds.RESUMED),
            event(kinds.SUSPENDED, "idle for 600 s"),
        ),
        "m is suspended: idle for 600 s",
        "suspended",
        "a request resumes it",
    ),
    "sleeps after a crash loop": (
        situation(
            info(state="suspended"),
            event(kinds.READY),
            event(kinds.CRASH_LOOP, "No module named 'torch'"),
            event(kinds.SUSPENDED, "model n needs its memory"),
        ),
        "m is suspended: its workers were in a crash loop before it was suspended (model n needs its memory): No module",
        "crash_loop",
        "A package is missing",
    ),
    "cannot wake: a crash loop": (
        situation(info(_LOOPS, state="resuming"), event(kinds.CRASH_LOOP, "no weights")),
        "m is resuming: instance 0 is in a crash loop: 4 exits in a row",
        "crash_loop",
        "pytriton-daemon logs m",
    ),
    "drains": (
        situation(
            info(instance()),
            phase="draining",
            daemon_events=[event(kinds.DRAINING, who="user 7, process 8")],
        ),
        "m is ready, but the daemon is draining, as requested by user 7, process 8: it answers requests, reports not ready",
        "drain",
        "use another daemon",
    ),
    "stops": (
        situation(info(instance()), phase="stopping"),
        "m is ready, but the daemon is stopping",
        "daemon",
        "",
    ),
    "an upgrade was given up": (
        situation(
            info(instance()),
            daemon_events=[
                event(kinds.STARTED, ago_s=60),
                event(kinds.UPGRADE_FAILED, "it serves models of model repositories", who="user 7"),
            ],
        ),
        "m is ready; an upgrade of the daemon by user 7 failed; this version continues: it serves",
        "daemon",
        "pytriton-daemon restart",
    ),
    "an upgrade was given up, a later one not": (
        situation(
            info(instance()),
            daemon_events=[event(kinds.UPGRADE_FAILED, "no"), event(kinds.UPGRADED)],
        ),
        "m is ready: nothing is wrong",
        "",
        "",
    ),
    "settings that are wrong": (
        situation(
            info(instance()),
            daemon_events=[event(kinds.RELOAD_FAILED, "no setting 'http_prot'")],
        ),
        "m is ready; a reload of the settings failed; the old ones stay in effect: no setting",
        "daemon",
        "Fix the settings file",
    ),
    "not loaded yet": (
        situation(info(state="suspended")),
        "m is suspended: it has not been loaded yet",
        "suspended",
        "a request resumes it",
    ),
    "crash loop": (
        situation(info(_LOOPS, state="not_ready")),
        "m is not ready: instance 0 is in a crash loop: 4 exits in a row, the last: RuntimeError: no "
        "weights; the next attempt is in 8 s",
        "crash_loop",
        "pytriton-daemon logs m",
    ),
    "given up": (
        situation(
            info(
                instance(), instance(1, "failed", consecutive_exits=6, last_exit="it exited with 3")
            )
        ),
        "m serves with 1 of 2 instances: instance 1 has reached its restart limit: 6 exits in a row, the last: it exited with 3",
        "restart_limit_reached",
        "scale m N",
    ),
    "hangs now": (
        situation(info(instance(busy_s=95.0))),
        "m is ready, but instance 0 has been busy with one batch for 95 s (pid 77)",
        "hang",
        "kill -QUIT 77",
    ),
    "hung before": (
        situation(info(instance()), event(kinds.HANG, "a batch was still running after 2 s")),
        "batches hung and their workers were replaced once; the last: a batch was still running",
        "hang",
        "logs m",
    ),
    "leak towards the limit": (
        situation(
            info(instance()),
            event(kinds.RECYCLE_DUE, _LEAK, 900, code="memory", numbers={"batches": 90}),
            event(kinds.RECYCLE_DUE, _LEAK, 20, code="memory", numbers={"batches": 88}),
        ),
        "workers reached limits.recycle_above 2 times, the last after 88 batches: it leaks",
        "leak",
        "max_batches",
    ),
    "hard limit": (
        situation(
            info(instance()),
            event(kinds.LIMIT_EXCEEDED, "it used 9 bytes of memory, more than the limit of 8"),
        ),
        "workers exceeded a hard limit",
        "limit",
        "memory_limit",
    ),
    "poison": (
        situation(
            info(instance()), event(kinds.POISON, "killed by signal 11 while it ran this batch")
        ),
        "requests crashed every worker that ran them once",
        "poison",
        "special about that request",
    ),
    "starved queue, counted": (
        situation(info(instance(busy_s=0.4)), waiting=7),
        "m is ready; all 1 ready instances are busy, the longest batch for 0.40 s: requests wait in the queue: 7",
        "queue",
        "More instances",
    ),
    "busy, and nothing waits": (
        situation(info(instance(busy_s=0.4)), waiting=0),
        "m is ready: nothing is wrong",
        "",
        "",
    ),
    "slow load after a loss": (
        situation(
            info(
                instance(state="loading", consecutive_exits=1, last_exit="signal 9"),
                state="not_ready",
            ),
            event(kinds.LOADING, ago_s=45.0, instance=0),
        ),
        "instance 0 has lost its worker: 1 exit, the last: signal 9; the next worker has been loading for 45 s",
        "crash_loop",
        "logs m",
    ),
    "starved queue": (
        situation(info(instance(busy_s=0.4), instance(1, busy_s=0.9))),
        "m is ready; all 2 ready instances are busy",
        "queue",
        "More instances",
    ),
    "wrong device": (
        situation(info(_NO_GPU, state="not_ready")),
        "instance 0 on device 7 is in a crash loop",
        "crash_loop",
        "devices=",
    ),
    "full disk": (
        situation(None, event(kinds.REGISTRATION_FAILED, _FULL, who="user 7, process 8")),
        "m is not served: its registration by user 7, process 8 failed",
        "registration",
        "Free space",
    ),
    "failed load from a repository": (
        situation(info(state="failed", served_by="", error="No module named 'torch'")),
        "m is failed: it is in a model repository and could not be loaded: No module named 'torch'",
        "repository",
        "A package is missing from the workers' environment: install it there, or select another one with python=. Fix its",
    ),
    "failed load, by an older event": (
        situation(
            None, event(kinds.REPOSITORY_LOAD_FAILED, "there are: none", who="user 7, process 8")
        ),
        "m is not served: it could not be loaded from a model repository by user 7, process 8: there are: none",
        "repository",
        "",
    ),
    "restore under way": (
        situation(info(state="restoring", loading_since=NOW - 42.0)),
        "m is restoring: it was registered before the daemon's start and has been loading for 42 s",
        "restore",
        "`pytriton-daemon logs m` shows its progress",
    ),
    "restore to come": (
        situation(info(state="restoring")),
        "m is restoring: it was registered before the daemon's start and is waiting to be loaded",
        "restore",
        "shows the models that are loaded first",
    ),
    "repository's load under way": (
        situation(info(state="loading", served_by="", loading_since=NOW - 42.0)),
        "m is loading: it is in a model repository and has been loading for 42 s",
        "restore",
        "load_timeout_s aborts a load that hangs",
    ),
    "failed restore": (
        situation(info(state="failed", error="ModuleNotFoundError: No module named 'torch'")),
        "m is failed: it was registered before the daemon's start and could not be restored: ModuleNot",
        "restore",
        "A package is missing",
    ),
    "slow load": (
        situation(
            info(instance(state="loading")),
            event(kinds.READY, ago_s=9000, instance=0, numbers={"took_s": 2.5}),
            event(kinds.LOADING, ago_s=45, instance=0),
        ),
        "m serves with 0 of 1 instances: instance 0 has been loading for 45 s (pid 77); the last successful load "
        "took 2.5 s",
        "loading",
        "kill -QUIT",
    ),
    "bad replace": (
        situation(
            info(instance()),
            event(kinds.REGISTERED, ago_s=100),
            event(kinds.REPLACE_FAILED, "NameError: name 'x' is not defined", who="client laptop"),
        ),
        "m is ready, but it could not be replaced, as requested by client laptop, and is unchanged: NameError",
        "change",
        "",
    ),
    "unregistered": (
        situation(None, event(kinds.REGISTERED, ago_s=60), event(kinds.UNREGISTERED, who="user 7")),
        "m is not served: it was unregistered by user 7",
        "unregistered",
        "Register it again",
    ),
    "tritonserver is gone": (
        situation(
            info(instance()),
            server=messages.ServerInfo("starting", None),
            daemon_events=[event(kinds.SERVER_EXITED, "killed by signal 11")],
        ),
        "m is ready, but tritonserver is starting: killed by signal 11",
        "tritonserver",
        "pytriton-daemon logs",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_broken_setup_is_diagnosed(name: str) -> None:
    what, verdict, about, advice = TABLE[name]
    said, findings = explain(what)
    assert verdict in said
    assert [one.about for one in findings[:1]] == ([about] if about else [])
    if advice:
        assert advice in findings[0].advice


def test_old_events_do_not_explain_the_present() -> None:
    old = [
        event(kind, "x", RECENT_S + 1) for kind in (kinds.HANG, kinds.POISON, kinds.LIMIT_EXCEEDED)
    ]
    assert explain(situation(info(instance()), *old)) == ("m is ready: nothing is wrong", [])


def test_a_later_successful_change_hides_a_failed_one() -> None:
    events = [event(kinds.SCALE_FAILED, "no"), event(kinds.SCALED)]
    assert explain(situation(info(instance()), *events))[1] == []


def test_a_failed_replacement_is_reported_although_the_model_was_scaled_since() -> None:
    events = [event(kinds.REGISTERED), event(kinds.REPLACE_FAILED, "no"), event(kinds.SCALED)]
    findings = explain(situation(info(instance()), *events))[1]
    assert [one.about for one in findings] == ["change"]
    replaced = [*events, event(kinds.REPLACED)]
    assert explain(situation(info(instance()), *replaced))[1] == []


def test_the_most_severe_comes_first() -> None:
    broken = info(instance(), instance(1, "failed", last_exit="x"), state="ready")
    down = messages.ServerInfo("starting", None)
    findings = explain(situation(broken, event(kinds.CRASHED, "y"), server=down))[1]
    assert [one.severity for one in findings] == ["down", "degraded", "notice"]


FAILING: dict[str, tuple[Outcomes, str, str, str]] = {
    "all": (
        Outcomes(300, 118, {"callable": 118, "input": 0}, NOW - 2, "ValueError"),
        "degraded",
        "all 118 requests of the last 5 minutes failed: the callable raised; the last one 2 s ago: ValueError",
        "pytriton-daemon logs m",
    ),
    "some begun before": (
        Outcomes(300, 10, {"callable": 11}),
        "degraded",
        "all 11 requests of the last 5 minutes failed: the callable raised",
        "",
    ),
    "one": (
        Outcomes(12.4, 1, {"result": 1}, NOW, "TypeError"),
        "degraded",
        "the only request of the last 12 s failed: the callable's results were invalid; the last one 0 s ago: TypeError",
        "declared outputs",
    ),
    "half": (
        Outcomes(60, 100, {"callable": 30, "lost": 20}),
        "degraded",
        "50 of 100 requests (50%) of the last 60 s failed: 30 the callable raised, 20 their worker exited",
        "",
    ),
    "few": (
        Outcomes(300, 100, {"input": 1}, NOW - 100),
        "notice",
        "1 of 100 requests (1%) of the last 5 minutes failed: inputs were invalid; the last one 100 s ago",
        "match the declared ones",
    ),
    "a package is missing": (
        Outcomes(300, 5, {"callable": 5}, NOW, "ModuleNotFoundError"),
        "degraded",
        "all 5 requests of the last 5 minutes failed: the callable raised; the last one 0 s ago: ModuleNotFoundError",
        "A package is missing",
    ),
    "the last one known is older": (
        Outcomes(60, 5, {"hung": 5}, NOW - 61, "ValueError"),
        "degraded",
        "all 5 requests of the last 60 s failed: their worker hung",
        "",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_failed_requests_are_reported(name: str) -> None:
    outcomes, severity, text, advice = FAILING[name]
    (found,) = explain(situation(info(instance()), outcomes=outcomes))[1]
    assert (found.severity, found.about, found.text) == (severity, "failing", text)
    assert advice in found.advice


@pytest.mark.parametrize(
    "outcomes",
    [Outcomes(300), Outcomes(300, 50, {"callable": 0}), Outcomes(300, 1000, {"callable": 9})],
)
def test_rare_failures_are_not_reported(outcomes: Any) -> None:
    assert explain(situation(info(instance()), outcomes=outcomes))[1] == []


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("OSError: [Errno 28] No space left on device: '/a'", "Free space on the disk"),
        ("m needs 2 GiB of memory_budget, and 1 GiB was free", "suspend_any_idle_model = true"),
        ("RuntimeError: CUDA error: invalid device ordinal", "CUDA_VISIBLE_DEVICES"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "smaller batches"),
        ("RuntimeError: CUDA error: out of memory", "smaller batches"),
        ("did not load its callable within 5 s (load_timeout_s)", "register with a higher value"),
        ("did not start within 30 s", "check the interpreter"),
        ("it used 900 bytes of memory, more than the limit of 800 (limits)", "raise the limit"),
        ("ModuleNotFoundError: No module named 'torch'", "install it there"),
        ("model m is already registered", "replace=True"),
        ("FileNotFoundError: 'weights.bin'", "(cwd=)"),
        ("[Errno 13] Permission denied: 'weights.bin'", "lacks permission to read or execute"),
        ("worker w1 (pid 3) was ended by signal 11 (SIGSEGV)", "in the log"),
    ],
)
def test_known_failures_get_advice(reason: str, advice: str) -> None:
    assert advice in hint(reason)


def test_the_first_matching_pattern_wins() -> None:
    assert hint("No space left on device: cannot write CUDA's cache").startswith("Free space")


def test_unknown_failures_get_no_advice() -> None:
    assert hint("the callable said something odd") == ""


def test_a_worker_without_descriptors_is_no_leak() -> None:
    text = "it cannot take another lane: [Errno 12] Cannot allocate memory"
    due = [event(kinds.RECYCLE_DUE, text, ago_s, code="no_lane") for ago_s in (900, 20)]
    verdict, findings = explain(situation(info(instance()), *due))
    assert (verdict, findings) == ("m is ready: nothing is wrong", [])
