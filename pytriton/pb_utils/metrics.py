"""`MetricFamily` and `Metric`: custom metrics, which tritonserver's /metrics endpoint exposes.

The value of a metric is stored in this process, and its changes are sent to tritonserver. Therefore `value()` returns
what this process has counted, while /metrics shows the sum over all instances of the model.

As in Triton's python backend, a metric is deleted together with the last `MetricFamily` that created it. A metric of
that name created later starts at zero. The exit of a worker deletes nothing: its successor continues to count.
"""

from __future__ import annotations

import enum
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable, Optional

from pytriton._protocol.lanes.lane_messages import (
    DELETE,
    MAX_BUCKETS,
    MAX_LABELS,
    MAX_METRICS,
    TRITONS_METRICS,
    MetricUpdate,
)
from pytriton.pb_utils import host
from pytriton.pb_utils.errors import TritonModelException

__all__ = ["Metric", "MetricFamily"]

#: Names that Prometheus allows.
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class _MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """Metrics with the same name and different labels.

    Keep a reference to the family as long as you use its metrics: they are deleted with it, as in Triton's python
    backend. Several objects with the same name represent the same family, with the description of the first one.
    /metrics does not show families without metrics.

    Raises:
        TypeError: an argument is missing, or has the wrong type.
        TritonModelException: the name is invalid in Prometheus, belongs to a family of another kind, or is reserved
            for tritonserver's metrics (`nv_*`).

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
        if not isinstance(name, str) or not isinstance(description, str):
            raise TypeError(
                f"name and description must be str, got {name!r:.80}, {description!r:.80}"
            )
        if not isinstance(kind, _MetricKind):
            raise TypeError("kind must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        if not _NAME.fullmatch(name) or name.startswith("__"):
            raise _refused("MetricFamily", f"Invalid metric name {name!r:.80}")
        if name.startswith(TRITONS_METRICS):
            raise _refused(
                "MetricFamily",
                f"Invalid metric name {name!r:.80}: names that begin with {TRITONS_METRICS} are reserved for tritonserver",
            )
        if not _can_be_stored(description):
            raise _refused("MetricFamily", f"Invalid description {description!r:.80}")
        # Families are kept forever, as in tritonserver.
        first = _families.setdefault(name, (kind, description))
        if first[0] is not kind:
            raise _refused(
                "MetricFamily",
                f"Family name already exists with different type: {name} is a {first[0].name}",
            )
        self._name = name
        self._kind, self._description = first
        self._owner = object()
        self._made: dict[
            _Key, Callable[[], None]
        ] = {}  #: labels of each metric -> function that releases it
        weakref.finalize(self, _end_all, self._made).atexit = False

    def Metric(
        self, labels: Optional[Mapping[str, str]] = None, buckets: Optional[Sequence[float]] = None
    ) -> Metric:
        """Create a metric of this family.

        Args:
            labels: label name -> value, both str
            buckets: list of strictly increasing upper bounds; required for histograms, not allowed for other kinds

        Raises:
            TritonModelException: labels or buckets are invalid, or this process already has 4096 metrics
        """
        about: dict[str, Any] = {
            "family": self._name,
            "description": self._description,
            "kind": self._kind.name,
            # Sort the labels, so that proxies recognize equal metrics.
            "labels": dict(sorted(_labels(labels, self._kind).items())),
            "buckets": _buckets(buckets, self._kind),
        }
        key = (self._name, tuple(about["labels"].items()))
        if key not in _numbers and len(_numbers) >= MAX_METRICS:
            raise _refused(
                "Metric",
                f"this process already has {MAX_METRICS} metrics, the maximum. Use labels with fewer values",
            )
        number = _join(key, self._owner)
        if key not in self._made:
            deletion = MetricUpdate(**about, change=DELETE)
            self._made[key] = partial(_end, key, number, self._owner, deletion)
        return Metric(self, self._kind, about, number)


def _labels(given: Any, kind: _MetricKind) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    if len(given) > MAX_LABELS:
        raise _refused(
            "Metric", f"{len(given)} labels are too many; at most {MAX_LABELS} are allowed"
        )
    for name, value in given.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name.startswith("__"):
            raise _refused("Metric", f"Invalid label name {name!r:.80}")
        if name == "le" and kind is _MetricKind.HISTOGRAM:
            raise _refused("Metric", "Invalid label name 'le': reserved for a histogram's buckets")
        if not isinstance(value, str) or not _can_be_stored(value):
            raise _refused(
                "Metric", f"Invalid value of label {name}: {value!r:.80} is not a string"
            )
    return dict(given)


def _buckets(given: Any, kind: _MetricKind) -> Optional[list[float]]:
    if kind is not _MetricKind.HISTOGRAM:
        if given is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return None
    if given is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    if not isinstance(given, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if len(given) > MAX_BUCKETS:
        raise _refused(
            "Metric", f"{len(given)} buckets are too many; at most {MAX_BUCKETS} are allowed"
        )
    bounds = []
    for bound in given:
        if isinstance(bound, (str, bytes)) or not hasattr(bound, "__float__"):
            raise _refused("Metric", f"Bucket Boundaries must be numbers, got {bound!r:.80}")
        bounds.append(float(bound))
    if any(lower >= upper for lower, upper in zip(bounds, bounds[1:])):
        raise _refused("Metric", f"Bucket Boundaries must be strictly sorted, got {bounds!r:.200}")
    return bounds


def _can_be_stored(text: str) -> bool:
    """Return whether tritonserver can store a string: it must be valid UTF-8 without zero bytes."""
    return "\0" not in text and text.encode("utf-8", "ignore").decode() == text


def _refused(what: str, why: str) -> TritonModelException:
    return TritonModelException(f"Error when creating {what}: {why}")


class _Number:
    """The value that all metrics with the same name and labels share. It exists as long as it has owners."""

    def __init__(self) -> None:
        self.value = 0.0
        self.lock = threading.Lock()
        self.owners: set[object] = set()  #: families


#: A family's name, and the labels in order.
_Key = tuple[str, tuple[tuple[str, str], ...]]
_numbers: dict[_Key, _Number] = {}
#: Kind and description of every family that this process has created.
_families: dict[str, tuple[_MetricKind, str]] = {}


def _join(key: _Key, owner: object) -> _Number:
    """Return the value of a metric, and add an owner to it.

    Neither this function nor `_end` takes a lock, because the garbage collector may interrupt any thread to finalize
    a family.
    """
    while True:
        number = _numbers.setdefault(key, _Number())
        number.owners.add(owner)
        if _numbers.get(key) is number:
            return number
        number.owners.discard(owner)  # the last owner has just been removed


def _end(key: _Key, number: _Number, owner: object, deletion: MetricUpdate) -> None:
    """Remove an owner of a metric. If it was the last owner, delete the metric."""
    number.owners.discard(owner)
    if number.owners or _numbers.get(key) is not number:
        return
    del _numbers[key]
    if number.owners:  # another family has become an owner in the meantime
        _numbers.setdefault(key, number)
    else:
        host.current().delete_metric(deletion)


def _end_all(made: dict[_Key, Callable[[], None]]) -> None:
    for end in list(made.values()):
        end()


class Metric:
    """A counter, gauge or histogram, created by `MetricFamily.Metric`.

    Thread-safe. Usable as long as its family exists.
    """

    def __init__(
        self, family: MetricFamily, kind: _MetricKind, about: dict[str, Any], number: _Number
    ) -> None:
        self._family = weakref.ref(family)
        self._kind = kind
        self._about = about
        self._number = number
        host.current().metric(MetricUpdate(**about))

    def increment(self, value: float) -> None:
        """Add to a counter or gauge.

        Raises:
            TritonModelException: histograms cannot be incremented, and counters cannot decrease.
        """
        self._refuse("increment", _MetricKind.HISTOGRAM)
        value = _as_number(value)
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
            TritonModelException: only histograms have observations.
        """
        self._refuse("observe", _MetricKind.COUNTER, _MetricKind.GAUGE)
        self._change("observe", value)

    def value(self) -> float:
        """Return the value that this process has counted.

        Raises:
            TritonModelException: the metric is a histogram, which has no single value.
        """
        self._refuse("get", _MetricKind.HISTOGRAM)
        return self._number.value

    def _change(self, change: str, value: float) -> None:
        value = _as_number(value)
        number = self._number
        with number.lock:
            if change == "increment":
                number.value += value
            elif change == "set":
                number.value = value
            host.current().metric(MetricUpdate(**self._about, change=change, value=value))

    def _refuse(self, what: str, *kinds: _MetricKind) -> None:
        failed = f"Failed to {what} metric value: "
        if self._family() is None:
            raise TritonModelException(
                f"{failed}Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
                "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        if self._kind in kinds:
            operation = "Value" if what == "get" else what.capitalize()
            raise TritonModelException(
                f"{failed}TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation} "
                f"(metric {self._about['family']})"
            )


def _as_number(value: Any) -> float:
    """Convert a number to float.

    Raises:
        TypeError: the value is not a number.
    """
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"the value of a metric must be a number, got {value!r:.80}")
    return float(value)
