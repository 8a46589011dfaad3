"""The history of the daemon and of each model in the last half hour, for charts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from pytriton._protocol.messages.metrics import MetricsSnapshot
from pytriton._protocol.rates import Row, rows

#: Points per chart: one every five seconds, half an hour in total.
POINTS = 360
#: Number of points of the sparkline in a table row.
SPARK_POINTS = 60
#: Maximum number of models with charts.
MAX_MODELS = 1000
#: Names of the series, in the order of the values of a point.
SERIES = ("requests_s", "failures_s", "p50", "p99", "waiting", "resident")


class Series:
    """The newest points of each series in `SERIES`. They are stored compactly, since there may be a thousand models."""

    def __init__(self) -> None:
        self._times = array("d")
        self._values = array("f")

    def add(self, at: float, values: Sequence[Optional[float]]) -> None:
        """Append a point with a value for each series; None is a gap."""
        self._times.append(at)
        self._values.extend(math.nan if value is None else value for value in values)
        del self._times[:-POINTS], self._values[: -POINTS * len(SERIES)]

    def column(self, name: str) -> list[float | None]:
        """Return the points of one series, oldest first."""
        column = self._values[SERIES.index(name) :: len(SERIES)]
        return [None if math.isnan(value) else value for value in column]

    def as_dict(self) -> dict[str, Any]:
        """Return all series by name, and the times of their points as `at`, in seconds since the epoch."""
        return {"at": list(self._times), **{name: self.column(name) for name in SERIES}}


class History:
    """The activity of all models between successive metrics snapshots, stored as points for charts.

    Attributes:
        last: the newest snapshot
        rows: activity between the last two snapshots, with a row for each model and each instance
        total: series of all models together; `resident` includes the daemon and tritonserver
    """

    def __init__(self) -> None:
        self.total = Series()
        self.last: MetricsSnapshot | None = None
        self.rows: list[Row] = []
        self._models: dict[str, Series] = {}

    def add(self, snapshot: MetricsSnapshot) -> None:
        """Add a snapshot, and drop the series of models that no longer exist."""
        self.rows = rows(self.last, snapshot)
        self.last = snapshot
        present = {one.name for one in snapshot.models}
        for name in self._models.keys() - present:
            del self._models[name]
        models = [row for row in self.rows if not row.instance]
        for row in models:
            if row.model not in self._models and len(self._models) >= MAX_MODELS:
                continue
            self._models.setdefault(row.model, Series()).add(snapshot.at, _point(row))
        daemon = snapshot.daemon
        processes = (row.resident for row in models)
        self.total.add(
            snapshot.at,
            (
                sum(row.rates.requests_s for row in models),
                sum(row.rates.failures_s for row in models),
                None,
                None,
                _sum(row.waiting for row in models),
                _sum((*processes, daemon.resident, daemon.server_resident)),
            ),
        )

    def series(self, model: str) -> Series:
        """Return the series of a model; empty ones if it is unknown."""
        return self._models.get(model) or Series()

    def spark(self, model: str) -> list[float | None]:
        """Return the points of a model's sparkline: requests per second in the last minutes, oldest first."""
        return self.series(model).column("requests_s")[-SPARK_POINTS:]


def _point(row: Row) -> tuple[Optional[float], ...]:
    done = row.rates
    return done.requests_s, done.failures_s, done.p50, done.p99, row.waiting, row.resident


def _sum(values: Iterable[Optional[int]]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
