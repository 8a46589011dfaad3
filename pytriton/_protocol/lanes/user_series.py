"""Validates the metrics that callables export, and adds them up over all workers of an instance.

A counter, histogram or summary of an instance continues where that of the previous worker ended; a gauge always has
the current worker's value.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytriton._protocol.lanes.user_metrics import (
    MAX_VALUES,
    UserFamily,
    decoded,
    decoded_sample,
)

#: Labels and their values, sorted.
Labels = tuple[tuple[str, str], ...]
#: The values of one series by the suffix after the family's name, and its bound ("le") or quantile, if it has one.
Values = Mapping[tuple[str, str], float]

#: Kind -> valid suffixes, each with the label that distinguishes the values of one series ("" if none does).
_SUFFIXES: Mapping[str, Mapping[str, str]] = {
    "counter": {"_total": ""},
    "gauge": {"": ""},
    "unknown": {"": ""},
    "histogram": {"_bucket": "le", "_count": "", "_sum": ""},
    "summary": {"": "quantile", "_count": "", "_sum": ""},
}
#: Kinds whose values continue after a worker has exited.
_ADDED = ("counter", "histogram", "summary")
#: Prefixes reserved for the daemon's and tritonserver's metrics.
_RESERVED = ("pytriton_", "nv_")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_MAX_LEN_NAME = 200
_MAX_LEN_VALUE = 500
_MAX_LEN_HELP = 1_000
_MAX_LABELS = 30
#: Upper limit of counts: a scraper stores them in 64 bits.
_MAX_COUNT = 2.0**63
#: Maximum number of omitted metrics per model for which the reason is kept.
_MAX_FAULTS = 20


@dataclass(frozen=True)
class Family:
    """One metric of a model, with its series."""

    kind: str
    help: str
    series: Mapping[Labels, Values]


Families = Mapping[str, Family]


class Checked(NamedTuple):
    """The valid part of a worker's metrics, the number of omitted values, and the reasons, by metric name."""

    families: Families
    left_out: int
    faults: Mapping[str, str]


@dataclass
class _Checking:
    """The findings about one worker's metrics so far."""

    room: int = MAX_VALUES
    families: dict[str, Family] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)

    def refuse(self, name: str, why: str, values: int) -> None:
        """Count values of a metric as omitted, and record the reason."""
        self.left_out[why] += values
        if len(self.faults) < _MAX_FAULTS:
            self.faults.setdefault(name[:_MAX_LEN_NAME], why)


def checked(message: bytes) -> Checked:
    """Decode a worker's message, and omit metrics that Prometheus cannot read."""
    said = decoded(message) if message else None
    if said is None:
        return Checked({}, 0, {})
    found = _Checking()
    for family in said.families:
        why = _fault(family, found.families)
        if why:
            found.refuse(family.name, why, len(family.samples))
        else:
            series = _series(family, found)
            if series:
                text = family.help[:_MAX_LEN_HELP]
                found.families[family.name] = Family(family.kind, text, series)
    said_left_out = max(0, min(said.left_out, 1 << 53))
    if said_left_out:
        found.refuse("", f"a worker has more than {MAX_VALUES:,} values, or 256 KiB", said_left_out)
    return Checked(found.families, sum(found.left_out.values()), found.faults)


def _fault(family: UserFamily, before: Mapping[str, Family]) -> str:
    name = family.name
    if not _NAME.fullmatch(name) or len(name) > _MAX_LEN_NAME:
        return "its name is not a valid Prometheus name"
    if name.startswith(_RESERVED):
        return "names that begin with pytriton_ or nv_ are reserved for the daemon and tritonserver"
    if family.kind not in _SUFFIXES:
        return f"a {family.kind[:40]} cannot be exported"
    return "its name occurs twice" if name in before else ""


def _series(family: UserFamily, found: _Checking) -> dict[Labels, Values]:
    suffixes = _SUFFIXES[family.kind]
    series: dict[Labels, dict[tuple[str, str], float]] = {}
    written: dict[tuple[Labels, str, float], str] = {}
    for raw in family.samples:
        sample = decoded_sample(raw)
        bound = suffixes.get(sample.suffix) if sample is not None else None
        labels = _labels(sample.labels, bound) if sample is not None and bound is not None else None
        if sample is None or bound is None or labels is None:
            found.refuse(family.name, "it has a label or value that Prometheus does not accept", 1)
        elif not found.room:
            found.refuse(family.name, f"a worker has more than {MAX_VALUES:,} values", 1)
        else:
            found.room -= 1
            at = sample.labels[bound] if bound else ""
            if at:  # "1" and "1.0" are the same bound
                at = written.setdefault((labels, sample.suffix, float(at)), _as_written(at))
            series.setdefault(labels, {})[sample.suffix, at] = sample.value
    for labels, values in list(series.items()):
        why = _fault_of_series(family.kind, values)
        if why:
            del series[labels]
            found.refuse(family.name, why, len(values))
    return dict(series)


