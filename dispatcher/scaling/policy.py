"""The autoscaling policy, as pure functions: how many instances a model needs, and how many the machine allows.

`decide` looks at the load of one model:

    up     the load over `up_after_s`, and that of the newest sample, need more instances than there are
    down   no period of `up_after_s` within `down_after_s` would have needed all current instances
    zero   there was no request for `idle_after_s`

The unit of the load is an instance: the busy ones, plus those needed to drain the queue within `up_after_s`. A model
needs as many instances as its load divided by `target`. Scaling down leaves some slack below the target, so that the
same load does not scale the model up again.

`share_out` divides a machine that cannot run all wanted instances: each model gets its minimum; after that, one
instance at a time goes to the model with the fewest in proportion to its weight, until CPUs or memory are used up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytriton._protocol.messages import Autoscale

#: When scaling down, the load may use at most this fraction of the target.
_SLACK = 0.9
#: A model is saturated if at least this share of its instances is busy: its real demand cannot be measured.
_SATURATED = 0.95
#: Growth factor for a saturated model, whose demand is unknown. It is evaluated again afterwards.
_GROWTH = 2
#: Minimum fraction of a period that its samples must cover.
_COVERED = 0.9
#: Tolerance for rounding errors of quotients.
_ROUNDING = 1e-9


class Decision(NamedTuple):
    """A decision about the number of instances of a model.

    Attributes:
        instances: Number of instances.
        why: The reason: "steady", "load", "saturated", "quiet", "idle" or "bounds".
        load: Number of instances that the load keeps permanently busy.
        stats: The figures behind the decision.
    """

    instances: int
    why: str
    load: float
    stats: SampleStats

    def text(self, now: int) -> str:
        """Describe the decision. `now` is the current number of instances."""
        stats = self.stats
        figures = (
            f"load {self.load:.1f} instances, busy {stats.share:.0%}, {stats.waiting:.1f} batches waiting, queue "
            f"{stats.queue_ms:.1f} ms, compute {stats.compute_ms:.1f} ms"
        )
        return f"{now} → {self.instances} instances ({self.why}): {figures}"


def decide(rules: Autoscale, window: Window, now: int) -> Decision:
    """Decide how many instances a model should have.

    Args:
        rules: The model's autoscaling rules.
        window: Its observed load, with at least one sample.
        now: Its current number of instances.
    """
    newest = window.since(float("-inf"))[-1]
    if now < max(rules.least, 1) or now > rules.most:
        bounded = min(max(now, rules.least, 1), rules.most)
        if now > 0 or rules.least > 0:
            return _decided(bounded, "bounds", rules, [newest])
    if now == 0:  # suspended: only a request resumes it
        return _decided(0, "steady", rules, [newest])
    return (
        _up(rules, window, now, newest)
        or _to_zero(rules, window, newest)
        or _down(rules, window, now, newest)
        or _decided(now, "steady", rules, window.since(newest.at - rules.up_after_s))
    )


def _up(rules: Autoscale, window: Window, now: int, newest: Sample) -> Decision | None:
    samples = window.since(max(newest.at - rules.up_after_s, window.changed_at))
    if now >= rules.most or not _covers(samples, rules.up_after_s):
        return None
    stats = stats_of(samples)
    load = _load(rules, stats)
    wanted, why = _round_up(load / rules.target), "load"
    if stats.share >= _SATURATED and stats.waiting >= now and wanted < now * _GROWTH:
        wanted, why = now * _GROWTH, "saturated"
    # After a burst is over, the newest sample shows no load.
    if wanted <= now or _load(rules, stats_of([newest])) <= now * rules.target:
        return None
    return Decision(min(wanted, rules.most), why, load, stats)


def _to_zero(rules: Autoscale, window: Window, newest: Sample) -> Decision | None:
    since = window.idle_since
    if rules.least > 0 or since is None:
        return None
    if newest.at - max(since, window.changed_at) < rules.idle_after_s:
        return None
    return _decided(0, "idle", rules, [newest])


def _down(rules: Autoscale, window: Window, now: int, newest: Sample) -> Decision | None:
    least = max(rules.least, 1)
    if now <= least:
        return None
    samples = window.since(max(newest.at - rules.down_after_s, window.changed_at))
    if not _covers(samples, rules.down_after_s):
        return None
    peak = max(_loads(rules, samples))
    wanted = max(_round_up(peak / (rules.target * _SLACK)), least)
    if wanted >= now:
        return None
    return Decision(wanted, "quiet", peak, stats_of(samples))


def _round_up(instances: float) -> int:
    return math.ceil(instances - _ROUNDING)


def _load(rules: Autoscale, stats: SampleStats) -> float:
    """Return the number of instances needed to handle the current load and to drain the queue in time.

    Waiting batches need at most one instance each, however long they take.
    """
    return stats.busy + stats.waiting * min(1.0, stats.batch_s / rules.up_after_s)


def _loads(rules: Autoscale, samples: Sequence[Sample]) -> Iterator[float]:
    """Yield the load of each consecutive period of `up_after_s`."""
    period: list[Sample] = []
    for sample in samples:
        period.append(sample)
        if _covers(period, rules.up_after_s):
            yield _load(rules, stats_of(period))
            period = []
    if period:
        yield _load(rules, stats_of(period))


def _covers(samples: Sequence[Sample], span_s: float) -> bool:
    return sum(one.elapsed_s for one in samples) >= span_s * _COVERED


def _decided(instances: int, why: str, rules: Autoscale, samples: Sequence[Sample]) -> Decision:
    stats = stats_of(samples)
    return Decision(instances, why, _load(rules, stats), stats)


# ── The observed load of a model: samples, a window of samples, and figures computed from them ──


class Sample(NamedTuple):
    """The load of one model since the previous sample.

    Attributes:
        at: When it was taken, in seconds of a monotonic clock.
        elapsed_s: Time since the previous sample.
        instances: Number of instances that could serve.
        busy: Average number of busy instances.
        waiting: Average number of requests in Triton's queue.
        requests: Number of requests that workers started.
        batches: Number of batches that workers started.
        queued_s: Total time that the answered requests waited in Triton's queue.
        computed_s: Total compute time of the answered requests.
    """

    at: float
    elapsed_s: float
    instances: int
    busy: float
    waiting: float = 0.0
    requests: int = 0
    batches: int = 0
    queued_s: float = 0.0
    computed_s: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether the model had no requests."""
        return self.busy == 0 and self.waiting == 0 and self.requests == 0


