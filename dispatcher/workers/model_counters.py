"""Counters of each model: work done, worker exits, and retried requests.

A worker counts in its statistics page. When the worker exits, its counts are added to those of its instance. Counters
belong to a model name: they survive its workers and its replacement, and are removed with the name.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Union

from pytriton._protocol.lanes.request_records import CollectedRecords
from pytriton._protocol.lanes.stats_page import FAILURES, NOTHING, Counts
from pytriton._protocol.lanes.user_series import Families, with_ended
from pytriton._protocol.messages.metrics import ModelCounts
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.upgrade.snapshot import InstanceCountersState, ModelCountersState
from pytriton.dispatcher.workers.worker import Worker

#: The version, the instance number, and the records that its worker has written.
_Records = tuple[int, int, CollectedRecords]
#: Maximum number of exited workers whose uncollected records are kept.
_MAX_UNCOLLECTED = 100
#: Which calls of a new model are recorded until the first collection: minimum duration in ns, maximum number.
_INITIAL_RECORD_LIMITS = 0, 20
#: Maximum number of versions of a model whose instances are counted separately. Each replacement may add one.
_MAX_VERSIONS = 50
#: Maximum value of a counter in the upgrade state, which has no larger integers. A worker may write any value.
_MAX_COUNT = (1 << 63) - 1


class InstanceCounters:
    """The counters of one instance of one version.

    Attributes:
        ended: Work done by workers that have exited.
        exits: Number of worker exits, by reason.
        starts: Number of workers started.
        workers: The workers that are alive.
        user_series: Custom metrics of exited workers; never changed in place.
    """

    def __init__(self) -> None:
        self.ended = NOTHING
        self.exits: Counter[str] = Counter()
        self.starts = 0
        self.workers: list[Worker] = []
        self.user_series: Families = {}

    def counts(self) -> Counts:
        """Return the work that all workers of this instance have done so far."""
        total = self.ended
        for worker in self.workers:
            total = total.plus(worker.counts())
        return total


class WorkDone(NamedTuple):
    """The work done by a model's workers so far: by version and instance number, and in total."""

    instances: Mapping[tuple[int, int], Counts]
    total: Counts


