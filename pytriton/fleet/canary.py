"""The first step of a rollout: how much gets the new version, for how long it is watched, and what is too bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from pytriton._protocol.wording import closest_keywords
from pytriton.exceptions import PyTritonBadParameterError


@closest_keywords
@dataclass(frozen=True)
class Canary:
    """A new version is served to a share of the requests first, and goes by itself when it does worse.

    Args:
        share: of the nodes that get it first, at least one; and of the requests that balancers send there
        watch_s: seconds for which it is watched before the other nodes get it
        failures: how much more of its requests may fail than of the old version's, 0 to 1
        slower: how many times as long as the old version's its calls may take, in the second half of the watch: their
            mean, and their 95th percentile
        calls: how many of both there have to be then

    Raises:
        PyTritonBadParameterError: a value is unusable

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
                f"canary: {name}={getattr(self, name)!r}: it takes {what}"
            )


def canary_of(given: Union[float, Canary, None], *, replace: bool) -> Union[Canary, None]:
    """Return what `canary=` says: a share, or more about it.

    Raises:
        PyTritonBadParameterError: it says nothing of that kind, or goes without `replace`
    """
    if given is None:
        return None
    if not replace:
        raise PyTritonBadParameterError(
            "canary goes with replace=True: a new version is compared with the one that it is to replace"
        )
    return given if isinstance(given, Canary) else Canary(given)


def waves_of(nodes: Sequence[str], share: float) -> list[list[str]]:
    """Return who gets a new version one after the other: the share first, then twice as many each time.

    Raises:
        PyTritonBadParameterError: there is nothing to compare with
    """
    if len(nodes) < 2:
        raise PyTritonBadParameterError(
            "canary needs two nodes at least: the new version on one is compared with the old one on another"
        )
    size = max(1, int(len(nodes) * share + 1e-9))
    waves, left = [], list(nodes)
    while left:
        waves.append(left[:size])
        left, size = left[size:], size * 2
    return waves


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
