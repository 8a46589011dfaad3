"""How many instances a model should have, by what it was seen to do: a pure function.

    up     the load over `up_after_s`, and that of the newest sample, need more than there are
    down   no stretch of `up_after_s` within `down_after_s` would have needed as many as there are
    zero   nothing was asked of it for `idle_after_s`

The load is counted in instances: those that have work, and those that it would take to work off within `up_after_s`
what waits. A number is right when the load is `target` of it. It goes down to what the load is well below the target
of, so that the same load never has it go up again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytriton._protocol.messages import Autoscale
from pytriton.dispatcher.elastic.samples import Figures, Sample, Window, figures

#: It goes down to a number that the load is at most so much of the target of.
_SLACK = 0.9
#: At least so many of its instances have work all the time: how much more it needs cannot be seen.
_SATURATED = 0.95
#: Of a saturated model it is not known what it needs; it gets so many times what it has, and is looked at again.
_GROWTH = 2
#: A stretch of samples has to be so much of the time that it stands for.
_COVERED = 0.9
#: Of quotients.
_ROUNDING = 1e-9


class Decision(NamedTuple):
    """How many instances a model should have, and why.

    Attributes:
        instances: as many
        why: "steady", "load", "saturated", "quiet", "idle" or "bounds"
        load: the instances that it would keep busy without a pause
        seen: the figures that this follows from
    """

    instances: int
    why: str
    load: float
    seen: Figures

    def text(self, now: int) -> str:
        """Say it in words; `now` is what it has."""
        seen = self.seen
        figures = (
            f"load {self.load:.1f} instances, busy {seen.share:.0%}, {seen.waiting:.1f} batches wait, queue "
            f"{seen.queue_ms:.1f} ms, compute {seen.compute_ms:.1f} ms"
        )
        return f"{now} → {self.instances} instances ({self.why}): {figures}"


def decide(rules: Autoscale, window: Window, now: int) -> Decision:
    """Return how many instances a model should have.

    Args:
        rules: its own
        window: what it was seen to do, with at least one sample
        now: instances that it has
    """
    newest = window.since(float("-inf"))[-1]
    if now < max(rules.least, 1) or now > rules.most:
        bounded = min(max(now, rules.least, 1), rules.most)
        if now > 0 or rules.least > 0:
            return _decided(bounded, "bounds", rules, [newest])
    if now == 0:  # it sleeps; a request wakes it, and no sample
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
    # Of a burst that is over, nothing is left in the newest sample.
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


def _load(rules: Autoscale, seen: Figures) -> float:
    """Return the instances that it takes for the work at hand, and for working off in time what waits.

    What waits needs no more instances than there are batches of it, however long each takes.
    """
    return seen.busy + seen.waiting * min(1.0, seen.batch_s / rules.up_after_s)


def _loads(rules: Autoscale, samples: Sequence[Sample]) -> Iterator[float]:
    """Yield the load of one stretch of `up_after_s` after the other."""
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
