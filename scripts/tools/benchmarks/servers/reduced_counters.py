"""Turns off the counters of workers, to measure what they cost. Workers only record when a call begins and ends."""

from __future__ import annotations

import time
from typing import Any

from pytriton._protocol.lanes import stats_page
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker import user_metrics


def install() -> None:
    """Turn off the counters of this process. Call this before it serves."""
    WorkerStatsPage.begin = _begin  # type: ignore[method-assign]
    WorkerStatsPage.end = _end  # type: ignore[method-assign]
    WorkerStatsPage.merged = _merged  # type: ignore[method-assign]
    WorkerStatsPage.responded = _responded  # type: ignore[method-assign]
    user_metrics._LIBRARY = "(none)"


def _begin(self: WorkerStatsPage, requests: int, rows: int = 0, taken_ns: int = 0) -> int:
    words = self._words
    words[stats_page._REQUESTS] += requests
    now = time.monotonic_ns()
    words[stats_page._BEGUN_AT] = now
    words[stats_page._BEGUN] += 1
    return now


def _end(self: WorkerStatsPage, begun_ns: int = 0, parts: Any = (), answers: Any = ()) -> int:
    words = self._words
    answered: int = words[stats_page._ANSWERED] + 1
    words[stats_page._ANSWERED] = answered
    words[stats_page._BEGUN_AT] = 0
    return answered


def _merged(self: WorkerStatsPage, taken_ns: int) -> None:
    pass


def _responded(self: WorkerStatsPage, since_ns: int, *, first: bool) -> int:
    return since_ns
