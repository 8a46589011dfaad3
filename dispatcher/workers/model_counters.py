"""Counters of a model over the lives of its workers: what they did, how they ended, what was tried again.

A worker counts in its gauge's page, which goes with it; at its end the page is added to what its instance has. So
counters survive a worker, and a replacement of the model: a tally belongs to a name, and goes with it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Union

from pytriton._protocol.lanes.request_records import Taken
from pytriton._protocol.lanes.stats_page import FAILURES, NOTHING, Counts
from pytriton._protocol.lanes.user_series import Families, with_ended
from pytriton.dispatcher.runtime.upgrade_snapshot import InstanceTallyState, TallyState
from pytriton.dispatcher.workers.process.worker import Worker

#: The version, the instance, and what its worker has written.
_Records = tuple[int, int, Taken]
#: Workers that have ended whose records are kept until somebody takes them.
_MOST_LEFT = 100
#: Which calls of a new model get records, until somebody takes them: those that take this long (ns), so many at most.
_FIRST_WANTED = 0, 20
#: Versions of a model whose instances are told apart: each replacement may have another one.
_MOST_VERSIONS = 50
#: What is handed over of a counter: a worker may say anything, and a document has no larger integers.
_MOST = (1 << 63) - 1


class InstanceTally:
    """One instance (of one version).

    Attributes:
        ended: what its workers had done that have ended.
        ends: how many have ended, by reason.
        starts: how many have been started.
        workers: those that live.
        user_series: what callables of ended workers counted by themselves; never changed in place.
    """

    def __init__(self) -> None:
        self.ended = NOTHING
        self.ends: Counter[str] = Counter()
        self.starts = 0
        self.workers: list[Worker] = []
        self.user_series: Families = {}

    def counts(self) -> Counts:
        """Return what all of its workers have done until now."""
        total = self.ended
        for worker in self.workers:
            total = total.plus(worker.counts())
        return total


class Done(NamedTuple):
    """The work of a model's workers until now: by version and number of the instance, and in all."""

    instances: Mapping[tuple[int, int], Counts]
    total: Counts


