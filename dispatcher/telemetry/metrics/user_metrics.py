"""Metrics that callables define. They are merged from the workers of all models, and labelled with their instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from pytriton._protocol.lanes.user_series import Families, Family, Labels, Values, with_living
from pytriton.dispatcher.openai.state import MetricData
from pytriton.dispatcher.workers.model_counters import ModelCounters

T = TypeVar("T")
_log = structlog.get_logger(__name__)

_INSTANCE = ("model", "version", "model_instance")
#: Maximum number of values to expose. (Scraping that many takes a second.)
_MAX_VALUES = 100_000
#: Maximum number of reasons for omissions that are logged, each of them once.
_MAX_REPORTED = 1_000
#: Kind of a metric -> suffixes of the names of its samples. No two metrics may have a sample name in common.
_NAMES = {
    "counter": ("", "_total"),
    "histogram": ("", "_bucket", "_count", "_sum"),
    "summary": ("", "_count", "_sum"),
}


@dataclass(frozen=True)
class RawUserMetrics:
    """Metrics of an instance's workers: the totals of exited workers, and the undecoded messages of current workers."""

    model: str
    version: int
    instance: int
    finished: Families
    current: Sequence[bytes]


@dataclass
class MergedFamily:
    """A metric merged from any number of models. Each series has the labels of its instance.

    Attributes:
        since: time when counting began, in seconds since the epoch; 0 for the daemon's start
    """

    name: str
    kind: str
    help: str
    series: dict[Labels, Values] = field(default_factory=dict)
    since: float = 0.0


@dataclass
class MergedUserMetrics:
    """Merged metrics of all callables.

    Attributes:
        families: the metrics, by name
        omitted: number of values that are not exposed, by model
    """

    families: dict[str, MergedFamily] = field(default_factory=dict)
    omitted: dict[str, int] = field(default_factory=dict)


class MetricConverter:
    """Converts metrics to an output format one by one, so that an error in one does not affect the others."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def each(
        self, families: Iterable[MergedFamily], form: Callable[[MergedFamily], T]
    ) -> Iterator[T]:
        """Yield the result of `form` for each metric. If `form` fails, log that once and skip the metric."""
        for family in families:
            try:
                converted = form(family)
            except Exception as error:  # noqa: PERF203, caused by values of one callable
                name, why = family.name, f"{type(error).__name__}: {error}"
                if name not in self._failed and len(self._failed) < _MAX_REPORTED:
                    self._failed.add(name)
                    _log.warning("could not expose a metric of a callable", metric=name, why=why)
            else:
                yield converted


def add_frontend(users: MergedUserMetrics, metrics: Iterable[MetricData]) -> None:
    """Add the metrics of the OpenAI frontend. Metrics of callables with the same names take precedence."""
    used_names = {name for one in users.families.values() for name in _names(one.name, one.kind)}
    for metric in metrics:
        if metric.series and used_names.isdisjoint(_names(metric.name, metric.kind)):
            users.families[metric.name] = MergedFamily(
                metric.name,
                metric.kind,
                metric.help,
                {
                    tuple(labels): {(suffix, bound): value for suffix, bound, value in values}
                    for labels, values in metric.series
                },
                metric.since,
            )


def raw_user_metrics(model: str, counters: ModelCounters) -> list[RawUserMetrics]:
    """Return the undecoded metrics of a model's workers. Call this in the dispatcher's event loop."""
    return [
        RawUserMetrics(model, version, number, instance.user_series, current)
        for (version, number), instance in counters.instances.items()
        if (current := [raw for worker in instance.workers if (raw := worker.user_metrics())])
        or instance.user_series
    ]


class Merger:
    """Merges the metrics of all instances, and logs the reason for each omission once."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def merge(self, instances: Iterable[RawUserMetrics]) -> MergedUserMetrics:
        """Decode and merge metrics. This may take a second, so call it in a thread."""
        found = MergedUserMetrics()
        owners: dict[str, str] = {}
        remaining = _MAX_VALUES
        for one in instances:
            checked = with_living(one.finished, one.current)
            omitted = checked.left_out
            for name, why in checked.faults.items():
                self._report(one.model, name, why)
            labels = dict(zip(_INSTANCE, (one.model, str(one.version), str(one.instance))))
            for name, family in checked.families.items():
                values = sum(map(len, family.series.values()))
                why = _clash(name, family, found.families, owners)
                if not why and values > remaining:
                    why = f"all models together exceed {_MAX_VALUES:,} values"
                if why:
                    self._report(one.model, name, why)
                    omitted += values
                    continue
                remaining -= values
                into = found.families.setdefault(name, MergedFamily(name, family.kind, family.help))
                owners.update(dict.fromkeys(_names(name, family.kind), name))
                for series, value in family.series.items():
                    into.series[_with_instance(series, labels)] = value
            if omitted:
                found.omitted[one.model] = found.omitted.get(one.model, 0) + omitted
        return found

    def _report(self, model: str, name: str, why: str) -> None:
        if (model, name) in self._reported or len(self._reported) >= _MAX_REPORTED:
            return
        self._reported.add((model, name))
        _log.warning("a callable's metric was omitted", model=model, metric=name, why=why)


def _names(name: str, kind: str) -> list[str]:
    return [f"{name}{suffix}" for suffix in _NAMES.get(kind, ("",))]


def _clash(
    name: str, family: Family, families: Mapping[str, MergedFamily], owners: Mapping[str, str]
) -> str:
    other = families.get(name)
    if other is not None and other.kind != family.kind:
        return f"it is a {family.kind} here, and a {other.kind} in another model"
    for one in _names(name, family.kind):
        owner = owners.get(one, name)
        if owner != name:
            return f"{one} belongs to the metric {owner} of another model"
    return ""


def _with_instance(labels: Labels, instance: Mapping[str, str]) -> Labels:
    """Return the labels of a series plus those of its instance. Labels with the same name are renamed as in Prometheus."""
    found = dict(labels)
    for name in instance:
        if name in found:
            renamed = f"exported_{name}"
            while renamed in found:
                renamed = f"exported_{renamed}"
            found[renamed] = found.pop(name)
    return tuple(sorted({**found, **instance}.items()))
