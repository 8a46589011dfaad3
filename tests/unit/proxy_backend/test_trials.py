"""Which requests of a batch are tried: together first; after a loss each by itself."""

from __future__ import annotations

import pytest

from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend.trials import Trial

RETRY, FAIL = Verdict("retry"), Verdict("fail", "no more")


def test_all_are_tried_at_once_and_answered() -> None:
    trial = Trial(3)
    assert trial.next() == slice(0, 3)
    assert trial.facts() == {"losses": 0, "requests": 3, "in_row": 0}
    assert trial.answered() == 3
    assert trial.next() is None


def test_after_a_loss_each_is_tried_by_itself() -> None:
    trial = Trial(3)
    trial.losses += 1
    assert trial.lost(RETRY)
    tried = []
    while (now := trial.next()) is not None:
        tried.append(now)
        # Each was lost with the others once, and is asked about by itself.
        assert trial.facts() == {"losses": 1, "requests": 1, "in_row": 1}
        trial.answered()
    assert tried == [slice(0, 1), slice(1, 2), slice(2, 3)]


@pytest.mark.parametrize(
    ("poisonous", "in_row"),
    [
        ([True, True, True], [1, 2, 3]),
        ([True, False, True], [1, 2, 1]),
        ([False, False, True], [1, 1, 1]),
    ],
)
def test_losses_one_after_the_other_are_counted(poisonous: list[bool], in_row: list[int]) -> None:
    """`in_row` is what the dispatcher would be told if the request at hand lost a worker, too."""
    trial = Trial(len(poisonous))
    trial.losses += 1
    trial.lost(RETRY)
    told = []
    for poison in poisonous:
        trial.next()
        told.append(trial.facts()["in_row"])
        assert trial.facts()["losses"] == 1  # with the others; not those that the last one lost
        if poison:
            trial.losses += 1
            assert not trial.lost(FAIL)
        trial.answered(failed=poison)
    assert told == in_row
    assert trial.next() is None


def test_a_request_that_is_tried_again_loses_a_second_worker() -> None:
    trial = Trial(2)
    trial.losses += 1
    trial.lost(RETRY)
    trial.next()
    trial.losses += 1
    assert trial.lost(RETRY)
    assert trial.next() == slice(0, 1)
    assert trial.facts() == {"losses": 2, "requests": 1, "in_row": 2}


def test_the_rest_of_a_batch_may_be_answered_with_one() -> None:
    trial = Trial(4)
    trial.losses += 1
    trial.lost(RETRY)
    trial.next()
    trial.answered()
    trial.next()
    assert trial.answered(failed=True, whole=True) == 3
    assert trial.next() is None