def _as_written(bound: str) -> str:
    """Return a bound unchanged, or Prometheus's spelling if it is infinite."""
    return "+Inf" if float(bound) == math.inf else bound


def _labels(labels: Mapping[str, str], bound: str) -> Labels | None:
    """Return the sorted labels of a series, without the label `bound`; None if a label is invalid."""
    if len(labels) > _MAX_LABELS or (bound and not _is_number(labels.get(bound, ""))):
        return None
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or len(name) > _MAX_LEN_NAME or len(value) > _MAX_LEN_VALUE:
            return None
    return tuple(sorted((name, value) for name, value in labels.items() if name != bound))


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _fault_of_series(kind: str, values: Values) -> str:
    if not _are_counts(values):
        return "one of its counts is negative, too large or not a number"
    if kind != "histogram":
        return ""
    if not {("_bucket", "+Inf"), ("_count", ""), ("_sum", "")} <= values.keys():
        return "it lacks buckets, its count or its sum"
    buckets = sorted((float(at), count) for (_, at), count in values.items() if at)
    if any(lower > upper for (_, lower), (_, upper) in zip(buckets, buckets[1:])):
        return (
            "one of its buckets has a lower count than the one below it: buckets must be cumulative"
        )
    return ""


def _are_counts(values: Values) -> bool:
    """Return True if no count among the values is negative or too large."""
    counts = (value for (suffix, _), value in values.items() if suffix in ("_bucket", "_count"))
    return all(0 <= count < _MAX_COUNT for count in counts)


def kept(families: Families) -> Families:
    """Return the part of a worker's metrics that is kept after the worker has exited."""
    found = {}
    for name, family in families.items():
        if family.kind in _ADDED:
            series = {
                labels: {key: value for key, value in values.items() if key[0]}
                for labels, values in family.series.items()
            }
            found[name] = Family(family.kind, family.help, series)
    return found


def added(earlier: Families, later: Families) -> Families:
    """Add up the metrics of two consecutive workers of one instance; the later worker may still be running.

    A metric starts over if it has another kind or other buckets in the later worker, or if its sum is too large.
    """
    if not earlier:
        return later
    found = dict(earlier)
    for name, family in later.items():
        before = earlier.get(name)
        if before is None or before.kind != family.kind or family.kind not in _ADDED:
            found[name] = family
            continue
        series = dict(before.series)
        for labels, values in family.series.items():
            series[labels] = _sum(series.get(labels, {}), values)
        found[name] = Family(family.kind, family.help, series)
    return found


def _sum(before: Values, values: Values) -> Values:
    added_keys = {key for key in values if key[0]}
    if before.keys() != added_keys:
        return values
    found = {key: value + before.get(key, 0.0) for key, value in values.items()}
    return found if _are_counts(found) else values


def bounded(families: Families, most: int = MAX_VALUES) -> tuple[Families, int]:
    """Limit families to `most` values in total. Return the families, and the number of omitted values."""
    found: dict[str, Family] = {}
    left_out = 0
    for name, family in families.items():
        series: dict[Labels, Values] = {}
        for labels, values in family.series.items():
            if len(values) <= most:
                most -= len(values)
                series[labels] = values
            else:
                left_out += len(values)
        if series:
            found[name] = Family(family.kind, family.help, series)
    return found, left_out


def with_ended(before: Families, message: bytes) -> Families:
    """Add the last message of a worker that has exited to the totals of its instance's earlier workers."""
    return bounded(added(before, kept(checked(message).families)))[0] if message else before


def with_living(before: Families, messages: Sequence[bytes]) -> Checked:
    """Return the total metrics of an instance over all its workers, both running and exited.

    Args:
        before: totals of workers that have exited
        messages: the messages of running workers, oldest first
    """
    families, left_out = before, 0
    faults: dict[str, str] = {}
    for message in messages:
        one = checked(message)
        families = added(families, one.families)
        left_out += one.left_out
        faults.update(one.faults)
    valid, more = bounded(families, 2 * MAX_VALUES)
    return Checked(valid, left_out + more, faults)
