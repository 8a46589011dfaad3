"""The callables' own metrics: merged from the workers of all models, with the labels of their instances."""

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
class RawUserMetrics:
    """The metrics of one instance's workers: of those that exited, and undecoded ones of current workers."""

    model: str
    version: int
    instance: int
    finished: Families
    current: Sequence[bytes]


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
        omitted: number of omitted values, by model.
    """

    families: dict[str, MergedFamily] = field(default_factory=dict)
    omitted: dict[str, int] = field(default_factory=dict)


class MetricConverter:
    """Converts metrics to an output format one by one, so that one that fails does not affect the others."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def each(
        self, families: Iterable[MergedFamily], form: Callable[[MergedFamily], T]
    ) -> Iterator[T]:
        """Yield the result of `form` for each family; log an exception once per metric."""
        for family in families:
            try:
                converted = form(family)
            except Exception as error:  # noqa: PERF203, caused by values of one callable
                name, why = family.name, f"{type(error).__name__}: {error}"
                if name not in self._failed and len(self._failed) < _MAX_REPORTED:
                    self._failed.add(name)
                    _log.warning("cannot expose a callable's metric", metric=name, why=why)
            else:
                yield converted


def add_frontend(users: MergedUserMetrics, metrics: Iterable[MetricData]) -> None:
    """Add the metrics of the OpenAI frontend. A callable's metric of the same name takes precedence."""
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
    """Return the metrics of a model's workers, to be decoded in another thread. Call it in the dispatcher's loop."""
    return [
        RawUserMetrics(model, version, number, instance.user_series, current)
        for (version, number), instance in counters.instances.items()
        if (current := [raw for worker in instance.workers if (raw := worker.user_metrics())])
        or instance.user_series
    ]


class Merger:
    """Merges the messages of all instances, and logs once why a metric is omitted."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def merge(self, instances: Iterable[RawUserMetrics]) -> MergedUserMetrics:
        """Return the merged metrics; may take a while, and can run in any thread."""
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
                    why = f"all models together have more than {_MAX_VALUES:,} values"
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
        _log.warning("a callable's metrics are omitted", model=model, metric=name, why=why)


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
    """Return the labels of a series plus those of its instance; conflicting ones are renamed as Prometheus does."""
    found = dict(labels)
    for name in instance:
        if name in found:
            renamed = f"exported_{name}"
            while renamed in found:
                renamed = f"exported_{renamed}"
            found[renamed] = found.pop(name)
    return tuple(sorted({**found, **instance}.items()))