class SampleStats(NamedTuple):
    """Key figures of a series of samples.

    Attributes:
        busy: Average number of busy instances.
        share: Share of the instances that were busy, 0.0 to 1.0.
        waiting: Average number of waiting batches: waiting requests divided by the batch size.
        batch_s: Average duration of a batch.
        queue_ms: Average time of a request in Triton's queue.
        compute_ms: Average time to compute a request.
    """

    busy: float
    share: float
    waiting: float
    batch_s: float
    queue_ms: float
    compute_ms: float


def stats_of(samples: Sequence[Sample]) -> SampleStats:
    """Compute the key figures of one or more samples."""
    elapsed = sum(one.elapsed_s for one in samples) or 1.0
    work = sum(one.busy * one.elapsed_s for one in samples)
    places = sum(one.instances * one.elapsed_s for one in samples)
    requests = sum(one.requests for one in samples)
    batches = sum(one.batches for one in samples)
    waiting = sum(one.waiting * one.elapsed_s for one in samples) / elapsed
    per_batch = max(1.0, requests / batches) if batches else 1.0
    return SampleStats(
        busy=work / elapsed,
        share=work / places if places else 0.0,
        waiting=waiting / per_batch,
        batch_s=work / max(1, batches),
        queue_ms=1000 * sum(one.queued_s for one in samples) / max(1, requests),
        compute_ms=1000 * sum(one.computed_s for one in samples) / max(1, requests),
    )


