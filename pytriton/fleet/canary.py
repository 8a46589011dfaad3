"""The canary settings of a rollout: share of nodes, duration of the watch, and failure criteria."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from pytriton._protocol.words import closest_keywords
from pytriton.exceptions import PyTritonBadParameterError


@closest_keywords
@dataclass(frozen=True)
class Canary:
    """Serve a new version to a share of the requests first, and roll it back automatically if it performs worse.

    Args:
        share: share of the nodes that get it first, at least one; and of the requests that balancers send there
        watch_s: seconds for which it is watched before the other nodes get it
        failures: by how much its failure rate may exceed the old version's, 0 to 1
        slower: maximum ratio of its call durations to the old version's, in the second half of the watch: applies
            to the mean and to the 95th percentile
        calls: minimum number of calls of both versions for that comparison

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
        self._check("watch_s", 0 < _number(self.watch_s) < math.inf, "seconds above 0")
        self._check("failures", 0 <= _number(self.failures) < 1, "0 to 1, such as 0.01")
        self._check("slower", 1 <= _number(self.slower) < math.inf, "at least 1, such as 1.5")
        self._check(
            "calls", isinstance(self.calls, int) and self.calls > 0, "a whole number from 1"
        )

    def _check(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise PyTritonBadParameterError(
                f"canary: {name}={getattr(self, name)!r}: must be {what}"
            )


def canary_of(given: Union[float, Canary, None], *, replace: bool) -> Union[Canary, None]:
    """Return the canary settings for the argument `canary=`: a share, or a `Canary`.

    Raises:
        PyTritonBadParameterError: the value is invalid, or used without `replace`
    """
    if given is None:
        return None
    if not replace:
        raise PyTritonBadParameterError(
            "canary requires replace=True: a new version is compared with the one that it replaces"
        )
    return given if isinstance(given, Canary) else Canary(given)


def waves_of(nodes: Sequence[str], share: float) -> list[list[str]]:
    """Return the groups of nodes that get a new version in turn: the share first, then twice as many each time.

    Raises:
        PyTritonBadParameterError: there is no other node to compare with
    """
    if len(nodes) < 2:
        raise PyTritonBadParameterError(
            "canary needs at least two nodes: the new version on one is compared with the old one on another"
        )
    size = max(1, int(len(nodes) * share + 1e-9))
    waves, left = [], list(nodes)
    while left:
        waves.append(left[:size])
        left, size = left[size:], size * 2
    return waves


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
