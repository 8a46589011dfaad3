"""Counters of a model over the lives of its workers: what they did, how they ended, what was tried again.

A worker counts in its gauge's page, which goes with it; at its end the page is added to what its instance has. So
counters survive a worker, and a replacement of the model: a tally belongs to a name, and goes with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from pytriton.dispatcher.workers.worker import Worker
from pytriton.ipc.lanes.gauge import NOTHING, Counts


class InstanceTally:
    """One instance (of one version).

    Attributes:
        ended: what its workers had done that have ended.
        ends: how many have ended, by reason.
        starts: how many have been started.
        workers: those that live.
    """

    def __init__(self) -> None:
        self.ended = NOTHING
        self.ends: Counter[str] = Counter()
        self.starts = 0
        self.workers: list[Worker] = []

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
        retries: requests that were tried again after their worker was lost.
        poison: requests that were taken to be what ends workers.
        failed: requests that failed because their worker was "lost", or "hung".
    """

    def __init__(self) -> None:
        self.instances: dict[tuple[int, int], InstanceTally] = {}
        self.retries = 0
        self.poison = 0
        self.failed: Counter[str] = Counter()

    def of(self, version: int, instance: int) -> InstanceTally:
        """Return what is counted of an instance."""
        return self.instances.setdefault((version, instance), InstanceTally())

    def done(self) -> Done:
        """Return what all of its workers have done until now."""
        counts = {key: instance.counts() for key, instance in self.instances.items()}
        return Done(counts, reduce(Counts.plus, counts.values(), NOTHING))

    def add(self, worker: Worker) -> None:
        """A worker has been started: count it until its end, and what it did for good."""
        tally = self.of(worker.version, worker.instance)
        tally.starts += 1
        tally.workers.append(worker)

        def ended(_: object) -> None:
            tally.workers.remove(worker)
            tally.ended = tally.ended.plus(worker.counts())
            tally.ends[worker.end_reason] += 1

        worker.exited.add_done_callback(ended)


class Ledger:
    """The tallies of all models, by name."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}

    def of(self, name: str) -> Tally:
        """Return a model's tally, a new one where there is none."""
        return self._tallies.setdefault(name, Tally())

    def get(self, name: str) -> Tally | None:
        """Return a model's tally, if there is one."""
        return self._tallies.get(name)

    def forget(self, name: str) -> None:
        """Drop a name's tally: it is not served any more."""
        self._tallies.pop(name, None)