class ModelCounters:
    """The counters of one model name.

    Attributes:
        instances: Counters by version and instance number. Standby workers have the numbers from the declared one upward.
        former: Work done by the instances of old versions that are no longer counted separately.
        counts: The counters that do not depend on the instance.
        failed: Requests that failed because their worker was "lost" or "hung".
        started_at: Start of counting, by the monotonic clock; None if the counts predate an upgrade.
    """

    def __init__(self) -> None:
        self.instances: dict[tuple[int, int], InstanceCounters] = {}
        self.former = NOTHING
        self.started_at: float | None = time.monotonic()
        self.counts = ModelCounts()
        self.failed: Counter[str] = Counter()
        #: Uncollected records of workers that have exited.
        self._uncollected: deque[_Records] = deque(maxlen=_MAX_UNCOLLECTED)
        #: The limits of the last call to `records`. New workers get them at once.
        self._wanted = _INITIAL_RECORD_LIMITS

    def of(self, version: int, instance: int) -> InstanceCounters:
        """Return the counters of an instance. Create them if needed."""
        found = self.instances.get((version, instance))
        if found is None:
            self._make_room(version)
            found = self.instances[version, instance] = InstanceCounters()
        return found

    def _make_room(self, version: int) -> None:
        """If there are too many versions, merge the oldest one that has no workers into `former`."""
        has_workers = {key[0]: False for key in self.instances}
        if version in has_workers or len(has_workers) < _MAX_VERSIONS:
            return
        for (one, _), counters in self.instances.items():
            has_workers[one] = has_workers[one] or bool(counters.workers)
        oldest = next((one for one, lives in has_workers.items() if not lives), None)
        for key in [key for key in self.instances if key[0] == oldest]:
            self.former = self.former.plus(self.instances.pop(key).ended)

    def hand_over(self, name: str) -> ModelCountersState:
        """Return the counters, to be handed over in an upgrade. Live workers keep theirs in their statistics pages."""
        instances = [
            InstanceCountersState(
                version, number, _bounded(one.ended), dict(one.exits), one.starts, one.user_series
            )
            for (version, number), one in self.instances.items()
        ]
        return ModelCountersState(
            name, instances, self.counts, dict(self.failed), _bounded(self.former)
        )

    def adopt(self, state: ModelCountersState) -> None:
        """Restore the counters from before an upgrade."""
        self.started_at = None
        for one in state.instances:
            instance = self.of(one.version, one.instance)
            instance.ended = _counts(one.counts)
            instance.exits, instance.starts = Counter(one.exits), one.starts
            instance.user_series = one.user_series
        self.former = _counts(state.former) if state.former else NOTHING
        self.counts = state.counts
        self.failed = Counter(state.failed)

    def done(self) -> WorkDone:
        """Return the work done by all workers of the model so far."""
        counts = {key: instance.counts() for key, instance in self.instances.items()}
        return WorkDone(counts, reduce(Counts.plus, counts.values(), self.former))

    def outcomes(self) -> tuple[int, dict[str, int]]:
        """Return how many requests have started so far, and how many have failed, by kind. This is cheap."""
        requests, failed = self.former.requests, list(self.former.failed)
        for instance in self.instances.values():
            ended = instance.ended
            living = [worker.outcomes() for worker in instance.workers]
            for begun, by_kind in [(ended.requests, ended.failed), *living]:
                requests += begun
                failed = [one + more for one, more in zip(failed, by_kind)]
        return requests, {**dict(zip(FAILURES, failed)), **self.failed}

    def records(self, limit_ns: int, budget: int) -> Iterator[_Records]:
        """Collect the request records that workers have written, by version, instance and worker.

        Until the next collection, workers record failed calls and those of at least `limit_ns`, at most `budget` calls.
        """
        self._wanted = limit_ns, budget
        while self._uncollected:
            yield self._uncollected.popleft()
        for (version, number), instance in list(self.instances.items()):
            for worker in instance.workers:
                if worker.alive:
                    ring = worker.stats.records
                    yield version, number, ring.take()
                    ring.want(limit_ns, budget)

    def has_records(self) -> bool:
        """Return whether there are records to collect. This is cheap."""
        if self._uncollected:
            return True
        for instance in self.instances.values():
            for worker in instance.workers:  # a generator would take longer
                if worker.alive and worker.stats.records.has_uncollected:
                    return True
        return False

    def add(self, worker: Worker, *, adopted: bool = False) -> None:
        """Add a started worker, and keep its counts when it exits. The start of an `adopted` worker is not counted."""
        counters = self.of(worker.version, worker.instance)
        counters.starts += not adopted
        counters.workers.append(worker)
        if worker.alive:
            worker.stats.records.want(*self._wanted)

        def on_exit(_: object) -> None:
            counters.workers.remove(worker)
            counters.ended = counters.ended.plus(worker.counts())
            counters.exits[worker.exit_reason] += 1
            counters.user_series = with_ended(counters.user_series, worker.last_user_metrics)
            self._uncollected.append((worker.version, worker.instance, worker.last_records))

        worker.exited.add_done_callback(on_exit)


def _bounded(counts: Counts) -> list[Union[int, list[int]]]:
    """Return counts, clipped to the range of integers that the upgrade state can hold."""
    return [
        [min(count, _MAX_COUNT) for count in one]
        if isinstance(one, tuple)
        else min(one, _MAX_COUNT)
        for one in counts
    ]


def _counts(state: Sequence[Any]) -> Counts:
    return Counts._make(tuple(count) if isinstance(count, list) else count for count in state)


class CounterRegistry:
    """The counters of all models, by name.

    Attributes:
        additions: signals that counters were created for a new name
    """

    def __init__(self) -> None:
        self._by_name: dict[str, ModelCounters] = {}
        self.additions = ChangeSignal()

    def of(self, name: str) -> ModelCounters:
        """Return a model's counters, creating them if needed."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = ModelCounters()
            self.additions.notify()
        return found

    def get(self, name: str) -> ModelCounters | None:
        """Return a model's counters, or None."""
        return self._by_name.get(name)

    def items(self) -> list[tuple[str, ModelCounters]]:
        """Return the names and counters of all models."""
        return list(self._by_name.items())

    def forget(self, name: str) -> None:
        """Remove the counters of a model that is no longer served."""
        self._by_name.pop(name, None)
