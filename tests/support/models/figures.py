"""Metrics snapshots, as a daemon would report them."""

from __future__ import annotations

from typing import Any

from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton._protocol.messages.metrics import (
    DaemonMetrics,
    Histogram,
    InstanceMetrics,
    MetricsSnapshot,
    ModelMetrics,
    QueueMetrics,
    Work,
)


def histogram(**counts: int) -> Histogram:
    """Return a histogram with this many observations around each time: `ms5=3` is three that took 5 ms."""
    buckets = [0] * (len(BOUNDS_S) + 1)
    total = 0.0
    for name, count in counts.items():
        seconds = int(name[2:]) / 1e3
        buckets[next(i for i, bound in enumerate(BOUNDS_S) if bound >= seconds)] += count
        total += seconds * count
    return Histogram(total, buckets)


def work(calls: int, ms: int = 5, *, rows: int = 1, failed: int = 0) -> Work:
    """Return the counters that this many calls of one duration leave."""
    return Work(
        calls=calls,
        requests=calls,
        rows=calls * rows,
        busy_s=calls * ms / 1e3,
        failed={"error": failed} if failed else {},
        call_s=histogram(**{f"ms{ms}": calls}),
        wait_s=histogram(ms1=calls),
    )


def model(name: str, done: Work, *, state: str = "ready", **more: Any) -> ModelMetrics:
    """Return a model whose only instance has done all the work."""
    instance = InstanceMetrics(
        1, 0, state=state, worker=f"{name}-0", pid=4711, resident=412_000_000, work=done,
        exits=more.pop("exits", {}), last_exit=more.pop("last_exit", None),
    )  # fmt: skip
    return ModelMetrics(
        name, 1, state, desired=1, instances=[instance], work=done,
        queue=[QueueMetrics(1, pending=3)], **more,
    )  # fmt: skip


def snapshot(at: float, *models: ModelMetrics, started_at: float = 1000.0) -> MetricsSnapshot:
    """Return the snapshot of a ready daemon."""
    daemon = DaemonMetrics("1.0", "ready", 1, started_at, "ready", 2)
    return MetricsSnapshot(at, daemon, list(models))
