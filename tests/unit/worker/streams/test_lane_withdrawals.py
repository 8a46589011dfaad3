"""Lanes of a streaming worker that the dispatcher wants elsewhere."""

from __future__ import annotations

from typing import Any, cast

from pytriton.ipc.lanes.lane import Lane
from pytriton.worker.streams.lane_withdrawals import Withdrawals
from pytriton.worker.streams.stream_answers import Outbox


class Box:
    """A lane's outbox with so many streams under way."""

    def __init__(self, streams: int) -> None:
        self.streams = dict.fromkeys(range(streams))


def wanted(lanes: int, times: int) -> Withdrawals:
    withdrawals = Withdrawals()
    for _ in range(times):
        withdrawals.want(lanes)
    return withdrawals


def due(withdrawals: Withdrawals, boxes: dict[str, Box]) -> list[Any]:
    return withdrawals.due(cast("dict[Lane, Outbox]", boxes))


def test_nothing_is_closed_that_nobody_wants() -> None:
    assert due(wanted(2, 0), {"a": Box(0)}) == []


def test_an_idle_lane_goes_once() -> None:
    withdrawals = wanted(2, 1)
    boxes = {"a": Box(1), "b": Box(0)}
    assert due(withdrawals, boxes) == ["b"]
    assert due(withdrawals, boxes) == []


def test_a_busy_lane_goes_when_its_streams_have_ended() -> None:
    withdrawals = wanted(1, 1)
    assert due(withdrawals, {"a": Box(2)}) == []
    assert due(withdrawals, {"a": Box(0)}) == ["a"]


def test_no_more_are_owed_than_there_are_lanes() -> None:
    withdrawals = wanted(1, 2)
    assert due(withdrawals, {"a": Box(0)}) == ["a"]
    assert due(withdrawals, {"b": Box(0)}) == []
