"""Counters of workers turned off, to measure what they cost: a worker only shows that a call begins and ends."""

from __future__ import annotations

import time
from typing import Any

from pytriton.ipc.lanes import gauge
from pytriton.ipc.lanes.gauge import Gauge
from pytriton.worker import user_metrics


def install() -> None:
    """Turn them off in this process; to be called before it serves."""
    Gauge.begin = _begin  # type: ignore[method-assign]
    Gauge.end = _end  # type: ignore[method-assign]
    Gauge.merged = _merged  # type: ignore[method-assign]
    Gauge.responded = _responded  # type: ignore[method-assign]
    user_metrics._LIBRARY = "(none)"


def _begin(self: Gauge, requests: int, rows: int = 0, taken_ns: int = 0) -> int:
    words = self._words
    words[gauge._REQUESTS] += requests
    now = time.monotonic_ns()
    words[gauge._BEGUN_AT] = now
    words[gauge._BEGUN] += 1
    return now


def _end(self: Gauge, begun_ns: int = 0, parts: Any = (), answers: Any = ()) -> int:
    words = self._words
    answered: int = words[gauge._ANSWERED] + 1
    words[gauge._ANSWERED] = answered
    words[gauge._BEGUN_AT] = 0
    return answered


def _merged(self: Gauge, taken_ns: int) -> None:
    pass


def _responded(self: Gauge, since_ns: int, *, first: bool) -> int:
    return since_ns
