"""A short run of `scripts/tools/fuzz` with a real daemon; docs/concepts/reliability.md has a long one's results."""

from __future__ import annotations

import os

import pytest
from fuzz.runner import NAMES, fuzz, table
from fuzz.values import Maker, packed

from pytriton._protocol import messages

CASES = int(os.environ.get("PYTRITON_FUZZ_CASES", "4000"))
SEED = int(os.environ.get("PYTRITON_FUZZ_SEED", "1"))


@pytest.mark.timeout(400 + CASES // 100)
def test_no_message_does_harm() -> None:
    """Every target gets its share of cases, accepts some, refuses some, and remains usable; nothing is left behind."""
    rows = fuzz(SEED, CASES)
    print(table(rows))
    assert [row.finding for row in rows if row.finding] == []
    assert {row.name for row in rows} == set(NAMES)
    assert sum(row.cases for row in rows) == pytest.approx(CASES, abs=len(rows))
    assert [row.name for row in rows if not (row.tally.accepted and row.tally.refused)] == []


def test_a_case_is_reproducible_from_its_number() -> None:
    """Without that, a finding could not be investigated."""

    def case(seed: int, number: int) -> bytes:
        return packed(Maker(seed, "messages", number).of(messages.AnyMessage))

    assert [case(1, n) for n in range(50)] == [case(1, n) for n in range(50)]
    assert [case(1, n) for n in range(50)] != [case(2, n) for n in range(50)]
