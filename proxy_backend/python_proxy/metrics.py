"""Exports a model's custom metrics, which its worker sends, on tritonserver's /metrics.

The metrics belong to the stub and outlive a worker, so a counter keeps its value when another worker takes over.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton._protocol.lanes.lane_messages import (
    DELETE,
    MAX_METRICS,
    TRITONS_METRICS,
    Metrics,
    MetricUpdate,
)

_KINDS = ("COUNTER", "GAUGE", "HISTOGRAM")
_CHANGES = ("increment", "set", "observe")


class CustomMetrics:
    """The metrics that one proxy has created for its model."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}

    def apply(self, message: Metrics) -> None:
        """Apply a message's changes to metrics. Log the changes that Triton rejects."""
        for update in message.updates:
            try:
                self._apply(update)
            except Exception as error:  # noqa: PERF203, an invalid metric does not affect the others
                pb_utils.Logger.log_error(f"custom metric {update.family}: {error}")

    def _apply(self, update: MetricUpdate) -> None:
        if update.change == DELETE:
            self._delete(update)
            return
        metric = self._metric(update)
        if update.change in _CHANGES:
            getattr(metric, update.change)(update.value)

    def _metric(self, update: MetricUpdate) -> Any:
        key = _key(update)
        if key not in self._metrics:
            if len(self._metrics) >= MAX_METRICS:
                raise ValueError(f"this instance has {MAX_METRICS} metrics, which is the maximum")
            labels = update.labels or None
            family = self._family(update)
            self._metrics[key] = (
                family.Metric(labels=labels)
                if update.buckets is None
                else family.Metric(labels=labels, buckets=update.buckets)
            )
        return self._metrics[key]

    def _delete(self, update: MetricUpdate) -> None:
        """Delete a metric, and its family if it was the last metric of the family."""
        self._metrics.pop(_key(update), None)
        if all(family != update.family for family, _ in self._metrics):
            self._families.pop(update.family, None)

    def _family(self, update: MetricUpdate) -> Any:
        if update.family not in self._families:
            if update.kind not in _KINDS:
                raise ValueError(f"{update.kind!r:.40} is not a metric kind")
            if update.family.startswith(TRITONS_METRICS):
                raise ValueError(
                    f"names that begin with {TRITONS_METRICS} are reserved for tritonserver"
                )
            self._families[update.family] = pb_utils.MetricFamily(
                name=update.family,
                description=update.description,
                kind=getattr(pb_utils.MetricFamily, update.kind),
            )
        return self._families[update.family]


def _key(update: MetricUpdate) -> tuple[str, tuple[tuple[str, str], ...]]:
    return update.family, tuple(sorted(update.labels.items()))
