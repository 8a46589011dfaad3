"""A worker that violates the protocol and then just waits: the proxy has to end that with an error by itself."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.triton.fake_tritonserver import (
    Work,
    begin_first,
    contents,
    echo,
    run,
    serving,
    socket_of,
    wait_for_close,
)

from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Announce,
    BatchBegun,
    BatchDone,
    BatchPart,
    BatchParts,
    BatchReturned,
    BatchTexts,
    Metrics,
    MetricUpdate,
    PartRef,
    Room,
    Spilled,
)


def says(*said: Any, room: int | None = None) -> Work:
    """Return a worker that reads a batch, sends a raw message, and waits as if it had responded."""

    def work(lane: Lane) -> None:
        if room is not None:
            lane.send(Room(room))
        lane.receive()
        with socket_of(lane) as connection:
            try:
                for message in said:
                    connection.send(msgspec.msgpack.encode(message), socket.MSG_NOSIGNAL)
            except ConnectionError:
                return
        wait_for_close(lane)

    return work


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ([Announce(1)], "the worker announced memory, but did not send its descriptor"),
        ([Announce(-(2**63))], "the worker announced memory, but did not send its descriptor"),
        ([Announce(1), BatchDone(1, [])], "announced memory, but did not send a descriptor"),
        ([Spilled(0, 2**62)], "malformed reference to a message"),
        ([Spilled(-1, 1)], "memory segment 0, which it never announced"),
        ([Room(1)], "the worker answered batch 1 with Room"),
        ([BatchDone(-1, [])], "the worker answered batch 1 with BatchDone -1"),
        ([["BatchDone"]], "the worker sent a malformed message: BatchDone.id is missing"),
        ([["BatchDone", 1]], "BatchDone.responses is missing"),
        ([BatchDone(1, [])], "0 responses to 1 requests"),
        ([["BatchLent", 1, [[]]]], "BatchLent.responses[0].outputs is missing"),
        ([["BatchFailed", 1, b"\xff"]], "BatchFailed.text is not a string"),
        (
            [["Announce", 1, "later"]],
            "the worker announced memory, but did not send its descriptor",
        ),
        ([[]], "something other than a message"),
    ],
)
def test_a_partial_response_fails_its_batch(
    program: Path, tmp_path: Path, said: list[Any], complaint: str
) -> None:
    lines, _ = run(program, tmp_path, [says(*said), serving(echo)], batches=2)
    wrong, right = contents(lines)
    assert wrong.startswith("error 4 model model: ")
    assert complaint in wrong
    assert "y 11 " in right


@pytest.mark.parametrize("batches", [0, -5, -(2**63)])
def test_a_worker_that_offers_room_for_no_batch_fails_the_batch(
    program: Path, tmp_path: Path, batches: int
) -> None:
    """The batch does not wait for a third worker; the first lane may have been closed before the batch arrived."""

    def work(lane: Lane) -> None:
        lane.send(Room(batches))
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [work] * 2, decoupled=True)
    complaint = "the worker set a batch limit below one: Room"
    assert contents(lines) == [f"error 4 model model: {complaint}"]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ([Announce(1)], "the worker announced memory, but did not send its descriptor"),
        (
            [BatchBegun(1), Announce(1)],
            "the worker announced memory, but did not send its descriptor",
        ),
        ([BatchBegun(1), BatchBegun(1)], "not for a proxy: BatchBegun"),
        ([BatchPart(1, [None])], "not for a proxy: BatchPart"),
        ([BatchBegun(1), BatchPart(1, [])], "too few or too many responses"),
        ([BatchBegun(1), BatchPart(1, [None, None])], "too few or too many responses"),
        ([BatchParts([PartRef(1, [None])])], "a batch that is not in flight: BatchParts"),
        (
            [BatchBegun(1), BatchParts([PartRef(1, [None]), PartRef(2, [None])])],
            "a batch that is not in flight: BatchParts",
        ),
        ([BatchBegun(1), BatchParts([PartRef(1, [])])], "too few or too many responses"),
        ([BatchBegun(1), ["BatchParts", [[1]]]], "BatchParts.parts[0].responses is missing"),
        ([BatchTexts("y", [1], ["x"])], "a batch that is not in flight: BatchTexts"),
        (
            [BatchBegun(1), BatchTexts("y", [2], ["x"])],
            "a batch that is not in flight: BatchTexts",
        ),
        ([BatchBegun(1), BatchTexts("y", [1, 1], ["x"])], "malformed message: BatchTexts"),
        ([BatchBegun(1), BatchTexts("y", [], ["x"])], "malformed message: BatchTexts"),
        ([BatchBegun(1), ["BatchTexts", "y", [1], [b"x"]]], "BatchTexts.texts[0] is not a string"),
        ([BatchBegun(1), BatchReturned(1, [])], "not for a proxy: BatchReturned"),
        ([BatchBegun(2)], "a batch that is not in flight: BatchBegun"),
        ([BatchBegun(1), Room(-1)], "set a batch limit below one"),
        ([["BatchBegun"]], "malformed message: BatchBegun.id is missing"),
        ([BatchBegun(1), ["BatchPart", 1]], "BatchPart.responses is missing"),
        ([BatchBegun(1), ["BatchFailed", 1]], "malformed message: BatchFailed"),
        ([BatchBegun(1), ["Metrics"]], "malformed message: Metrics"),
    ],
)
def test_a_partial_response_fails_its_stream(
    program: Path, tmp_path: Path, said: list[Any], complaint: str
) -> None:
    lines, _ = run(program, tmp_path, [says(*said, room=1)], decoupled=True)
    (answer,) = contents(lines)
    assert answer.startswith("error 4 ")
    assert complaint in answer


def condemns(
    end: Callable[[], None],
) -> Callable[[Any], messages.Verdict]:
    """Return a dispatcher that lets an overdue batch fail, and ends its worker."""

    def judge(question: Any) -> messages.Verdict:
        if isinstance(question, messages.BatchOverdue):
            end()
        return messages.Verdict("fail", "it hangs")

    return judge


def _ended_from_outside() -> tuple[Work, Callable[[], None]]:
    attached: Future[Lane] = Future()

    def work(lane: Lane, *said: Any) -> None:
        attached.set_result(lane)
        for message in said:
            lane.send(message)
        wait_for_close(lane)

    return work, lambda: attached.result(60).hang_up()


@pytest.mark.parametrize("said", [[], [Room(1)]], ids=["no room", "room, but it begins nothing"])
def test_a_stream_that_does_not_begin_becomes_overdue(
    program: Path, tmp_path: Path, said: list[Any]
) -> None:
    work, end = _ended_from_outside()

    def hangs(lane: Lane) -> None:
        work(lane, *said)

    lines, heard = run(
        program, tmp_path, [hangs], decoupled=True, judge=condemns(end), patience_s=2.0
    )
    overdue = [one for one in heard if isinstance(one, messages.BatchOverdue)]
    assert [one.was_read for one in overdue] == [bool(said)]
    assert contents(lines) == ["error 4 it hangs" if said else "error 4 no worker is left"]


def test_a_chatty_worker_becomes_overdue(program: Path, tmp_path: Path) -> None:
    attached: Future[Lane] = Future()
    nothing = Metrics([MetricUpdate("family", "", "counter", {})])

    def chatters(lane: Lane) -> None:
        attached.set_result(lane)
        begin_first(lane)
        with suppress(LaneClosed):
            while True:
                for _ in range(8):  # then it gets a credit for them
                    lane.send(nothing)
                lane.receive()

    judge = condemns(lambda: attached.result(60).hang_up())
    lines, heard = run(program, tmp_path, [chatters], decoupled=True, judge=judge, patience_s=0.2)
    assert any(isinstance(one, messages.BatchOverdue) for one in heard)
    assert contents(lines) == ["error 4 it hangs"]


def test_the_dispatcher_learns_how_long_a_batch_has_been_read(
    program: Path, tmp_path: Path
) -> None:
    """Not yet with the first request, as the response may be in transit."""
    work, end = _ended_from_outside()
    asked: list[int] = []

    def judge(question: Any) -> messages.Verdict:
        if isinstance(question, messages.BatchOverdue):
            asked.append(question.read_ms)
            if question.read_ms < 100:  # a busy machine may read the batch late
                return messages.Verdict("wait", wait_s=0.1)
        return condemns(end)(question)

    lines, _ = run(program, tmp_path, [work], judge=judge, patience_s=0.1)
    assert asked[0] == 0
    assert asked[-1] >= 100
    assert contents(lines) == ["error 4 it hangs"]
