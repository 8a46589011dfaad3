"""Series of users' metrics: what a worker says, checked; and what workers said that have ended, added up.

A counter, histogram or summary of an instance goes on where the former worker's ended; a gauge is that of the worker
that there is.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytriton._protocol.lanes.user_metrics import (
    MOST_VALUES,
    UserFamily,
    decoded,
    decoded_sample,
)

#: Labels and their values, sorted.
Labels = tuple[tuple[str, str], ...]
#: The values of one series by what is behind the family's name, and its bound ("le") or quantile, if it has one.
Values = Mapping[tuple[str, str], float]

#: What a family's name may be followed by, and the label that the values of one series differ in: "" for none.
_SUFFIXES: Mapping[str, Mapping[str, str]] = {
    "counter": {"_total": ""},
    "gauge": {"": ""},
    "unknown": {"": ""},
    "histogram": {"_bucket": "le", "_count": "", "_sum": ""},
    "summary": {"": "quantile", "_count": "", "_sum": ""},
}
#: Kinds whose values go on when a worker has ended.
_ADDED = ("counter", "histogram", "summary")
#: Names of ours, and of tritonserver's.
_RESERVED = ("pytriton_", "nv_")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_LONGEST_NAME = 200
_LONGEST_VALUE = 500
_LONGEST_HELP = 1_000
_MOST_LABELS = 30
#: Counts are below it: a scraper has 64 bits for one.
_MOST_COUNT = 2.0**63
#: Metrics of a model that are named with why they are left out.
_MOST_FAULTS = 20


@dataclass(frozen=True)
class Family:
    """One metric of a model's, with its series."""

    kind: str
    help: str
    series: Mapping[Labels, Values]


Families = Mapping[str, Family]


class Checked(NamedTuple):
    """The part of a worker's metrics that can be told, how many values cannot, and why: by name of the metric."""

    families: Families
    left_out: int
    faults: Mapping[str, str]


@dataclass
class _Checking:
    """The findings so far."""

    room: int = MOST_VALUES
    families: dict[str, Family] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)

    def refuse(self, name: str, why: str, values: int) -> None:
        """Leave values of a metric out."""
        self.left_out[why] += values
        if len(self.faults) < _MOST_FAULTS:
            self.faults.setdefault(name[:_LONGEST_NAME], why)


def checked(message: bytes) -> Checked:
    """Return what a worker's message says, without what is no metric that a scraper can read."""
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
                text = family.help[:_LONGEST_HELP]
                found.families[family.name] = Family(family.kind, text, series)
    said_left_out = max(0, min(said.left_out, 1 << 53))
    if said_left_out:
        found.refuse(
            "", f"a worker has more than {MOST_VALUES:,} values, or 256 KiB", said_left_out
        )
    return Checked(found.families, sum(found.left_out.values()), found.faults)


def _fault(family: UserFamily, before: Mapping[str, Family]) -> str:
    name = family.name
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        return "its name is none that Prometheus takes"
    if name.startswith(_RESERVED):
        return "names that begin with pytriton_ or nv_ are the daemon's and tritonserver's"
    if family.kind not in _SUFFIXES:
        return f"a {family.kind[:40]} cannot be told"
    return "its name comes twice" if name in before else ""


def _series(family: UserFamily, found: _Checking) -> dict[Labels, Values]:
    suffixes = _SUFFIXES[family.kind]
    series: dict[Labels, dict[tuple[str, str], float]] = {}
    written: dict[tuple[Labels, str, float], str] = {}
    for raw in family.samples:
        sample = decoded_sample(raw)
        bound = suffixes.get(sample.suffix) if sample is not None else None
        labels = _labels(sample.labels, bound) if sample is not None and bound is not None else None
        if sample is None or bound is None or labels is None:
            found.refuse(family.name, "a label or value of it is none that Prometheus takes", 1)
        elif not found.room:
            found.refuse(family.name, f"a worker has more than {MOST_VALUES:,} values", 1)
        else:
            found.room -= 1
            at = sample.labels[bound] if bound else ""
            if at:  # "1" and "1.0" are one bound
                at = written.setdefault((labels, sample.suffix, float(at)), _as_told(at))
            series.setdefault(labels, {})[sample.suffix, at] = sample.value
    for labels, values in list(series.items()):
        why = _fault_of_series(family.kind, values)
        if why:
            del series[labels]
            found.refuse(family.name, why, len(values))
    return dict(series)


def _as_told(bound: str) -> str:
    """Return a bound as a worker wrote it, but the highest one as Prometheus has it."""
    return "+Inf" if float(bound) == math.inf else bound


def _labels(labels: Mapping[str, str], bound: str) -> Labels | None:
    """Return the labels of a series, of which `bound` is none; None for what cannot be told."""
    if len(labels) > _MOST_LABELS or (bound and not _is_number(labels.get(bound, ""))):
        return None
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE:
            return None
    return tuple(sorted((name, value) for name, value in labels.items() if name != bound))


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _fault_of_series(kind: str, values: Values) -> str:
    if not _are_counts(values):
        return "a count of it is negative, too large or no number"
    if kind != "histogram":
        return ""
    if not {("_bucket", "+Inf"), ("_count", ""), ("_sum", "")} <= values.keys():
        return "it lacks buckets, its count or its sum"
    buckets = sorted((float(at), count) for (_, at), count in values.items() if at)
    if any(lower > upper for (_, lower), (_, upper) in zip(buckets, buckets[1:])):
        return "a bucket of it has less than the one below it: they are to be cumulative"
    return ""


def _are_counts(values: Values) -> bool:
    """Return whether all that is to be a count can be one."""
    counts = (value for (suffix, _), value in values.items() if suffix in ("_bucket", "_count"))
    return all(0 <= count < _MOST_COUNT for count in counts)


def kept(families: Families) -> Families:
    """Return what of a worker's metrics stays when it has ended."""
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
    """Return the metrics of two workers of one instance, one after the other, of which the later one may live.

    What the later one has changed (another kind, other buckets), or what becomes too large, begins anew.
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


def bounded(families: Families, most: int = MOST_VALUES) -> tuple[Families, int]:
    """Return as much as has no more than `most` values, and how many are left out."""
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
    """Return what the workers of an instance have counted that have ended; `message`: what the last one said."""
    return bounded(added(before, kept(checked(message).families)))[0] if message else before


def with_living(before: Families, messages: Sequence[bytes]) -> Checked:
    """Return all that is told of an instance.

    Args:
        before: what workers had counted that have ended
        messages: what those say that live, the oldest first
    """
    families, left_out = before, 0
    faults: dict[str, str] = {}
    for message in messages:
        one = checked(message)
        families = added(families, one.families)
        left_out += one.left_out
        faults.update(one.faults)
    told, more = bounded(families, 2 * MOST_VALUES)
    return Checked(told, left_out + more, faults)
