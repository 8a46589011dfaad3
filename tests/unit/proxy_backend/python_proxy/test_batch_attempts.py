"""Which requests of a batch are tried: all together first, and one by one after a loss."""

from __future__ import annotations

import pytest

from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend.python_proxy.model import BatchAttempts

RETRY, FAIL = Verdict("retry"), Verdict("fail", "no more")


def test_all_are_tried_together_and_answered() -> None:
    attempts = BatchAttempts(3)
    assert attempts.next() == slice(0, 3)
    assert attempts.facts() == {"lost_workers": 0, "requests": 3, "consecutive_losses": 0}
    assert attempts.answered() == 3
    assert attempts.next() is None


def test_after_a_loss_each_is_tried_alone() -> None:
    attempts = BatchAttempts(3)
    attempts.lost_workers += 1
    assert attempts.lost(RETRY)
    tried = []
    while (now := attempts.next()) is not None:
        tried.append(now)
        # Each was lost once with the others, and now gets its own decision.
        assert attempts.facts() == {"lost_workers": 1, "requests": 1, "consecutive_losses": 1}
        attempts.answered()
    assert tried == [slice(0, 1), slice(1, 2), slice(2, 3)]


@pytest.mark.parametrize(
    ("poisonous", "consecutive_losses"),
    [
        ([True, True, True], [1, 2, 3]),
        ([True, False, True], [1, 2, 1]),
        ([False, False, True], [1, 1, 1]),
    ],
)
def test_consecutive_losses_are_counted(
    poisonous: list[bool], consecutive_losses: list[int]
) -> None:
    """`consecutive_losses` is what the dispatcher would get if the current request lost a worker, too."""
    attempts = BatchAttempts(len(poisonous))
    attempts.lost_workers += 1
    attempts.lost(RETRY)
    reported = []
    for poison in poisonous:
        attempts.next()
        reported.append(attempts.facts()["consecutive_losses"])
        assert (
            attempts.facts()["lost_workers"] == 1
        )  # with the others, without those lost by the last one
        if poison:
            attempts.lost_workers += 1
            assert not attempts.lost(FAIL)
        attempts.answered(failed=poison)
    assert reported == consecutive_losses
    assert attempts.next() is None


def test_a_retried_request_loses_a_second_worker() -> None:
    attempts = BatchAttempts(2)
    attempts.lost_workers += 1
    attempts.lost(RETRY)
    attempts.next()
    attempts.lost_workers += 1
    assert attempts.lost(RETRY)
    assert attempts.next() == slice(0, 1)
    assert attempts.facts() == {"lost_workers": 2, "requests": 1, "consecutive_losses": 2}


def test_one_decision_may_answer_the_rest_of_a_batch() -> None:
    attempts = BatchAttempts(4)
    attempts.lost_workers += 1
    attempts.lost(RETRY)
    attempts.next()
    attempts.answered()
    attempts.next()
    assert attempts.answered(failed=True, fails_rest=True) == 3
    assert attempts.next() is None