class Tally:
    """One model, by its name.

    Attributes:
        instances: by version and number; those from the declared number on are spares.
        former: what instances did of versions that nobody has heard of for long.
        retries: requests that were tried again after their worker was lost.
        poison: requests that were taken to be what ends workers.
        wakes: how often the model slept and got a worker again.
        failed: requests that failed because their worker was "lost", or "hung".
        begun: when this began to count, by the monotonic clock; None: a former version of this process did, too.
        records_logged, records_left_out: requests that the access log has, and that there was no room or time for.
    """

    def __init__(self) -> None:
        self.instances: dict[tuple[int, int], InstanceTally] = {}
        self.former = NOTHING
        self.begun: float | None = time.monotonic()
        self.retries = 0
        self.poison = 0
        self.wakes = 0
        self.failed: Counter[str] = Counter()
        self.records_logged = 0
        self.records_left_out = 0
        #: Records of workers that have ended.
        self._left: deque[_Records] = deque(maxlen=_MOST_LEFT)
        #: What `records` was told last: a new worker is told at once, before the next look.
        self._wanted = _FIRST_WANTED

    def of(self, version: int, instance: int) -> InstanceTally:
        """Return what is counted of an instance."""
        found = self.instances.get((version, instance))
        if found is None:
            self._make_room(version)
            found = self.instances[version, instance] = InstanceTally()
        return found

    def _make_room(self, version: int) -> None:
        """Put the oldest version that has no worker to what is former, where there are too many."""
        living = {key[0]: False for key in self.instances}
        if version in living or len(living) < _MOST_VERSIONS:
            return
        for (one, _), tally in self.instances.items():
            living[one] = living[one] or bool(tally.workers)
        oldest = next((one for one, lives in living.items() if not lives), None)
        for key in [key for key in self.instances if key[0] == oldest]:
            self.former = self.former.plus(self.instances.pop(key).ended)

    def hand_over(self, name: str) -> TallyState:
        """Return what the next version of this process goes on with; what living workers did is in their pages."""
        instances = [
            InstanceTallyState(
                version, number, _bounded(one.ended), dict(one.ends), one.starts, one.user_series
            )
            for (version, number), one in self.instances.items()
        ]
        return TallyState(
            name,
            instances,
            self.retries,
            self.poison,
            dict(self.failed),
            self.records_logged,
            self.records_left_out,
            self.wakes,
            _bounded(self.former),
        )

    def adopt(self, state: TallyState) -> None:
        """Go on with what a former version of this process has counted."""
        self.begun = None
        for one in state.instances:
            instance = self.of(one.version, one.instance)
            instance.ended = _counts(one.counts)
            instance.ends, instance.starts = Counter(one.ends), one.starts
            instance.user_series = one.user_series
        self.former = _counts(state.former) if state.former else NOTHING
        self.retries, self.poison, self.wakes = state.retries, state.poison, state.wakes
        self.failed = Counter(state.failed)
        self.records_logged, self.records_left_out = state.records_logged, state.records_left_out

    def done(self) -> Done:
        """Return what all of its workers have done until now."""
        counts = {key: instance.counts() for key, instance in self.instances.items()}
        return Done(counts, reduce(Counts.plus, counts.values(), self.former))

    def outcomes(self) -> tuple[int, dict[str, int]]:
        """Return how many requests were begun until now, and how many failed, by kind; costs little."""
        requests, failed = self.former.requests, list(self.former.failed)
        for instance in self.instances.values():
            ended = instance.ended
            living = [worker.outcomes() for worker in instance.workers]
            for begun, by_kind in [(ended.requests, ended.failed), *living]:
                requests += begun
                failed = [one + more for one, more in zip(failed, by_kind)]
        return requests, {**dict(zip(FAILURES, failed)), **self.failed}

    def records(self, limit_ns: int, budget: int) -> Iterator[_Records]:
        """Take the records of single requests that workers have written: by version, instance and worker.

        From then on they write those of failed calls, and of calls that take at least so long, so many at most.
        """
        self._wanted = limit_ns, budget
        while self._left:
            yield self._left.popleft()
        for (version, number), instance in list(self.instances.items()):
            for worker in instance.workers:
                if worker.alive:
                    ring = worker.gauge.records
                    yield version, number, ring.take()
                    ring.want(limit_ns, budget)

    def add(self, worker: Worker, *, adopted: bool = False) -> None:
        """A worker has been started: count it until its end, and what it did for good. An `adopted` one was before."""
        tally = self.of(worker.version, worker.instance)
        tally.starts += not adopted
        tally.workers.append(worker)
        if worker.alive:
            worker.gauge.records.want(*self._wanted)

        def ended(_: object) -> None:
            tally.workers.remove(worker)
            tally.ended = tally.ended.plus(worker.counts())
            tally.ends[worker.end_reason] += 1
            tally.user_series = with_ended(tally.user_series, worker.last_user_metrics)
            self._left.append((worker.version, worker.instance, worker.last_records))

        worker.exited.add_done_callback(ended)


def _bounded(counts: Counts) -> list[Union[int, list[int]]]:
    """Return counts as a document can have them."""
    return [
        [min(count, _MOST) for count in one] if isinstance(one, tuple) else min(one, _MOST)
        for one in counts
    ]


def _counts(handed: Sequence[Any]) -> Counts:
    return Counts._make(tuple(count) if isinstance(count, list) else count for count in handed)


class CounterRegistry:
    """The tallies of all models, by name. `on_begun` is called when another one begins."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self.on_begun: Callable[[], None] = lambda: None

    def of(self, name: str) -> Tally:
        """Return a model's tally, a new one where there is none."""
        found = self._tallies.get(name)
        if found is None:
            found = self._tallies[name] = Tally()
            self.on_begun()
        return found

    def get(self, name: str) -> Tally | None:
        """Return a model's tally, if there is one."""
        return self._tallies.get(name)

    def items(self) -> list[tuple[str, Tally]]:
        """Return all of them, with their names."""
        return list(self._tallies.items())

    def forget(self, name: str) -> None:
        """Drop a name's tally: it is not served any more."""
        self._tallies.pop(name, None)
