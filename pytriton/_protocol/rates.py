"""Rates computed from two snapshots of metrics: a row for each model and each of its instances.

`pytriton-daemon top` and the daemon's dashboard show these rows. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from pytriton._protocol.lanes.histograms import quantile
from pytriton._protocol.messages.metrics import (
    DaemonMetrics,
    Histogram,
    InstanceMetrics,
    MetricsSnapshot,
    ModelMetrics,
    Work,
)

_NOTHING = Work()


@dataclass(frozen=True)
class Rates:
    """The work done in an interval. Times are in seconds; None means no data.

    Attributes:
        requests_s: requests per second, including failed ones.
        failures_s: failed requests per second.
        rows: mean number of rows per call.
        wait_p50: median time that batches waited before their call.
        p50, p99: median and 99th percentile of the duration of calls.
        first_p50: median time from the start of a stream's call to its first response.
        busy: share of the interval with a call in progress; for a model, the mean over its instances.
    """

    requests_s: float = 0.0
    failures_s: float = 0.0
    rows: Optional[float] = None
    wait_p50: Optional[float] = None
    p50: Optional[float] = None
    p99: Optional[float] = None
    first_p50: Optional[float] = None
    busy: float = 0.0


@dataclass(frozen=True)
class Row:
    """A table row for a model (`instance` is "") or for one of its instances.

    Attributes:
        instances: for a model: the number of ready instances, and the desired number.
        waiting: number of requests in tritonserver's queue; None if unknown.
        resident: resident memory of the worker, or of all workers of the model, in bytes.
        exits: number of worker exits, except requested ones.
        last_exit: the reason for the last exit; for a model that is not ready, the reason for that.
    """

    model: str
    instance: str
    state: str
    rates: Rates
    instances: tuple[int, int] = (0, 0)
    device: str = ""
    pid: Optional[int] = None
    waiting: Optional[int] = None
    resident: Optional[int] = None
    exits: int = 0
    last_exit: str = ""


#: Reasons for requested exits, which are not a sign of a problem.
_REQUESTED_EXITS = ("recycle", "scale", "replace", "stop")


def rates(before: Work | None, now: Work, seconds: float, instances: int = 1) -> Rates:
    """Return the rates of the work done between two snapshots of the same counters.

    Args:
        before: the earlier snapshot. If it is None or higher than `now`, the counters were reset: all of `now` counts.
        now: the later snapshot.
        seconds: length of the interval; if it is 0, all rates are 0 or None.
        instances: number of instances whose work is added up in `now`.
    """
    if seconds <= 0:
        return Rates()
    if before is None or before.requests > now.requests or before.calls > now.calls:
        before = _NOTHING
    calls = now.calls - before.calls
    failed = sum(now.failed.values()) - sum(before.failed.values())
    call = _between(before.call_s, now.call_s)
    return Rates(
        requests_s=(now.requests - before.requests) / seconds,
        failures_s=max(0, failed) / seconds,
        rows=(now.rows - before.rows) / calls if calls > 0 else None,
        wait_p50=quantile(0.5, _between(before.wait_s, now.wait_s)),
        p50=quantile(0.5, call),
        p99=quantile(0.99, call),
        first_p50=quantile(0.5, _between(before.first_s, now.first_s)),
        busy=max(0.0, now.busy_s - before.busy_s) / seconds / max(1, instances),
    )


def _between(before: Histogram, now: Histogram) -> list[int]:
    """Return the buckets of the observations made between two snapshots of a histogram."""
    old = before.buckets
    return [
        max(0, count - (old[number] if number < len(old) else 0))
        for number, count in enumerate(now.buckets)
    ]


def rows(before: MetricsSnapshot | None, now: MetricsSnapshot) -> list[Row]:
    """Return a row for each model, followed by the rows of its instances.

    Args:
        before: an earlier snapshot. If it is None or of another run of the daemon, the rates cover the daemon's uptime.
        now: the current snapshot.
    """
    same = before is not None and before.daemon.started_at == now.daemon.started_at
    old = {one.name: one for one in before.models} if before is not None and same else {}
    since = before.at if before is not None and same else now.daemon.started_at
    seconds = now.at - since
    return [row for model in now.models for row in _model(old.get(model.name), model, seconds)]


def _model(before: ModelMetrics | None, now: ModelMetrics, seconds: float) -> Iterator[Row]:
    serving = [one for one in now.instances if one.state and not one.standby]
    resident = [one.resident for one in now.instances if one.resident is not None]
    ends = [one for one in now.instances if one.last_exit]
    yield Row(
        model=now.name,
        instance="",
        state=now.state,
        rates=rates(before.work if before else None, now.work, seconds, len(serving)),
        instances=(sum(one.state == "ready" for one in serving), now.desired),
        waiting=sum(one.pending for one in now.queue) if now.queue else None,
        resident=sum(resident) if resident else None,
        exits=sum(map(_unrequested_exits, now.instances)),
        last_exit=now.error or (ends[-1].last_exit or "" if ends else ""),
    )
    old = {_key(one): one.work for one in (before.instances if before else [])}
    for one in now.instances:
        if one.state:
            yield _instance(now, one, rates(old.get(_key(one)), one.work, seconds))


def _key(one: InstanceMetrics) -> tuple[int, int, bool]:
    return one.version, one.instance, one.standby


def _instance(model: ModelMetrics, one: InstanceMetrics, done: Rates) -> Row:
    several = len({other.version for other in model.instances}) > 1
    name = f"{one.instance}" + (f" of v{one.version}" if several else "")
    return Row(
        model=model.name,
        instance=name,
        state="standby" if one.standby and one.state == "ready" and not one.lanes else one.state,
        rates=done,
        device=one.device or "",
        pid=one.pid,
        resident=one.resident,
        exits=_unrequested_exits(one),
        last_exit=one.last_exit or "",
    )


def _unrequested_exits(one: InstanceMetrics) -> int:
    return sum(count for reason, count in one.exits.items() if reason not in _REQUESTED_EXITS)


#: Name of a sort order -> key function for the rows of models.
SORTING = {
    "name": lambda row: row.model.lower(),
    "requests": lambda row: -row.rates.requests_s,
    "p99": lambda row: -(row.rates.p99 or 0.0),
    "busy": lambda row: -row.rates.busy,
    "memory": lambda row: -(row.resident or 0),
    "waiting": lambda row: -(row.waiting or 0),
    "exits": lambda row: -row.exits,
}


def sort_rows(found: Sequence[Row], order: str = "name", containing: str = "") -> list[Row]:
    """Return the sorted rows of the models whose names contain the given text, each followed by the rows of its
    instances.

    Raises:
        KeyError: `order` is not one of `SORTING`.
    """
    wanted = containing.lower()
    models = [one for one in found if not one.instance and wanted in one.model.lower()]
    members: Mapping[str, list[Row]] = {one.model: [] for one in models}
    for one in found:
        if one.instance and one.model in members:
            members[one.model].append(one)
    ordered = sorted(models, key=SORTING[order])
    return [row for model in ordered for row in (model, *members[model.model])]


def total(found: Sequence[Row]) -> tuple[float, float]:
    """Return the total requests and failures per second of all models."""
    models = [one.rates for one in found if not one.instance]
    return sum(one.requests_s for one in models), sum(one.failures_s for one in models)


def headline(daemon: DaemonMetrics, now: float) -> str:
    """Return a one-line summary of the daemon."""
    server = f"tritonserver {daemon.server_state}"
    restarts = daemon.server_restarts.get("exited", 0)
    if restarts:
        server += f", restarted {restarts} times"
    return (
        f"{daemon.state}, pid {daemon.pid}, up {duration(now - daemon.started_at)}; {server}; "
        f"{daemon.version}"
    )


def duration(seconds: float) -> str:
    """Return a duration in at most two units, such as "3 h 12 min"."""
    minutes, left = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def milliseconds(seconds: float | None) -> str:
    """Format a duration in seconds as milliseconds for a table, with at most three decimals; "-" for None."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    if value < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def size(count: int | None) -> str:
    """Format a number of bytes for a table, such as "412 MB"; "-" for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
