"""A retiring worker with streams, as seen by the compiled proxy: they continue, and the next batch goes elsewhere."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fakes.triton.fake_tritonserver import STREAMED, Work, responses, run, send_part, wait_for_close

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchReturned,
    Room,
)
from pytriton._protocol.messages import Verdict
from pytriton._protocol.parameters import PYTHON_MODEL_PARAMETER


def batch_on(lane: Lane) -> int:
    """Return the number of the next batch."""
    while not isinstance(message := lane.receive(), Batch):
        pass
    return message.id


def stream(lane: Lane, number: int, *, returns: bool = False) -> None:
    lane.send(BatchBegun(number))
    if returns:
        lane.send(BatchReturned(number))
    send_part(lane, number, final=False)
    send_part(lane, number, final=True)
    lane.send(BatchDone(number, []))


def takes(answered: threading.Event, number: int = 1, *, returns: bool = False) -> Work:
    """Return a worker that answers `number` batches on one lane."""

    def work(lane: Lane) -> None:
        lane.send(Room(number))
        for _ in range(number):
            stream(lane, batch_on(lane), returns=returns)
        answered.set()
        wait_for_close(lane)

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
        send_part(lane, one, final=False)
        if returns:
            lane.send(BatchReturned(one))
        assert answered.wait(60)
        send_part(lane, one, final=True)
        lane.send(BatchDone(one, []))
        wait_for_close(lane)

    parameters: dict[str, Any] = {PYTHON_MODEL_PARAMETER: "true"} if returns else {}
    works = [retires, takes(answered, 2, returns=returns)]
    lines, heard = run(program, tmp_path, works, batches=3, decoupled=True, **parameters)
    assert sorted(responses(lines)) == sorted(STREAMED * 3)
    assert [type(one).__name__ for one in heard] == ["Attach", "Attach", "Detach"]


def test_a_retiring_lane_without_streams_is_closed(program: Path, tmp_path: Path) -> None:
    def offers(*rooms: int) -> Work:
        def work(lane: Lane) -> None:
            for room in rooms:
                lane.send(Room(room))
            with suppress(LaneClosed):
                while True:  # the one that retires, too: what was sent before the proxy knew
                    stream(lane, batch_on(lane))

        return work

    works = [offers(1, 0), offers(1)]
    lines, _ = run(program, tmp_path, works, batches=2, decoupled=True)
    assert responses(lines) == STREAMED * 2


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
    served = [line for line in responses(lines) if not line.endswith("it died")]
    assert served == STREAMED
    assert len(responses(lines)) == len(served) + 1
    assert [(one.worker, one.final) for one in asked] == [("w", True)]
