"""The loops of streams, and a lane on which nothing can be sent. The test plays the dispatcher and the proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.lanes.arena import Arena, ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    RequestRef,
    Room,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.thread import WorkerThread

_CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 0,
    "input": [],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    "model_transaction_policy": {"decoupled": True},
}
_BATCH = Batch(1, [RequestRef([], "", [])])


def answer_one(requests: Any) -> Iterator[Any]:
    """Answer each request once."""
    yield [{"y": np.ones(1, np.float32)} for _ in requests]


async def answer_one_later(requests: Any) -> AsyncIterator[Any]:
    """Answer each request once."""
    for results in answer_one(requests):
        yield results


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    made = FakeDispatcher()
    yield made
    made.close()


@pytest.mark.parametrize("infer", [answer_one, answer_one_later])
def test_a_lane_on_which_no_end_can_be_sent_is_closed_alone(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch, infer: Any
) -> None:
    """For example, without free descriptors: otherwise its proxy would hang."""
    folder = Path(dispatcher.rundir.path)
    WorkerStatsPage.create_file(folder / "w1.stats").close()
    start = messages.StartWorker("w1", 0, str(folder / "w1.sock"), str(folder / "w1.stats"))
    spec = messages.ModelSpec("m", 1, _CONFIG, messages.WorkerEnvironment("python"))
    worker = WorkerThread(start, spec, lambda: infer, dispatcher.rundir.control_endpoint)
    eventually(
        lambda: any(isinstance(one, messages.WorkerReady) for one in dispatcher.heard),
        lambda: str(dispatcher.heard),
        20,
    )

    def no_descriptors(arena: Arena) -> int:
        raise ArenaError("no descriptors are left")

    with monkeypatch.context() as exceeded:
        exceeded.setattr(Arena, "open_readonly", no_descriptors)
        lane = proxy(start)
        lane.send(_BATCH)
        assert lane.receive() == BatchBegun(1)
        with pytest.raises(LaneClosed):
            lane.receive()
        lane.close()
    lane = proxy(start)
    lane.send(_BATCH)
    assert lane.receive() == BatchBegun(1)
    assert isinstance(lane.receive(), BatchPart)
    assert lane.receive() == BatchDone(1, [])
    lane.close()
    worker.end()
    worker.join(60)
    assert not worker.alive


def proxy(worker: messages.StartWorker) -> Lane:
    """Connect as a proxy."""
    lane = Lane.connect(worker.lane_path, peer_trusted=False)
    lane.set_receive_timeout(20)
    assert isinstance(lane.receive(), Room)
    return lane
