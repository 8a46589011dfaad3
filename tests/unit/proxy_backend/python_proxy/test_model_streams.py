"""Decoupled models in the Python proxy as called by tritonserver's stub: each stream ends exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.lane_worker import Hangup
from fakes.proxy_harness import ProxyHarness, requests
from fakes.triton.fake_stub import FINAL, Request, TritonError, pb_utils
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import Lane, LaneError
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    BatchPart,
    BatchReturned,
    FromProxy,
    ResponseDetails,
    ResponseRef,
    Room,
)
from pytriton._protocol.parameters import PYTHON_MODEL_PARAMETER
from pytriton.proxy_backend.python_proxy.stream_lane import Credits

INTERNAL = TritonError.INTERNAL
END = (None, FINAL)


def part(text: str, *, final: bool = False) -> ResponseRef:
    return ResponseRef([], text, ResponseDetails(final=final))


class ScriptedWorker:
    """A decoupled model's worker: handles a batch with its `script`, or else answers and ends it."""

    def __init__(self, *script: Any, room: int = 4) -> None:
        self.script = list(script)
        self.room = room
        self.lanes: list[Lane] = []

    def greet(self, lane: Lane) -> None:
        self.lanes.append(lane)
        lane.send(Room(self.room))

    def behave(self, lane: Lane, message: FromProxy) -> None:
        if isinstance(message, Batch):
            (self.script.pop(0) if self.script else answer)(lane, message)


def answer(lane: Lane, batch: Batch) -> None:
    lane.send(BatchBegun(batch.id))
    lane.send(BatchPart(batch.id, [part(one.request_id) for one in batch.requests]))
    lane.send(BatchDone(batch.id, []))


def begin_and_hang_up(lane: Lane, batch: Batch) -> None:
    lane.send(BatchBegun(batch.id))
    raise Hangup


def begin(lane: Lane, batch: Batch) -> None:
    lane.send(BatchBegun(batch.id))


def ended(*batch: Request) -> list[list[Any]]:
    """Return what the clients received, once all streams have ended."""

    def all_ended() -> bool:
        return all(one.sender.sent and one.sender.sent[-1][1] & FINAL for one in batch)

    eventually(all_ended, lambda: f"not ended: {[one.sender.sent for one in batch]}")
    return [one.sender.sent for one in batch]


def play(
    harness: ProxyHarness, *script: Any, room: int = 4, parameters: dict[str, str] | None = None
) -> ScriptedWorker:
    scripted = ScriptedWorker(*script, room=room)
    harness.worker(scripted.behave, scripted.greet)
    harness.load(parameters, decoupled=True)
    return scripted


def execute(harness: ProxyHarness, batch: list[Request]) -> None:
    assert harness.model is not None
    assert harness.model.execute(batch) is None


def test_streams_of_one_batch_end_one_by_one(harness: ProxyHarness) -> None:
    def uneven(lane: Lane, batch: Batch) -> None:
        lane.send(BatchBegun(batch.id))
        lane.send(BatchPart(batch.id, [part("a1"), None]))
        lane.send(BatchPart(batch.id, [part("a2", final=True), part("b1")]))
        empty = ResponseRef([], None, ResponseDetails(final=True, empty=True))
        lane.send(BatchPart(batch.id, [None, empty]))
        lane.send(BatchDone(batch.id, []))

    play(harness, uneven)
    batch = requests("a", "b")
    execute(harness, batch)
    assert ended(*batch) == [
        [(("a1", INTERNAL), 0), (("a2", INTERNAL), FINAL)],
        [(("b1", INTERNAL), 0), END],
    ]


def test_a_batch_that_fails_ends_all_its_streams(harness: ProxyHarness) -> None:
    def fail(lane: Lane, batch: Batch) -> None:
        begin(lane, batch)
        lane.send(BatchFailed(batch.id, "ValueError: no"))

    play(harness, fail)
    batch = requests("a", "b")
    execute(harness, batch)
    assert ended(*batch) == [
        [((f"ValueError: no [request id: {one}]", INTERNAL), FINAL)] for one in "ab"
    ]


def test_an_ended_stream_does_not_end_again(
    harness: ProxyHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker does not read the credit for its last parts."""
    give = Credits.give

    def refused(credits: Credits) -> None:
        monkeypatch.setattr(Credits, "give", give)
        raise LaneError("the worker does not read")

    monkeypatch.setattr(Credits, "give", refused)
    play(harness)
    first, second = requests("a"), requests("b")
    execute(harness, first)
    streams: Any = harness.model and harness.model._streams
    eventually(lambda: streams._lane is None, "the end of the lane was not seen")
    execute(harness, second)
    assert ended(*first, *second) == [[(("a", INTERNAL), 0), END], [(("b", INTERNAL), 0), END]]
    assert harness.heard(messages.LaneLost) == []


def test_a_batch_of_an_unreturned_python_model_is_retried(harness: ProxyHarness) -> None:
    """Triton does not have its requests back, and nothing was answered."""

    def answer_and_return(lane: Lane, batch: Batch) -> None:
        begin(lane, batch)
        lane.send(BatchPart(batch.id, [part("done")]))
        lane.send(BatchReturned(batch.id))
        lane.send(BatchDone(batch.id, []))

    play(
        harness,
        begin_and_hang_up,
        answer_and_return,
        parameters={PYTHON_MODEL_PARAMETER: "streams"},
    )
    harness.verdicts = [messages.Verdict("retry")]
    (one,) = requests("a")
    execute(harness, [one])
    assert ended(one) == [[(("done", INTERNAL), 0), END]]
    assert not harness.heard(messages.LaneLost)[0].final


def test_a_python_model_may_requeue_a_request(harness: ProxyHarness) -> None:
    def again(lane: Lane, batch: Batch) -> None:
        begin(lane, batch)
        lane.send(BatchReturned(batch.id, [0]))
        lane.send(BatchDone(batch.id, []))

    play(harness, again, parameters={PYTHON_MODEL_PARAMETER: "streams"})
    one, other = requests("a", "b")
    execute(harness, [one, other])
    assert ended(other) == [[END]]
    assert one.sender.sent == []
    assert one.release_flags == pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


def answer_after_the_end(lane: Lane, batch: Batch) -> None:
    begin(lane, batch)
    lane.send(BatchPart(batch.id, [part("x", final=True)]))
    lane.send(BatchPart(batch.id, [part("y")]))


def test_an_answer_after_the_last_one_is_dropped(harness: ProxyHarness) -> None:
    play(harness, answer_after_the_end)
    (one,) = requests("a")
    execute(harness, [one])
    assert ended(one) == [[(("x", INTERNAL), FINAL)]]
    streams: Any = harness.model and harness.model._streams
    # Otherwise the next batch could be in transit on the lane that the surplus answer closes.
    eventually(lambda: streams._lane is None, "the end of the lane was not seen")
    (again,) = requests("b")
    execute(harness, [again])
    assert ended(again) == [[(("b", INTERNAL), 0), END]]