class Window:
    """The recent samples of one model, and when it last changed or became idle.

    Args:
        span_s: How long samples are kept, in seconds.

    Attributes:
        changed_at: When the number of instances last changed. Earlier samples say little about the current load.
        idle_since: Start of the current period without requests; None if the last sample had requests.
    """

    def __init__(self, span_s: float) -> None:
        self.changed_at = float("-inf")
        self.idle_since: float | None = None
        self._span_s = span_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Add a sample, and drop samples that are too old."""
        if not sample.idle:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = sample.at - sample.elapsed_s
        self._samples.append(sample)
        while self._samples[0].at <= sample.at - self._span_s:
            self._samples.popleft()

    def since(self, at: float) -> list[Sample]:
        """Return the samples taken after `at`, oldest first."""
        newest_first: list[Sample] = []
        for sample in reversed(self._samples):
            if sample.at - sample.elapsed_s / 2 < at:
                break
            newest_first.append(sample)
        return newest_first[::-1]


# ── Fair sharing of a machine that does not have resources for all instances that models want ──

#: Share of all CPUs. A model whose instances keep this much busy gains nothing from more instances.
_FULL = 0.95
#: Share of all CPUs by which an existing instance may exceed the rest, as measurements fluctuate.
_KEEP_TOLERANCE = 0.1
#: Tolerance for rounding errors in sums of fractions.
_SUM_ROUNDING = 1e-6


class Cost(NamedTuple):
    """The resources that one instance of a model uses, as measured; 0 while unknown.

    Attributes:
        cpus: CPUs that it uses while it is busy.
        memory: Bytes of private host memory.
    """

    cpus: float = 0.0
    memory: int = 0


class Want(NamedTuple):
    """The current and the desired number of instances of a model, and the data needed to divide the machine's
    resources.

    Attributes:
        model: Name of the model.
        now: Current number of instances.
        wanted: Number of instances that its load needs.
        least: Minimum number of instances.
        load: Number of instances that its load keeps busy.
        weight: Its share relative to a model of weight 1.
        cost: Resources of each instance.
    """

    model: str
    now: int
    wanted: int
    least: int = 1
    load: float = 0.0
    weight: float = 1.0
    cost: Cost = Cost()

    def cpus(self, instances: int) -> float:
        """Return how many CPUs `instances` instances use. Idle instances use none."""
        return min(float(instances), self.load) * self.cost.cpus


class MachineResources(NamedTuple):
    """Resources of a machine, or of the part of it that this process may use.

    Attributes:
        cpus: Number of CPUs, including busy ones, since processes share them.
        memory: Bytes of host memory that are free now; None if unknown.
    """

    cpus: float
    memory: int | None = None


class Grant(NamedTuple):
    """How many instances a model gets. `limit` describes the resource that prevents more; "" if no resource does."""

    instances: int
    limit: str = ""


def share_out(wants: Sequence[Want], machine: MachineResources) -> dict[str, Grant]:
    """Return the grant of each model.

    A model loses the instances that it no longer wants, and those that another model needs for its fair share. It loses
    none just because other processes fill the machine.
    """
    left = _FreeResources(wants, machine)
    current = {want.model: want.now for want in wants}
    granted = {want.model: min(want.least, want.wanted) for want in wants}
    limits = dict.fromkeys(granted, "")
    for want in wants:
        for instance in range(granted[want.model]):
            left.take(want, instance)
    unsatisfied = {want.model: want for want in wants if granted[want.model] < want.wanted}
    while unsatisfied:
        want = min(
            unsatisfied.values(),
            key=lambda one: (
                granted[one.model] / one.weight,
                granted[one.model] >= current[one.model],
                one.model,
            ),
        )
        name = want.model
        limits[name] = left.lacks(want, granted[name])
        if limits[name]:
            del unsatisfied[name]
            continue
        left.take(want, granted[name])
        granted[name] += 1
        if granted[name] == want.wanted:
            del unsatisfied[name]
    return {name: Grant(count, limits[name]) for name, count in granted.items()}


class _FreeResources:
    """The resources of a machine that remain while instances are being allocated.

    The resources of running instances are allocated again. With other processes on the machine, the sum may exceed its
    resources: in that case, running instances stay, since stopping them would gain nothing, but no instance is added.
    """

    def __init__(self, wants: Sequence[Want], machine: MachineResources) -> None:
        self._all_cpus = self._cpus = machine.cpus
        self._memory: int | None = None
        if machine.memory is not None:
            self._memory = max(0, machine.memory) + sum(one.now * one.cost.memory for one in wants)

    def take(self, want: Want, instance: int) -> None:
        """Allocate resources for one more instance of a model."""
        self._cpus -= want.cpus(instance + 1) - want.cpus(instance)
        if self._memory is not None:
            self._memory -= want.cost.memory

    def lacks(self, want: Want, instance: int) -> str:
        """Describe which resource is too scarce for one more instance of a model; "" if there is enough of each."""
        cost = want.cost
        more = want.cpus(instance + 1) - want.cpus(instance)
        exists = instance < want.now
        full = not exists and instance * cost.cpus >= self._all_cpus * _FULL
        spare = self._all_cpus * (_KEEP_TOLERANCE if exists else 0)
        if full or more > self._cpus + spare + _SUM_ROUNDING:
            return (
                f"CPUs: an instance uses {cost.cpus:.1f}, and {max(0.0, self._cpus):.1f} of {self._all_cpus:g} "
                "are left"
            )
        if self._memory is not None and cost.memory > self._memory:
            return f"memory: an instance takes {_size(cost.memory)}, and {_size(self._memory)} are left"
        return ""


def _size(count: int) -> str:
    return f"{max(0, count) / (1 << 20):,.0f} MiB"
