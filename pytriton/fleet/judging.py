"""The judgement of a new version by what nodes count: its requests and calls against the old one's in the same time.

Pure. Failures count where chance does not explain them (the lower bound of Wilson's interval): three of three are
enough, three of ten thousand are not. Durations count where the mean and the 95th percentile are both too long: the
mean alone may be one slow first call, the percentile alone the edge of a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from pytriton.fleet.canary import Canary
from pytriton.ipc import messages
from pytriton.ipc.lanes.histograms import quantile

#: Fewer may be requests that no version could have answered.
_FEWEST_FAILURES = 3
#: Standard deviations: chance takes a version to be bad once in some forty times that it looks so.
_SURE = 2.0
_SLOW_SHARE = 0.95


class Seen(NamedTuple):
    """What was seen of a model: counters, or what they have grown by.

    Attributes:
        requests: that were begun
        failed: of these
        busy_s: how long calls took, together
        calls: how many, by the buckets of `pytriton.ipc.lanes.histograms`
    """

    requests: int = 0
    failed: int = 0
    busy_s: float = 0.0
    calls: tuple[int, ...] = ()

    @property
    def mean_s(self) -> float:
        """How long a call took."""
        count = sum(self.calls)
        return self.busy_s / count if count else 0.0


def seen_of(figures: messages.Figures, model: str) -> Seen:
    """Return what a node has counted of a model; nothing where it has none."""
    for one in figures.models:
        if one.name == model:
            work = one.work
            failed = sum(work.failed.values())
            # One that was lost before its call has failed, too, and was not begun.
            return Seen(
                max(work.requests, failed), failed, work.call_s.sum, tuple(work.call_s.buckets)
            )
    return Seen()


def since(now: Seen, before: Seen) -> Seen:
    """Return what counters have grown by; a daemon that has started meanwhile has begun at 0."""
    if now.requests < before.requests or sum(now.calls) < sum(before.calls):
        return now
    calls = (max(0, a - b) for a, b in zip_longest(now.calls, before.calls, fillvalue=0))
    return Seen(
        now.requests - before.requests,
        max(0, now.failed - before.failed),
        max(0.0, now.busy_s - before.busy_s),
        tuple(calls),
    )


def together(several: Iterable[Seen]) -> Seen:
    """Return the sum of what several nodes have seen."""
    found = Seen()
    for one in several:
        calls = (a + b for a, b in zip_longest(found.calls, one.calls, fillvalue=0))
        found = Seen(
            found.requests + one.requests,
            found.failed + one.failed,
            found.busy_s + one.busy_s,
            tuple(calls),
        )
    return found


def fault(new: Seen, old: Seen, canary: Canary) -> str:
    """Return why a new version is worse than the old one; nothing where it is not, or where too little was seen."""
    usual = old.failed / old.requests if old.requests else 0.0
    if (
        new.failed >= _FEWEST_FAILURES
        and _at_least(new.failed, new.requests) > usual + canary.failures
    ):
        before = f"of the old version's, {old.failed} of {old.requests}"
        return f"{new.failed} of its {new.requests} requests failed; {before}"
    if min(sum(new.calls), sum(old.calls)) < canary.calls:
        return ""
    slow, usually = quantile(_SLOW_SHARE, new.calls), quantile(_SLOW_SHARE, old.calls)
    assert slow is not None
    assert usually is not None
    if new.mean_s > canary.slower * old.mean_s and slow > canary.slower * usually:
        return (
            f"its calls take {new.mean_s * 1e3:.3g} ms (95 of 100 at most {slow * 1e3:.3g} ms); the old version's "
            f"{old.mean_s * 1e3:.3g} ms ({usually * 1e3:.3g} ms)"
        )
    return ""


def in_words(new: Seen, old: Seen) -> str:
    """Return both in a line."""
    return "; ".join(
        f"{name}: {one.requests} requests, {one.failed} failed, {one.mean_s * 1e3:.3g} ms a call"
        for name, one in (("new", new), ("old", old))
    )


def _at_least(failed: int, requests: int) -> float:
    """Return the share of requests that fail, as low as what was seen allows."""
    share, square = failed / requests, _SURE * _SURE
    middle = share + square / (2 * requests)
    spread = _SURE * math.sqrt(share * (1 - share) / requests + square / (4 * requests * requests))
    return (middle - spread) / (1 + square / requests)
