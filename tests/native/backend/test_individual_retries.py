"""A batch whose worker is lost: each request is retried by itself, so that only the poisoned one fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.triton.fake_tritonserver import Work, echo, responses, run, serving

from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import Batch, BatchFailed

Loss = tuple[int, int, int]


def judge(message: Any) -> messages.Verdict:
    """Decide like the dispatcher: a second lost worker is the request's fault, three in a row are the model's."""
    assert not message.final
    if isinstance(message, messages.LaneLost) and message.lost_workers < 2:
        return messages.Verdict("retry")
    if isinstance(message, messages.BatchOverdue) and (
        not message.was_read or message.lost_workers == 0
    ):
        return messages.Verdict("retry")
    return messages.Verdict("fail", "guilty", fails_rest=message.consecutive_losses >= 3)


def losses(heard: list[Any]) -> list[Loss]:
    return [
        (one.lost_workers, one.requests, one.consecutive_losses)
        for one in heard
        if isinstance(one, (messages.LaneLost, messages.BatchOverdue))
    ]


def outcomes(lines: list[str]) -> list[str]:
    """Return for each request, in the order of the responses, whether it succeeded, or its error."""
    reported = responses(lines)
    assert [int(line.split()[2].rstrip(",")) for line in reported] == list(range(len(reported)))
    return ["right" if " y 11 " in line else line.rpartition(" ")[2] for line in reported]


class Worker:
    """Records its batches; exits in the batches with these numbers, counted over all workers."""

    def __init__(self, *fatal: int, act: Callable[[Lane, Batch], Any] = lambda *_: None) -> None:
        self.seen: list[tuple[int, bool]] = []
        self._fatal = fatal
        self._act = act

    def __call__(self, lane: Lane, batch: Batch) -> Any:
        number = len(self.seen)
        self.seen.append((len(batch.requests), batch.alone))
        return self._act(lane, batch) if number in self._fatal else echo(lane, batch)

    def times(self, count: int) -> list[Work]:
        return [serving(self)] * count


def test_only_the_poisoned_request_fails(program: Path, tmp_path: Path) -> None:
    worker = Worker(0, 3)
    lines, heard = run(program, tmp_path, worker.times(3), requests=4, judge=judge)
    assert outcomes(lines) == ["right", "right", "guilty", "right"]
    assert losses(heard) == [(1, 4, 0), (2, 1, 1)]
    assert worker.seen == [(4, False), *[(1, True)] * 4]
    assert lines[-1] == "released 4, statistics of 4"
    assert lines.count("batch of 1 rows") == 3


def test_a_worker_lost_by_chance_fails_no_request(program: Path, tmp_path: Path) -> None:
    """The next batch is not split any more."""
    worker = Worker(0)
    lines, _ = run(program, tmp_path, worker.times(2), requests=3, batches=2, judge=judge)
    assert worker.seen == [(3, False), *[(1, True)] * 3, (3, False)]
    assert sum(" y 11 " in line for line in lines) == 6


def test_a_single_request_is_retried_unmerged(program: Path, tmp_path: Path) -> None:
    """It may have been merged with a batch of another lane, so it is not merged again."""
    worker = Worker(0)
    lines, _ = run(program, tmp_path, worker.times(2), judge=judge)
    assert worker.seen == [(1, False), (1, True)]
    assert outcomes(lines) == ["right"]


def test_several_poisoned_requests_fail(program: Path, tmp_path: Path) -> None:
    """A successful request between them shows that the model works."""
    worker = Worker(0, 1, 2, 4, 5)
    lines, heard = run(program, tmp_path, worker.times(6), requests=6, judge=judge)
    assert outcomes(lines) == ["guilty", "guilty", "right", "guilty", "guilty", "right"]
    assert [loss[2] for loss in losses(heard)] == [0, 1, 2, 1, 2]


def test_the_rest_is_not_retried_if_every_request_kills_a_worker(
    program: Path, tmp_path: Path
) -> None:
    worker = Worker(*range(9))
    lines, heard = run(program, tmp_path, worker.times(9), requests=8, judge=judge)
    assert outcomes(lines) == ["guilty"] * 8
    assert len(worker.seen) == 4
    assert losses(heard)[-1] == (2, 1, 3)
    assert lines[-1] == "released 8, statistics of 8"


def test_without_another_worker_the_rest_fails(program: Path, tmp_path: Path) -> None:
    worker = Worker(0, 2)
    lines, _ = run(program, tmp_path, worker.times(2), requests=4, judge=judge)
    assert outcomes(lines) == ["right", "guilty", "left", "left"]


def test_a_raised_exception_is_a_response(program: Path, tmp_path: Path) -> None:
    def fails(lane: Lane, batch: Batch) -> Any:
        return BatchFailed(batch.id, "raised") if batch.alone else None

    worker = Worker(0, 2, act=fails)
    lines, heard = run(program, tmp_path, worker.times(2), requests=3, judge=judge)
    assert outcomes(lines) == ["right", "raised", "right"]
    assert len(losses(heard)) == 1


def test_a_hung_batch_is_retried_request_by_request(program: Path, tmp_path: Path) -> None:
    """The first worker hangs with the whole batch, the second one with the request that causes it."""

    def hang(lane: Lane, batch: Batch) -> None:
        with pytest.raises(LaneClosed):
            lane.receive()  # until the proxy has had enough

    worker = Worker(0, 2, act=hang)
    lines, heard = run(program, tmp_path, worker.times(3), requests=3, judge=judge, patience_s=10.0)
    assert outcomes(lines) == ["right", "guilty", "right"]
    assert losses(heard) == [(0, 3, 0), (1, 1, 1)]
