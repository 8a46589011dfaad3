"""Models whose requests fail, as `explain` says it."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.dispatcher.telemetry.events.failure_rate import Outcomes, failing

NOW = 1_000_000.0
CASES: dict[str, tuple[Outcomes, str, str, str]] = {
    "all": (
        Outcomes(300, 118, {"callable": 118, "input": 0}, NOW - 2, "ValueError"),
        "degraded",
        "all 118 requests of the last 5 minutes failed: the callable raised; the last one 2 s ago: ValueError",
        "pytriton-daemon logs m",
    ),
    "some begun before": (
        Outcomes(300, 10, {"callable": 11}),
        "degraded",
        "all 11 requests of the last 5 minutes failed: the callable raised",
        "",
    ),
    "one": (
        Outcomes(12.4, 1, {"result": 1}, NOW, "TypeError"),
        "degraded",
        "the only request of the last 12 s failed: the callable's results were invalid; the last one 0 s ago: TypeError",
        "declared outputs",
    ),
    "half": (
        Outcomes(60, 100, {"callable": 30, "lost": 20}),
        "degraded",
        "50 of 100 requests (50%) of the last 60 s failed: 30 the callable raised, 20 their worker exited",
        "",
    ),
    "few": (
        Outcomes(300, 100, {"input": 1}, NOW - 100),
        "notice",
        "1 of 100 requests (1%) of the last 5 minutes failed: inputs were invalid; the last one 100 s ago",
        "match the declared ones",
    ),
    "a package is missing": (
        Outcomes(300, 5, {"callable": 5}, NOW, "ModuleNotFoundError"),
        "degraded",
        "all 5 requests of the last 5 minutes failed: the callable raised; the last one 0 s ago: ModuleNotFoundError",
        "A package is missing",
    ),
    "the last one known is older": (
        Outcomes(60, 5, {"hung": 5}, NOW - 61, "ValueError"),
        "degraded",
        "all 5 requests of the last 60 s failed: their worker hung",
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_said(name: str) -> None:
    outcomes, severity, text, advice = CASES[name]
    (found,) = failing("m", outcomes, NOW)
    assert (found.severity, found.about, found.text) == (severity, "failing", text)
    assert advice in found.advice


@pytest.mark.parametrize(
    "outcomes",
    [Outcomes(300), Outcomes(300, 50, {"callable": 0}), Outcomes(300, 1000, {"callable": 9})],
)
def test_rare_failures_are_not_reported(outcomes: Any) -> None:
    assert list(failing("m", outcomes, NOW)) == []
