"""The autoscaling policy: how many instances a model should have, given its observed load. A pure function.

    up     the load over `up_after_s`, and that of the newest sample, need more instances than there are
    down   no period of `up_after_s` within `down_after_s` would have needed all current instances
    zero   there was no request for `idle_after_s`

The load is measured in instances: the busy ones, plus those needed to drain the queue within `up_after_s`. The right
number of instances is the load divided by `target`. Scaling down leaves some slack below the target, so that the same
load does not scale the model up again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytriton._protocol.messages import Autoscale
from pytriton.dispatcher.elastic.samples import Sample, SampleStats, Window, figures

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
    """How many instances a model should have, and why.

    Attributes:
        instances: Number of instances.
        why: "steady", "load", "saturated", "quiet", "idle" or "bounds".
        load: Number of instances that the load would keep permanently busy.
        seen: The figures behind the decision.
    """

    instances: int
    why: str
    load: float
    seen: SampleStats

    def text(self, now: int) -> str:
        """Describe the decision; `now` is the current number of instances."""
        seen = self.seen
        figures = (
            f"load {self.load:.1f} instances, busy {seen.share:.0%}, {seen.waiting:.1f} batches wait, queue "
            f"{seen.queue_ms:.1f} ms, compute {seen.compute_ms:.1f} ms"
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
    seen = figures(samples)
    load = _load(rules, seen)
    wanted, why = _whole(load / rules.target), "load"
    if seen.share >= _SATURATED and seen.waiting >= now and wanted < now * _GROWTH:
        wanted, why = now * _GROWTH, "saturated"
    # After a burst is over, the newest sample shows no load.
    if wanted <= now or _load(rules, figures([newest])) <= now * rules.target:
        return None
    return Decision(min(wanted, rules.most), why, load, seen)


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
    wanted = max(_whole(peak / (rules.target * _SLACK)), least)
    if wanted >= now:
        return None
    return Decision(wanted, "quiet", peak, figures(samples))


def _whole(instances: float) -> int:
    return math.ceil(instances - _ROUNDING)


def _load(rules: Autoscale, seen: SampleStats) -> float:
    """Return the instances needed for the current load plus draining the queue on time.

    Waiting batches need at most one instance each, however long they take.
    """
    return seen.busy + seen.waiting * min(1.0, seen.batch_s / rules.up_after_s)


def _loads(rules: Autoscale, samples: Sequence[Sample]) -> Iterator[float]:
    """Yield the load of each consecutive period of `up_after_s`."""
    stretch: list[Sample] = []
    for sample in samples:
        stretch.append(sample)
        if _covers(stretch, rules.up_after_s):
            yield _load(rules, figures(stretch))
            stretch = []
    if stretch:
        yield _load(rules, figures(stretch))


def _covers(samples: Sequence[Sample], span_s: float) -> bool:
    return sum(one.elapsed_s for one in samples) >= span_s * _COVERED


def _decided(instances: int, why: str, rules: Autoscale, samples: Sequence[Sample]) -> Decision:
    seen = figures(samples)
    return Decision(instances, why, _load(rules, seen), seen)
