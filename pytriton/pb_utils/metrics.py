"""`MetricFamily` and `Metric`: custom metrics, which appear on tritonserver's own /metrics.

A metric's value is kept here; what changes it is passed on. So `value()` is what this process has
counted, while /metrics shows the sum over all instances of the model.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from pytriton.ipc.lane_messages import MetricUpdate
from pytriton.pb_utils import host
from pytriton.pb_utils.errors import TritonModelException

__all__ = ["Metric", "MetricFamily"]


class _MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """Metrics of one name, which differ in their labels.

    Example:
        >>> family = MetricFamily("requests_seen", "Requests", MetricFamily.COUNTER)
        >>> metric = family.Metric(labels={"kind": "big"})
        >>> metric.increment(2)
        >>> metric.value()
        2.0
    """

    COUNTER = _MetricKind.COUNTER
    GAUGE = _MetricKind.GAUGE
    HISTOGRAM = _MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: _MetricKind) -> None:
        if not isinstance(kind, _MetricKind):
            raise TypeError("kind has to be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        self._name = name
        self._description = description
        self._kind = kind

    def Metric(
        self, labels: Optional[Mapping[str, str]] = None, buckets: Optional[Sequence[float]] = None
    ) -> Metric:
        """Return a metric of this family.

        Args:
            labels: names and values, both str
            buckets: upper bounds, ascending; of histograms, which need them

        Raises:
            TritonModelException: labels or buckets are unusable
        """
        return Metric(self._name, self._description, self._kind, labels, buckets)


class _Number:
    """What metrics of the same name and labels share, as in tritonserver."""

    def __init__(self) -> None:
        self.value = 0.0
        self.lock = threading.Lock()


_numbers: dict[tuple[str, tuple[tuple[str, str], ...]], _Number] = {}


class Metric:
    """One number, made by `MetricFamily.Metric`. For any number of threads."""

    def __init__(
        self,
        name: str,
        description: str,
        kind: _MetricKind,
        labels: Optional[Mapping[str, str]],
        buckets: Optional[Sequence[float]],
    ) -> None:
        given = dict(labels or {})
        if not all(isinstance(part, str) for pair in given.items() for part in pair):
            raise TritonModelException(f"labels of a metric are pairs of str, got {given!r:.200}")
        if kind is _MetricKind.HISTOGRAM:
            if not buckets or list(buckets) != sorted(buckets):
                raise TritonModelException(
                    f"a histogram needs buckets, upper bounds in ascending order, got {buckets!r:.200}"
                )
        elif buckets is not None:
            raise TritonModelException(f"buckets are for histograms, this is a {kind.name}")
        self._kind = kind
        self._about: dict[str, Any] = {
            "family": name,
            "description": description,
            "kind": kind.name,
            "labels": given,
            "buckets": None if buckets is None else [float(bound) for bound in buckets],
        }
        self._number = _numbers.setdefault((name, tuple(sorted(given.items()))), _Number())
        host.current().metric(MetricUpdate(**self._about))

    def increment(self, value: float) -> None:
        """Add to a counter or gauge.

        Raises:
            TritonModelException: a histogram cannot, a counter only grows.
        """
        self._refuse("increment", _MetricKind.HISTOGRAM)
        if self._kind is _MetricKind.COUNTER and value < 0:
            raise TritonModelException(
                f"counter {self._about['family']} can only be incremented by non-negative values, got {value}"
            )
        self._change("increment", value)

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises:
            TritonModelException: only gauges can be set.
        """
        self._refuse("set", _MetricKind.COUNTER, _MetricKind.HISTOGRAM)
        self._change("set", value)

    def observe(self, value: float) -> None:
        """Add an observation to a histogram.

        Raises:
            TritonModelException: only histograms observe.
        """
        self._refuse("observe", _MetricKind.COUNTER, _MetricKind.GAUGE)
        self._change("observe", value)

    def value(self) -> float:
        """Return the number as this process has counted it.

        Raises:
            TritonModelException: a histogram is not one number.
        """
        self._refuse("value", _MetricKind.HISTOGRAM)
        return self._number.value

    def _change(self, change: str, value: float) -> None:
        value = float(value)
        number = self._number
        with number.lock:
            if change == "increment":
                number.value += value
            elif change == "set":
                number.value = value
            host.current().metric(MetricUpdate(**self._about, change=change, value=value))

    def _refuse(self, what: str, *kinds: _MetricKind) -> None:
        if self._kind in kinds:
            raise TritonModelException(
                f"metric {self._about['family']}: a {self._kind.name} does not support {what}()"
            )
