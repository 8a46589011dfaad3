"""When a worker announces that it should be recycled, and how often."""

from __future__ import annotations

import time

import msgspec
import pytest
from fakes.fake_worker import SPEC

from pytriton._protocol import messages
from pytriton.worker.worker_limits import Allowance


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, set by the test."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_announcement_is_repeated_after_a_while(clock: list[float]) -> None:
    """The first one may have met a daemon during an upgrade."""
    allowance = Allowance(msgspec.structs.replace(SPEC, max_batches=3))
    assert [allowance.exceeded(count) for count in (1, 2)] == [None, None]
    first = allowance.exceeded(3)
    assert first == (
        messages.RecycleReason.MAX_BATCHES,
        "it has answered 3 batches (max_batches=3)",
    )
    assert [allowance.exceeded(count) for count in (4, 5)] == [None, None]
    clock[0] += 11.0
    assert allowance.exceeded(6) == (
        messages.RecycleReason.MAX_BATCHES,
        "it has answered 6 batches (max_batches=3)",
    )
    assert allowance.exceeded(7) is None


def test_without_a_limit_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", None)  # on the way of every batch
    allowance = Allowance(SPEC)
    assert [allowance.exceeded(count) for count in (1, 1_000_000)] == [None, None]
