"""Canary rollouts: their settings, and the comparison of the new version's counters with the old version's.

The comparison consists of pure functions. The failure rate is too high if the lower bound of its Wilson score
interval is: three failures of three requests suffice, three of ten thousand do not. Calls are too slow if both their
mean duration and the 95th percentile are too high: a slow first call may distort the mean, and the edge of a bucket
the percentile.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, Optional, Union

from pytriton._protocol import messages
from pytriton._protocol.arguments import closest_keywords
from pytriton._protocol.lanes.histograms import quantile
from pytriton.exceptions import PyTritonBadParameterError

#: Minimum number of failures: fewer may be caused by the requests themselves.
_FEWEST_FAILURES = 3
#: Number of standard deviations: about one in forty checks rejects a good version by chance.
_SURE = 2.0
_SLOW_SHARE = 0.95
#: Smaller differences are noise: 0.17 and 0.23 ms were observed for the same callable.
_MIN_WATCH_S = 0.0005


@closest_keywords
@dataclass(frozen=True)
class Canary:
    """Settings of a canary rollout.

    Args:
        share: share of the nodes that get the new version first (at least one node), and of the requests that
            balancers send to them; above 0 and below 1
        watch_s: how long the new version is watched before the other nodes get it, in seconds
        failures: by how much the failure rate may exceed the old version's, from 0 to 1
        slower: maximum ratio of call durations to the old version's. The new version is too slow if both its mean
            duration and its 95th percentile exceed this ratio in the second half of the watch
        calls: minimum number of calls of each version for the comparison of durations

    Raises:
        PyTritonBadParameterError: a value is invalid

    Example:
        >>> Canary(0.1, watch_s=300).share
        0.1
    """

    share: float = 0.1
    watch_s: float = 60.0
    failures: float = 0.01
    slower: float = 1.5
    calls: int = 50

    def __post_init__(self) -> None:
        self._check("share", 0 < _number(self.share) < 1, "above 0 and below 1, such as 0.1")
        self._check("watch_s", 0 < _number(self.watch_s) < math.inf, "a number of seconds above 0")
        self._check("failures", 0 <= _number(self.failures) < 1, "0 to 1, such as 0.01")
        self._check("slower", 1 <= _number(self.slower) < math.inf, "at least 1, such as 1.5")
        self._check("calls", isinstance(self.calls, int) and self.calls > 0, "a positive integer")

    def _check(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise PyTritonBadParameterError(
                f"canary: {name}={getattr(self, name)!r}: must be {what}"
            )


def canary_of(given: Union[float, Canary, None], *, replace: bool) -> Union[Canary, None]:
    """Return the canary settings for the argument `canary=`, which is a share or a `Canary`.

    Raises:
        PyTritonBadParameterError: the value is invalid, or used without `replace`
    """
    if given is None:
        return None
    if not replace:
        raise PyTritonBadParameterError(
            "canary requires replace=True, because a new version is compared with the one that it replaces"
        )
    return given if isinstance(given, Canary) else Canary(given)


def plan_waves(nodes: Sequence[str], share: float) -> list[list[str]]:
    """Split the nodes into groups that get a new version one after the other: a `share` of them first, then larger
    groups.

    Raises:
        PyTritonBadParameterError: there is only one node, so there is nothing to compare the new version with
    """
    if len(nodes) < 2:
        raise PyTritonBadParameterError(
            "canary requires at least two nodes, because the new version on one node is compared with the old "
            "version on another"
        )
    size = max(1, int(len(nodes) * share + 1e-9))
    waves, left = [], list(nodes)
    while left:
        waves.append(left[:size])
        left, size = left[size:], size * 2
    return waves


class CanaryCounters(NamedTuple):
    """A model's counters, or how much they increased over an interval.

    Attributes:
        requests: number of started requests
        failed: number of failed requests
        busy_s: total duration of all calls, in seconds
        calls: number of calls in each bucket of `pytriton._protocol.lanes.histograms`
    """

    requests: int = 0
    failed: int = 0
    busy_s: float = 0.0
    calls: tuple[int, ...] = ()

    @property
    def mean_s(self) -> float:
        """Mean duration of a call, in seconds."""
        count = sum(self.calls)
        return self.busy_s / count if count else 0.0


def counters_of(metrics: messages.MetricsSnapshot, model: str) -> CanaryCounters:
    """Return a model's counters from a node's metrics; zeros if the node does not serve it."""
    for one in metrics.models:
        if one.name == model:
            work = one.work
            failed = sum(work.failed.values())
            # Requests that were lost before their call have failed, too, but do not count as started.
            return CanaryCounters(
                max(work.requests, failed), failed, work.call_s.sum, tuple(work.call_s.buckets)
            )
    return CanaryCounters()


def increase_since(now: CanaryCounters, before: CanaryCounters) -> CanaryCounters:
    """Return how much the counters have increased since `before`.

    After a restart of the daemon, the counters have restarted at 0.
    """
    if now.requests < before.requests or sum(now.calls) < sum(before.calls):
        return now
    calls = (max(0, a - b) for a, b in zip_longest(now.calls, before.calls, fillvalue=0))
    failed = max(0, now.failed - before.failed)
    return CanaryCounters(
        # Requests that were started before may have failed in the meantime.
        max(now.requests - before.requests, failed),
        failed,
        max(0.0, now.busy_s - before.busy_s),
        tuple(calls),
    )


def total_of(several: Iterable[CanaryCounters]) -> CanaryCounters:
    """Return the sum of several nodes' counters."""
    found = CanaryCounters()
    for one in several:
        calls = (a + b for a, b in zip_longest(found.calls, one.calls, fillvalue=0))
        found = CanaryCounters(
            found.requests + one.requests,
            found.failed + one.failed,
            found.busy_s + one.busy_s,
            tuple(calls),
        )
    return found


