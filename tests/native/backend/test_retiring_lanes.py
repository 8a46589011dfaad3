"""A retiring worker with streams, as seen by the compiled proxy: they continue, and the next batch goes elsewhere."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.triton.fake_tritonserver import Work, output, run

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    BatchReturned,
    ResponseDetails,
    ResponseRef,
    Room,
)
from pytriton._protocol.messages import Verdict
from pytriton._protocol.parameters import PYTHON_MODEL_PARAMETER

pytestmark = pytest.mark.timeout(600)

_STREAMED = [f"response to 0, flags {flags}: y 11 [1,2] 0000803f0000803f" for flags in (0, 1)]


def batch_on(lane: Lane) -> int:
    """Return the number of the next batch."""
    while not isinstance(message := lane.receive(), Batch):
        pass
    return message.id


def answer(lane: Lane, number: int, *, final: bool) -> None:
    ref = output(lane, "y", np.ones((1, 2), np.float32))
    lane.send(BatchPart(number, [ResponseRef([ref], None, ResponseDetails(final=final))]))


def stream(lane: Lane, number: int, *, returns: bool = False) -> None:
    lane.send(BatchBegun(number))
    if returns:
        lane.send(BatchReturned(number))
    answer(lane, number, final=False)
    answer(lane, number, final=True)
    lane.send(BatchDone(number, []))


def goes(lane: Lane) -> None:
    """Wait until the proxy closes the lane."""
    lane.set_receive_timeout(60)
    with suppress(LaneClosed):
        while True:
            lane.receive()


def takes(answered: threading.Event, number: int = 1, *, returns: bool = False) -> Work:
    """Return a worker that answers `number` batches on one lane."""

    def work(lane: Lane) -> None:
        lane.send(Room(number))
        for _ in range(number):
            stream(lane, batch_on(lane), returns=returns)
        answered.set()
        goes(lane)

    return work


@pytest.mark.parametrize("returns", [False, True], ids=["a callable", "a Triton Python model"])
def test_streams_continue_while_the_next_batch_goes_elsewhere(
    program: Path, tmp_path: Path, returns: bool
) -> None:
    answered = threading.Event()

    def retires(lane: Lane) -> None:
        lane.send(Room(4))
        one = batch_on(lane)
        lane.send(Room(0))  # before the next batch is sent, for which it has to have begun
        lane.send(BatchBegun(one))
        answer(lane, one, final=False)
        if returns:
            lane.send(BatchReturned(one))
        assert answered.wait(60)
        answer(lane, one, final=True)
        lane.send(BatchDone(one, []))
        goes(lane)

    parameters: dict[str, Any] = {PYTHON_MODEL_PARAMETER: "true"} if returns else {}
    works = [retires, takes(answered, 2, returns=returns)]
    lines, heard = run(program, tmp_path, works, batches=3, decoupled=True, **parameters)
    assert sorted(line for line in lines if line.startswith("response")) == sorted(_STREAMED * 3)
    assert [type(one).__name__ for one in heard] == ["Attach", "Attach", "Detach"]


def test_a_retiring_lane_without_streams_is_closed(program: Path, tmp_path: Path) -> None:
    def serves(lane: Lane) -> None:
        lane.set_receive_timeout(60)
        lane.send(Room(1))
        with suppress(LaneClosed):
            while True:
                stream(lane, batch_on(lane))

    def retires(lane: Lane) -> None:
        lane.send(Room(1))
        lane.send(Room(0))
        lane.set_receive_timeout(60)
        with suppress(LaneClosed):
            while True:  # what was sent before the proxy knew
                stream(lane, batch_on(lane))

    lines, _ = run(program, tmp_path, [retires, serves], batches=2, decoupled=True)
    assert [line for line in lines if line.startswith("response")] == _STREAMED * 2


def test_streams_that_a_retired_worker_does_not_end_fail(program: Path, tmp_path: Path) -> None:
    """The dispatcher is asked about their worker, not about its successor."""
    answered = threading.Event()

    def crashes(lane: Lane) -> None:
        lane.send(Room(4))
        one = batch_on(lane)
        lane.send(Room(0))
        lane.send(BatchBegun(one))
        assert answered.wait(60)

    asked: list[Any] = []

    def judge(lost: Any) -> Verdict:
        asked.append(lost)
        return Verdict("fail", "it died")

    works: list[Work] = [crashes, takes(answered, 1)]
    lines, _ = run(program, tmp_path, works, batches=2, decoupled=True, judge=judge)
    responses = [line for line in lines if line.startswith("response")]
    failed = [line for line in responses if line.endswith("it died")]
    assert len(failed) == 1
    assert [line for line in responses if line not in failed] == _STREAMED
    assert [(one.worker, one.final) for one in asked] == [("w", True)]
