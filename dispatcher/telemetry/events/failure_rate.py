"""The share of a model's requests that fail, and why the last one did: by its type alone, which holds no payload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Optional

from pytriton._protocol.messages.events import Finding
from pytriton.dispatcher.telemetry.events.hints import hint

#: From which share on a model does as good as not work, and up to which one failures are no news.
_MOSTLY, _RARELY = 0.5, 0.01


@dataclass(frozen=True)
class Outcomes:
    """The requests of a model in the recent past.

    Attributes:
        seconds: how long that is.
        requests: that were begun.
        failed: of them, by kind: those of `gauge.FAILURES`, "lost", "hung".
        last_at: when the last one failed, seconds since the epoch; None: nobody knows.
        last_error: the type of the exception that it failed by; "" where none did it, or nobody knows.
    """

    seconds: float
    requests: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    last_at: Optional[float] = None
    last_error: str = ""


def failing(name: str, outcomes: Outcomes, now: float) -> Iterator[Finding]:
    """Tell of a model many of whose requests fail; `now`: seconds since the epoch."""
    failed = sum(outcomes.failed.values())
    requests = max(outcomes.requests, failed)  # some were begun before
    if not failed or failed < _RARELY * requests:
        return
    ago_s = None if outcomes.last_at is None else max(0.0, now - outcomes.last_at)
    text = f"{_share(failed, requests)} of the last {_span(outcomes.seconds)} failed: {_kinds(outcomes.failed)}"
    if ago_s is not None and ago_s <= outcomes.seconds:
        error = f": {outcomes.last_error}" if outcomes.last_error else ""
        text += f"; the last one {ago_s:.0f} s ago{error}"
    severity = "degraded" if failed >= _MOSTLY * requests else "notice"
    main = max(outcomes.failed, key=lambda kind: outcomes.failed[kind])
    advice = f"{hint(outcomes.last_error)} {_ADVICE.get(main, _LOG).format(name)}".strip()
    yield Finding(severity, "failing", text, advice)


_LOG = "Its words: pytriton-daemon logs {0}."
#: What to do about each kind of failure.
_ADVICE = {
    "callable": "Tracebacks: pytriton-daemon logs {0}; the last failed requests: pytriton-daemon slowest {0}.",
    "input": "Clients send what does not fit the declared inputs; what that was: pytriton-daemon logs {0}.",
    "result": "The callable returns what does not fit the declared outputs; what that was: pytriton-daemon logs {0}.",
    "timeout": "What takes so long: pytriton-daemon profile {0}; or register with a higher execution_timeout_s.",
}


def _share(failed: int, requests: int) -> str:
    if failed == requests:
        return "the only request" if requests == 1 else f"all {requests} requests"
    return f"{failed} of {requests} requests ({failed / requests:.0%})"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"


def _kinds(failed: Mapping[str, int]) -> str:
    found = sorted(
        ((count, kind) for kind, count in failed.items() if count), key=lambda one: -one[0]
    )
    if len(found) == 1:
        return _SAYS[found[0][1]]
    return ", ".join(f"{count} {_SAYS[kind]}" for count, kind in found)


#: What each kind of failure means.
_SAYS = {
    "callable": "the callable raised",
    "input": "inputs were wrong",
    "result": "the callable's results were wrong",
    "timeout": "execution_timeout_s was over",
    "unrecoverable": "the callable was unrecoverable",
    "lost": "their worker ended",
    "hung": "their worker hung",
}
