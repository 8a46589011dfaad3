"""Lanes that a streaming worker gives up at the dispatcher's request."""

from __future__ import annotations

from typing import Any, cast

from pytriton._protocol.lanes.lane import Lane
from pytriton.worker.loop import Withdrawals


def wanted(lanes: int, times: int) -> Withdrawals:
    withdrawals = Withdrawals()
    for _ in range(times):
        withdrawals.want(lanes)
    return withdrawals


def due(withdrawals: Withdrawals, *idle: str) -> list[Any]:
    return withdrawals.due(cast("list[Lane]", idle))


def test_without_a_request_nothing_is_closed() -> None:
    assert due(wanted(2, 0), "a") == []


def test_an_idle_lane_is_closed_once() -> None:
    withdrawals = wanted(2, 1)
    assert due(withdrawals, "b") == ["b"]
    assert due(withdrawals, "b") == []


def test_a_lane_is_closed_when_its_requests_have_ended() -> None:
    withdrawals = wanted(1, 1)
    assert due(withdrawals) == []
    assert due(withdrawals, "a") == ["a"]


def test_requests_are_limited_to_the_number_of_lanes() -> None:
    withdrawals = wanted(1, 2)
    assert due(withdrawals, "a") == ["a"]
    assert due(withdrawals, "b") == []
