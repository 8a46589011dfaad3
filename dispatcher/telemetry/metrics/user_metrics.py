"""Metrics of the callables' own, of all models: each with the labels of its instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from pytriton._protocol.lanes.user_series import Families, Family, Labels, Values, with_living
from pytriton.dispatcher.openai.state import Told
from pytriton.dispatcher.workers.model_counters import InstanceTally, Tally

T = TypeVar("T")
_log = structlog.get_logger(__name__)

_INSTANCE = ("model", "version", "model_instance")
#: Values of all models that are told; a scrape of so many takes a second.
_MOST_VALUES = 100_000
#: Reasons for which something is left out that are logged, once each.
_MOST_TOLD = 1_000
#: What may be behind a family's name, by its kind: two families must not have the same names.
_NAMES = {
    "counter": ("", "_total"),
    "histogram": ("", "_bucket", "_count", "_sum"),
    "summary": ("", "_count", "_sum"),
}


@dataclass(frozen=True)
class Said:
    """The messages of an instance's workers, undecoded, the oldest first; to be read in another thread."""

    model: str
    version: int
    instance: int
    ended: Families
    living: Sequence[bytes]


@dataclass
class MergedFamily:
    """One metric of any number of models; its series are told by their labels, with those of the instance.

    Attributes:
        since: when counting began (seconds since the epoch); 0: with the daemon
    """

    name: str
    kind: str
    help: str
    series: dict[Labels, Values] = field(default_factory=dict)
    since: float = 0.0


@dataclass
class UserMetrics:
    """The metrics of all of them.

    Attributes:
        families: by name.
        left_out: how many values are not in it, by model.
    """

    families: dict[str, MergedFamily] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


class Teller:
    """Puts metrics in a form that somebody reads, each for itself: one that cannot be told costs no other."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def each(
        self, families: Iterable[MergedFamily], form: Callable[[MergedFamily], T]
    ) -> Iterator[T]:
        """Yield what `form` makes of each; where it raises, that is logged once for each metric."""
        for family in families:
            yield from self._one(family, form)

    def _one(self, family: MergedFamily, form: Callable[[MergedFamily], T]) -> list[T]:
        try:
            return [form(family)]
        except Exception as error:  # of values of some callable's
            name, why = family.name, f"{type(error).__name__}: {error}"
            if name not in self._failed and len(self._failed) < _MOST_TOLD:
                self._failed.add(name)
                _log.warning("a metric of a callable's own cannot be told", metric=name, why=why)
            return []


def add_front(users: UserMetrics, metrics: Iterable[Told]) -> None:
    """Put the metrics of the OpenAI front to the others. Where a callable has one of that name, that is told."""
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


def said(model: str, tally: Tally) -> list[Said]:
    """Return what the workers of a model say; to be called in the dispatcher's loop."""
    return [
        Said(model, version, number, instance.user_series, living)
        for (version, number), instance in tally.instances.items()
        if (living := _living(instance)) or instance.user_series
    ]


def _living(instance: InstanceTally) -> list[bytes]:
    return [message for worker in instance.workers if (message := worker.user_metrics())]


class Merger:
    """Makes one table of what all instances say, and logs once why something is not in it."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def merged(self, instances: Iterable[Said]) -> UserMetrics:
        """Return the metrics of all; may take a while, and is for any thread."""
        found = UserMetrics()
        taken: dict[str, str] = {}
        room = _MOST_VALUES
        for one in instances:
            checked = with_living(one.ended, one.living)
            left_out = checked.left_out
            for name, why in checked.faults.items():
                self._tell(one.model, name, why)
            labels = dict(zip(_INSTANCE, (one.model, str(one.version), str(one.instance))))
            for name, family in checked.families.items():
                values = sum(map(len, family.series.values()))
                why = _clash(name, family, found.families, taken)
                if not why and values > room:
                    why = f"all models together have more than {_MOST_VALUES:,} values"
                if why:
                    self._tell(one.model, name, why)
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

    def _tell(self, model: str, name: str, why: str) -> None:
        if (model, name) in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add((model, name))
        _log.warning("metrics of a callable's own are left out", model=model, metric=name, why=why)


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
            return f"{one} belongs to the metric {owner} of some model"
    return ""


def _with_instance(labels: Labels, instance: Mapping[str, str]) -> Labels:
    """Return the labels of a series with those of its instance; its own are renamed as Prometheus does it."""
    found = dict(labels)
    for name in instance:
        if name in found:
            renamed = f"exported_{name}"
            while renamed in found:
                renamed = f"exported_{renamed}"
            found[renamed] = found.pop(name)
    return tuple(sorted({**found, **instance}.items()))
