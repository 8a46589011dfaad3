"""The last minutes of each model, for small plots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pytriton.ipc.messages.figures import Figures
from pytriton.ipc.rates import Row, rows

#: Points of a plot: with one each five seconds, five minutes.
POINTS = 60
#: Models that have plots; beyond these, a page with all of them could not be read anyhow.
MOST_MODELS = 1000


class History:
    """Remembers what was done between snapshots, for as many of them as a plot has points."""

    def __init__(self) -> None:
        self._last: Figures | None = None
        self._rows: list[Row] = []
        self._points: dict[str, deque[tuple[float, float | None, float | None]]] = {}

    def add(self, figures: Figures) -> None:
        """Note a snapshot; models that are gone are forgotten."""
        self._rows = rows(self._last, figures)
        self._last = figures
        present = {one.name for one in figures.models}
        for name in self._points.keys() - present:
            del self._points[name]
        for row in self._models():
            if row.model not in self._points and len(self._points) >= MOST_MODELS:
                continue
            points = self._points.setdefault(row.model, deque(maxlen=POINTS))
            points.append((row.rates.requests_s, row.rates.p50, row.rates.p99))

    @property
    def last(self) -> Figures | None:
        """The newest snapshot."""
        return self._last

    @property
    def rows(self) -> list[Row]:
        """The work that was done between the last two snapshots."""
        return self._rows

    def points(self, model: str) -> list[tuple[float, float | None, float | None]]:
        """Return a model's requests per second, p50 and p99 (seconds), oldest first."""
        return list(self._points.get(model, ()))

    def _models(self) -> Iterable[Row]:
        return (row for row in self._rows if not row.instance)
