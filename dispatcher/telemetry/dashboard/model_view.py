"""Content of the dashboard as JSON: an overview of all models, and the details of one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from pytriton._protocol.lanes.histograms import BOUNDS_S, SIZE_BOUNDS
from pytriton._protocol.messages.client import (
    Event,
    Explanation,
    ModelInfo,
    RequestEntry,
    Requests,
    Status,
)
from pytriton._protocol.messages.metrics import Histogram, MetricsSnapshot
from pytriton._protocol.rates import headline, total
from pytriton.dispatcher.telemetry.dashboard.examples import (
    example_request,
    example_values,
    inputs,
    is_decoupled,
    snippets,
)
from pytriton.dispatcher.telemetry.dashboard.examples import outputs as declared_outputs
from pytriton.dispatcher.telemetry.dashboard.history import History
from pytriton.dispatcher.telemetry.events.kinds import KINDS

_HIDDEN = "shown with the access token"
#: Maximum number of log records to show.
LOG_LINES = 200
_LOG_SIZE = 1 << 18
#: Maximum number of bars in a histogram. If there are more buckets, neighbours are merged.
_BARS = 24


def overview(history: History, *, private: bool) -> dict[str, Any]:
    """Return a summary of the daemon, and a row for each model and each instance.

    Args:
        history: recorded snapshots
        private: whether to include problems and the reasons of exits, which may quote exceptions of a callable
    """
    snapshot = history.last
    if snapshot is None:
        return {
            "headline": "starting",
            "problems": [],
            "is_private": not private,
            "at": time.time(),
        }
    requests_s, failures_s = total(history.rows)
    return {
        "at": snapshot.at,
        "headline": headline(snapshot.daemon, snapshot.at),
        "is_private": not private,
        "problems": snapshot.daemon.problems if private else _without_errors(snapshot),
        "requests_s": requests_s,
        "failures_s": failures_s,
        "total": history.total.as_dict(),
        "rows": [
            {
                **asdict(row),
                "last_exit": row.last_exit if private or not row.last_exit else _HIDDEN,
                "points": [] if row.instance else history.spark(row.model),
            }
            for row in history.rows
        ],
    }


def _without_errors(snapshot: MetricsSnapshot) -> list[str]:
    """Return what each problem is about (a model or the daemon), without the text of the problem."""
    names = {f"model {one.name}" for one in snapshot.models}
    starts = (problem.partition(": ")[0] for problem in snapshot.daemon.problems)
    found = (f"{start}: " if start in names else "the daemon: " for start in starts)
    return [f"{what}{_HIDDEN}" for what in dict.fromkeys(found)]


@dataclass(frozen=True)
class Private:
    """Details of a model that only the daemon's owner may see.

    Args:
        log: newest records of its log, as JSON
        requests: samples of its requests; None if there are none
        explanation: diagnosis of the model, with its newest events; None if there is none
    """

    log: Sequence[str] = ()
    requests: Requests | None = None
    explanation: Explanation | None = None


def model_view(
    name: str, status: Status, history: History, private: Private | None
) -> dict[str, Any] | None:
    """Return the details of a model; None if it does not exist.

    Args:
        name: name of the model
        status: status of the daemon
        history: recorded snapshots
        private: private details; None if the viewer may see neither them nor errors nor the configuration
    """
    info = next((one for one in status.models if one.name == name), None)
    if info is None:
        return None
    return {
        "name": name,
        "state": info.state,
        "versions": info.versions or [info.version],
        "is_private": private is None,
        "error": info.error if private is not None else "",
        "python": info.python,
        "registered_at": info.registered_at,
        "served_by": info.served_by,
        "config": info.config if private is not None else {},
        "decoupled": is_decoupled(info.config),
        "inputs": [asdict(one) for one in inputs(info.config)],
        "outputs": [asdict(one) for one in declared_outputs(info.config)],
        "request": example_values(info.config)
        if is_decoupled(info.config)
        else example_request(info.config),
        "snippets": snippets(name, info.config, status.server.http_url),
        "series": history.series(name).as_dict(),
        "histograms": _histograms(name, history),
        **_private_view(info, private or Private()),
        "exits": _exits(info) if private is not None else [],
    }


def _private_view(info: ModelInfo, private: Private) -> dict[str, Any]:
    requests, explanation = private.requests, private.explanation
    return {
        "verdict": explanation.verdict if explanation else "",
        "findings": [msgspec.structs.asdict(one) for one in explanation.findings]
        if explanation
        else [],
        "events": [event_view(one) for one in reversed(explanation.events)] if explanation else [],
        "slowest": _entries(requests.slowest if requests else ()),
        "failed": _entries(requests.failed if requests else ()),
        "errors": _errors(private.log),
        "log": [_record(line) for line in _recent(private.log)],
    }


def event_view(event: Event) -> dict[str, Any]:
    """Return an event in the form that the dashboard lists."""
    kind = KINDS.get(event.kind)
    numbers = [
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:,.3f}"
        for name, value in event.numbers.items()
    ]
    return {
        "at": event.at,
        "model": event.model,
        "instance": event.instance,
        "kind": event.kind,
        "level": kind.level if kind else "info",
        "says": kind.says if kind else event.kind,
        "who": event.who,
        "reason": event.reason,
        "numbers": ", ".join(numbers),
    }


def _histograms(name: str, history: History) -> dict[str, list[tuple[float, int]]]:
    """Return histograms, in the form of `bars`, of a model's call durations, waiting times and rows per call."""
    snapshot = history.last
    found = next((one for one in (snapshot.models if snapshot else []) if one.name == name), None)
    if found is None:
        return {}
    return {
        "call_s": bars(found.work.call_s, BOUNDS_S),
        "wait_s": bars(found.work.wait_s, BOUNDS_S),
        "rows": bars(found.work.rows_per_call, SIZE_BOUNDS),
    }


def bars(histogram: Histogram, bounds: Sequence[float]) -> list[tuple[float, int]]:
    """Return the bars of a histogram as (upper bound, count), from the first to the last non-empty bucket."""
    filled = [number for number, count in enumerate(histogram.buckets) if count]
    if not filled:
        return []
    chosen = histogram.buckets[filled[0] : filled[-1] + 1]
    together = -(-len(chosen) // _BARS)
    found = []
    for start in range(0, len(chosen), together):
        last = min(filled[0] + start + together - 1, len(bounds) - 1)
        found.append((float(bounds[last]), sum(chosen[start : start + together])))
    return found


def _entries(requests: Sequence[RequestEntry]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(one) for one in requests]


def _recent(log: Sequence[str]) -> list[str]:
    """Return as many of the newest lines as fit on the page."""
    size, first = 0, len(log)
    while first > 0 and size + len(log[first - 1]) <= _LOG_SIZE:
        first -= 1
        size += len(log[first])
    return list(log[first:])


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"event": line}


def _errors(log: Sequence[str]) -> list[dict[str, Any]]:
    """Return the most recent records that are errors or have a traceback, newest first."""
    records = [_record(line) for line in _recent(log)]
    wrong = [
        one for one in records if one.get("level") in ("error", "critical") or one.get("exception")
    ]
    return wrong[::-1][:20]


def _exits(info: ModelInfo) -> list[dict[str, Any]]:
    return [
        {"instance": one.index, "last_exit": one.last_exit, "restarts": one.restarts}
        for one in info.instances
        if one.last_exit
    ]
