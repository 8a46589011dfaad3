"""The callables' own metrics of all models, with the labels of their instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from pytriton._protocol.lanes.user_series import Families, Family, Labels, Values, with_living
from pytriton.dispatcher.openai.state import MetricData
from pytriton.dispatcher.workers.model_counters import InstanceCounters, ModelCounters

T = TypeVar("T")
_log = structlog.get_logger(__name__)

_INSTANCE = ("model", "version", "model_instance")
#: Maximum number of values exposed in total; scraping this many takes a second.
_MAX_VALUES = 100_000
#: Maximum number of drop reasons that are logged, once each.
_MAX_REPORTED = 1_000
#: Suffixes of a family's sample names by kind: no two families may share a sample name.
_NAMES = {
    "counter": ("", "_total"),
    "histogram": ("", "_bucket", "_count", "_sum"),
    "summary": ("", "_count", "_sum"),
}


@dataclass(frozen=True)
class Said:
    """The undecoded messages of an instance's workers, oldest first; decoded in another thread."""

    model: str
    version: int
    instance: int
    ended: Families
    living: Sequence[bytes]


@dataclass
class MergedFamily:
    """One metric of any number of models; each series is labelled with its instance.

    Attributes:
        since: start of counting (seconds since the epoch); 0 for the daemon's start
    """

    name: str
    kind: str
    help: str
    series: dict[Labels, Values] = field(default_factory=dict)
    since: float = 0.0


@dataclass
class MergedUserMetrics:
    """The merged metrics of all callables.

    Attributes:
        families: by name.
        left_out: number of omitted values, by model.
    """

    families: dict[str, MergedFamily] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


class MetricConverter:
    """Converts metrics to an output format one by one, so that one that fails does not affect the others."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def each(
        self, families: Iterable[MergedFamily], form: Callable[[MergedFamily], T]
    ) -> Iterator[T]:
        """Yield the result of `form` for each family; log an exception once per metric."""
        for family in families:
            yield from self._one(family, form)

    def _one(self, family: MergedFamily, form: Callable[[MergedFamily], T]) -> list[T]:
        try:
            return [form(family)]
        except Exception as error:  # caused by values of a callable
            name, why = family.name, f"{type(error).__name__}: {error}"
            if name not in self._failed and len(self._failed) < _MAX_REPORTED:
                self._failed.add(name)
                _log.warning("cannot expose a callable's metric", metric=name, why=why)
            return []


def add_frontend(users: MergedUserMetrics, metrics: Iterable[MetricData]) -> None:
    """Add the metrics of the OpenAI frontend. A callable's metric of the same name takes precedence."""
    taken = {name for one in users.families.values() for name in _names(one.name, one.kind)}
    for metric in metrics:
        if metric.series and taken.isdisjoint(_names(metric.name, metric.kind)):
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


def said(model: str, counters: ModelCounters) -> list[Said]:
    """Return the messages of a model's workers; call it in the dispatcher's loop."""
    return [
        Said(model, version, number, instance.user_series, living)
        for (version, number), instance in counters.instances.items()
        if (living := _living(instance)) or instance.user_series
    ]


def _living(instance: InstanceCounters) -> list[bytes]:
    return [message for worker in instance.workers if (message := worker.user_metrics())]


class Merger:
    """Merges the messages of all instances, and logs once why a metric is omitted."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def merged(self, instances: Iterable[Said]) -> MergedUserMetrics:
        """Return the merged metrics; may take a while, and can run in any thread."""
        found = MergedUserMetrics()
        taken: dict[str, str] = {}
        room = _MAX_VALUES
        for one in instances:
            checked = with_living(one.ended, one.living)
            left_out = checked.left_out
            for name, why in checked.faults.items():
                self._report(one.model, name, why)
            labels = dict(zip(_INSTANCE, (one.model, str(one.version), str(one.instance))))
            for name, family in checked.families.items():
                values = sum(map(len, family.series.values()))
                why = _clash(name, family, found.families, taken)
                if not why and values > room:
                    why = f"all models together have more than {_MAX_VALUES:,} values"
                if why:
                    self._report(one.model, name, why)
                    left_out += values
                    continue
                room -= values
                into = found.families.setdefault(name, MergedFamily(name, family.kind, family.help))
                taken.update(dict.fromkeys(_names(name, family.kind), name))
                for series, value in family.series.items():
                    into.series[_with_instance(series, labels)] = value
            if left_out:
                found.left_out[one.model] = found.left_out.get(one.model, 0) + left_out
        return found

    def _report(self, model: str, name: str, why: str) -> None:
        if (model, name) in self._reported or len(self._reported) >= _MAX_REPORTED:
            return
        self._reported.add((model, name))
        _log.warning("a callable's metrics are omitted", model=model, metric=name, why=why)


def _names(name: str, kind: str) -> list[str]:
    return [f"{name}{suffix}" for suffix in _NAMES.get(kind, ("",))]


def _clash(
    name: str, family: Family, families: Mapping[str, MergedFamily], taken: Mapping[str, str]
) -> str:
    there = families.get(name)
    if there is not None and there.kind != family.kind:
        return f"it is a {family.kind} here, and a {there.kind} in another model"
    for one in _names(name, family.kind):
        owner = taken.get(one, name)
        if owner != name:
            return f"{one} belongs to the metric {owner} of another model"
    return ""


def _with_instance(labels: Labels, instance: Mapping[str, str]) -> Labels:
    """Return the labels of a series plus those of its instance; conflicting ones are renamed as Prometheus does."""
    found = dict(labels)
    for name in instance:
        if name in found:
            renamed = f"exported_{name}"
            while renamed in found:
                renamed = f"exported_{renamed}"
            found[renamed] = found.pop(name)
    return tuple(sorted({**found, **instance}.items()))
