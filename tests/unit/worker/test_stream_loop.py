"""The loops of streams, and a lane on which nothing can be sent. The test plays the dispatcher and the proxy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from fakes.serving_worker import spec_of, worker_of

from pytriton._protocol.lanes.arena import Arena, ArenaError
from pytriton._protocol.lanes.lane import LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    RequestRef,
)

_BATCH = Batch(1, [RequestRef([], "", [])])


def answer_one(requests: Any) -> Iterator[Any]:
    yield [{"y": np.ones(1, np.float32)} for _ in requests]


async def answer_one_later(requests: Any) -> AsyncIterator[Any]:
    for results in answer_one(requests):
        yield results


@pytest.mark.parametrize("infer", [answer_one, answer_one_later])
def test_a_lane_on_which_no_end_can_be_sent_is_closed_alone(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch, infer: Any
) -> None:
    """For example, without free descriptors: otherwise its proxy would hang."""

    def no_descriptors(arena: Arena) -> int:
        raise ArenaError("no descriptors are left")

    with worker_of(infer, spec_of(decoupled=True), dispatcher) as worker:
        with (
            monkeypatch.context() as exceeded,
            contextlib.closing(worker.proxy(streams=True)) as lane,
        ):
            exceeded.setattr(Arena, "open_readonly", no_descriptors)
            lane.send(_BATCH)
            assert lane.receive() == BatchBegun(1)
            with pytest.raises(LaneClosed):
                lane.receive()
        with contextlib.closing(worker.proxy(streams=True)) as lane:
            lane.send(_BATCH)
            assert lane.receive() == BatchBegun(1)
            assert isinstance(lane.receive(), BatchPart)
            assert lane.receive() == BatchDone(1, [])
