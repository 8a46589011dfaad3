"""A short run of scripts/tools/chaos; the figures of a long one are in docs/concepts/reliability.md."""

from __future__ import annotations

import pytest
from chaos.faults import FAULTS as ALL
from chaos.guarantees import violated_guarantees
from chaos.run import run
from chaos.table import table

FAULTS = ["kill-worker", "kill-all-workers", "stop-worker", "scale", "hang-worker", "kill-server"]


@pytest.mark.timeout(600)  # each of the six may take 90 s to be mended
def test_no_response_is_wrong_or_lost_and_nothing_leaks() -> None:
    """Each fault occurs once under load; those that must not fail a request fail none."""
    outcome = run(seed=3, seconds=0, names=FAULTS, clients=4)
    assert violated_guarantees(outcome, ALL) == [], table(outcome)
    assert {
        name: one.injected for name, one in outcome.ledger.accounts.items() if one.injected
    } == (dict.fromkeys(FAULTS, 1))
    assert all(outcome.ledger.accounts[name].right >= 60 for name in FAULTS)
