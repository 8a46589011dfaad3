"""The judgement of a new version by what nodes count: its requests and calls against the old one's in the same time.

Pure. Failures count where chance does not explain them (the lower bound of Wilson's interval): three of three are
enough, three of ten thousand are not. Durations count where the mean and the 95th percentile are both too long: the
mean alone may be one slow first call, the percentile alone the edge of a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from itertools import zip_longest
from typing import NamedTuple, Optional

from pytriton._protocol import messages
from pytriton._protocol.lanes.histograms import quantile
from pytriton.fleet.canary import Canary

#: Fewer may be requests that no version could have answered.
_FEWEST_FAILURES = 3
#: Standard deviations: chance takes a version to be bad once in some forty times that it looks so.
_SURE = 2.0
_SLOW_SHARE = 0.95
#: A smaller difference is the machine's, not the version's: 0.17 and 0.23 ms were seen of the same callable.
_LEAST_S = 0.0005


class Seen(NamedTuple):
    """The counters of a model, or what they have grown by.

    Attributes:
        requests: that were begun
        failed: of these
        busy_s: how long calls took, together
        calls: how many, by the buckets of `pytriton._protocol.lanes.histograms`
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
    failed = max(0, now.failed - before.failed)
    return Seen(
        # What was begun before may have failed since.
        max(now.requests - before.requests, failed),
        failed,
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


def failing(new: Seen, old: Seen, canary: Canary) -> str:
    """Return that more of a new version's requests fail; nothing where that is not so, or where chance explains it."""
    usual = old.failed / old.requests if old.requests else 0.0
    if new.failed < _FEWEST_FAILURES:
        return ""
    if _at_least(new.failed, new.requests) <= usual + canary.failures:
        return ""
    before = f"of the old version's, {old.failed} of {old.requests}"
    return f"{new.failed} of its {new.requests} requests failed; {before}"


def slower(new: Seen, old: Seen, canary: Canary) -> str:
    """Return that a new version's calls take longer; nothing where they do not, or where there were too few."""
    if min(sum(new.calls), sum(old.calls)) < canary.calls:
        return ""
    slow, usually = quantile(_SLOW_SHARE, new.calls), quantile(_SLOW_SHARE, old.calls)
    assert slow is not None
    assert usually is not None
    if new.mean_s <= canary.slower * old.mean_s or slow <= canary.slower * usually:
        return ""
    if new.mean_s - old.mean_s < _LEAST_S:
        return ""
    return (
        f"its calls take {new.mean_s * 1e3:.3g} ms (95 of 100 at most {slow * 1e3:.3g} ms); the old version's "
        f"{old.mean_s * 1e3:.3g} ms ({usually * 1e3:.3g} ms)"
    )


class Judgement(NamedTuple):
    """The judgement at one moment of a watch.

    Attributes:
        fault: why the new version is to go; "": it may stay
        told: what was seen, for people
        over: the watch has ended
    """

    fault: str
    told: str
    over: bool


class Watch:
    """A new version beside the old one, for as long as the canary says.

    Failures count at once. How long calls take is judged at the end, by the second half: a worker that has just begun
    is slow at first.

    Args:
        canary: says what is too bad
        begun: the time in seconds
        before: what each node has counted by then
    """

    def __init__(self, canary: Canary, begun: float, before: Mapping[str, Seen]) -> None:
        self._canary = canary
        self._begun = begun
        self._before = dict(before)
        self._halfway: Optional[dict[str, Seen]] = None

    def judge(self, now: float, seen: Mapping[str, Seen], fresh: Container[str]) -> Judgement:
        """Return the judgement.

        Args:
            now: the time
            seen: what each node that answers has counted by now
            fresh: nodes that have the new version
        """
        canary, passed = self._canary, now - self._begun
        if self._halfway is None and passed >= canary.watch_s / 2:
            self._halfway = {}
        for node, one in seen.items():  # one that was silent at first counts from its first figures
            self._before.setdefault(node, one)
            if self._halfway is not None:
                self._halfway.setdefault(node, one)
        new, old = _grown(seen, self._before, fresh)
        over = passed >= canary.watch_s
        fault = failing(new, old, canary)
        if over and not fault and self._halfway is not None:
            fault = slower(*_grown(seen, self._halfway, fresh), canary)
        told = f"{in_words(new, old)} ({int(passed)} of {canary.watch_s:g} s)"
        return Judgement(fault, told, over)


def _grown(
    now: Mapping[str, Seen], before: Mapping[str, Seen], fresh: Container[str]
) -> tuple[Seen, Seen]:
    """Return what was seen since of the new version, and of the old one."""
    new, old = (
        together(since(one, before[node]) for node, one in now.items() if (node in fresh) is is_new)
        for is_new in (True, False)
    )
    return new, old


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