def failure_fault(new: CanaryCounters, old: CanaryCounters, canary: Canary) -> str:
    """Return a message if the new version's failure rate is significantly higher, otherwise ""."""
    usual = old.failed / old.requests if old.requests else 0.0
    if new.failed < _FEWEST_FAILURES:
        return ""
    if _failure_rate_lower_bound(new.failed, new.requests) <= usual + canary.failures:
        return ""
    before = f"of the old version's requests, {old.failed} of {old.requests} failed"
    return f"{new.failed} of its {new.requests} requests failed; {before}"


def duration_fault(new: CanaryCounters, old: CanaryCounters, canary: Canary) -> str:
    """Return a message if the new version's calls take too long; "" if not, or if there are too few calls to tell."""
    if min(sum(new.calls), sum(old.calls)) < canary.calls:
        return ""
    slow, usually = quantile(_SLOW_SHARE, new.calls), quantile(_SLOW_SHARE, old.calls)
    assert slow is not None
    assert usually is not None
    if new.mean_s <= canary.slower * old.mean_s or slow <= canary.slower * usually:
        return ""
    if new.mean_s - old.mean_s < _MIN_WATCH_S:
        return ""
    return (
        f"its calls take {new.mean_s * 1e3:.3g} ms on average (95th percentile {slow * 1e3:.3g} ms); those of "
        f"the old version take {old.mean_s * 1e3:.3g} ms (95th percentile {usually * 1e3:.3g} ms)"
    )


class Judgement(NamedTuple):
    """The result of one evaluation of a new version.

    Attributes:
        fault: reason to roll the new version back; empty if there is none
        summary: the observations, for display
        over: whether the watch has ended
    """

    fault: str
    summary: str
    over: bool


class CanaryWatch:
    """Compares a new version with the old one, for the canary's duration.

    Failures are compared at each check. Call durations are compared at the end, for the second half of the watch,
    because a new worker is slow at first.

    Args:
        canary: the canary's settings
        begun: start time in seconds
        before: each node's counters at the start
    """

    def __init__(self, canary: Canary, begun: float, before: Mapping[str, CanaryCounters]) -> None:
        self._canary = canary
        self._begun = begun
        self._before = dict(before)
        self._halfway: Optional[dict[str, CanaryCounters]] = None

    def judge(
        self, now: float, seen: Mapping[str, CanaryCounters], fresh: Container[str]
    ) -> Judgement:
        """Evaluate the new version.

        Args:
            now: current time in seconds
            seen: current counters of each node that answered
            fresh: nodes with the new version
        """
        canary, passed = self._canary, now - self._begun
        if self._halfway is None and passed >= canary.watch_s / 2:
            self._halfway = {}
        for node, one in seen.items():
            # If a node did not answer at first, its first answer is the baseline.
            self._before.setdefault(node, one)
            if self._halfway is not None:
                self._halfway.setdefault(node, one)
        new, old = _increases(seen, self._before, fresh)
        over = passed >= canary.watch_s
        fault = failure_fault(new, old, canary)
        if over and not fault and self._halfway is not None:
            fault = duration_fault(*_increases(seen, self._halfway, fresh), canary)
        summary = f"{describe(new, old)} ({int(passed)} of {canary.watch_s:g} s)"
        return Judgement(fault, summary, over)


def _increases(
    now: Mapping[str, CanaryCounters], before: Mapping[str, CanaryCounters], fresh: Container[str]
) -> tuple[CanaryCounters, CanaryCounters]:
    """Return how much the counters of the new and of the old version have increased since `before`."""
    new, old = (
        total_of(
            increase_since(one, before[node])
            for node, one in now.items()
            if (node in fresh) is is_new
        )
        for is_new in (True, False)
    )
    return new, old


def describe(new: CanaryCounters, old: CanaryCounters) -> str:
    """Return a summary of both versions' counters in one line."""
    return "; ".join(
        f"{name}: {one.requests} requests, {one.failed} failed, {one.mean_s * 1e3:.3g} ms a call"
        for name, one in (("new", new), ("old", old))
    )


def _failure_rate_lower_bound(failed: int, requests: int) -> float:
    """Return the lower bound of the failure rate's Wilson score interval."""
    share, square = failed / requests, _SURE * _SURE
    middle = share + square / (2 * requests)
    spread = _SURE * math.sqrt(share * (1 - share) / requests + square / (4 * requests * requests))
    return (middle - spread) / (1 + square / requests)


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
