"""The share of a model's requests that fail, and why the last one did: only its exception type, which reveals no
payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Optional

from pytriton._protocol.messages.events import Finding
from pytriton.dispatcher.telemetry.events.hints import hint

#: Share of failures from which a model practically does not work, and below which failures are not reported.
_MOSTLY, _RARELY = 0.5, 0.01


@dataclass(frozen=True)
class Outcomes:
    """The recent requests of a model.

    Attributes:
        seconds: length of the period.
        requests: number of requests started.
        failed: number of failed requests by kind: those of `stats_page.FAILURES`, "lost", "hung".
        last_at: time of the last failure, in seconds since the epoch; None if unknown.
        last_error: exception type of the last failure; "" if there was none or it is unknown.
    """

    seconds: float
    requests: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    last_at: Optional[float] = None
    last_error: str = ""


def failing(name: str, outcomes: Outcomes, now: float) -> Iterator[Finding]:
    """Yield a finding if many requests of a model fail; `now`: seconds since the epoch."""
    failed = sum(outcomes.failed.values())
    requests = max(outcomes.requests, failed)  # some started before the period
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


_LOG = "See: pytriton-daemon logs {0}."
#: Advice for each kind of failure.
_ADVICE = {
    "callable": "Tracebacks: pytriton-daemon logs {0}; the last failed requests: pytriton-daemon requests {0}.",
    "input": "Clients send inputs that do not match the declared ones; details: pytriton-daemon logs {0}.",
    "result": "The callable returns results that do not match the declared outputs; details: pytriton-daemon logs {0}.",
    "timeout": "Profile the model: pytriton-daemon profile {0}; or register with a higher execution_timeout_s.",
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


#: Descriptions of the kinds of failures.
_SAYS = {
    "callable": "the callable raised",
    "input": "inputs were invalid",
    "result": "the callable's results were invalid",
    "timeout": "execution_timeout_s was exceeded",
    "unrecoverable": "the callable reported an unrecoverable error",
    "lost": "their worker exited",
    "hung": "their worker hung",
}
