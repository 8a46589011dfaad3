"""Streams of the compiled proxy, under sanitizers: lost workers, workers that stop reading, cancelled requests."""

from __future__ import annotations

import select
import signal
import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fakes.triton.fake_tritonserver import (
    STREAMED,
    begin,
    begin_first,
    output,
    read_credits,
    responses,
    run,
    socket_of,
    streaming,
    wait_for_close,
)

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    BatchDone,
    BatchPart,
    BatchParts,
    BatchTexts,
    PartRef,
    ResponseDetails,
    ResponseRef,
    Room,
)


def test_one_message_can_hold_responses_of_several_batches(program: Path, tmp_path: Path) -> None:
    """A trailing element of a later version is ignored."""
    credits: list[int] = []

    def work(lane: Lane) -> None:
        numbers = [begin_first(lane, 2).id, begin(lane).id]
        ref = output(lane, "y", np.ones((1, 2), np.float32))
        lane.send(BatchParts([PartRef(number, [ResponseRef([ref])]) for number in numbers * 4]))
        credits.extend(read_credits(lane, 8))
        last = ResponseRef([ref], None, ResponseDetails(final=True))
        raw = msgspec.msgpack.encode(BatchParts([PartRef(number, [last]) for number in numbers]))
        parts = msgspec.msgpack.decode(raw)
        parts[1][0].append("later")
        with socket_of(lane) as connection:
            connection.send(msgspec.msgpack.encode(parts))
        for number in numbers:
            lane.send(BatchDone(number, []))
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [work], batches=2, decoupled=True)
    assert credits == [8]
    assert sorted(responses(lines)) == sorted([*[STREAMED[0]] * 8, *[STREAMED[1]] * 2])


def test_texts_are_responses_with_one_string(program: Path, tmp_path: Path) -> None:
    """However long they are."""
    texts = ["", "é", "x" * (1 << 17)]
    credits: list[int] = []

    def work(lane: Lane) -> None:
        numbers = [begin_first(lane, 2).id, begin(lane).id]
        lane.send(BatchTexts("z", numbers * 3, [text for text in texts for _ in numbers]))
        for number in numbers:
            lane.send(BatchDone(number, []))
        credits.extend(read_credits(lane, 6))
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [work], batches=2, decoupled=True)
    assert credits == [6]
    data = [text.encode() for text in texts]
    shown = [(len(one).to_bytes(4, "little") + one).hex() for one in data]
    assert sorted(responses(lines)) == sorted(
        f"response to 0, flags 0: z 13 [1] {one}" for one in shown * 2
    )


def test_a_text_for_one_of_several_requests_is_refused(program: Path, tmp_path: Path) -> None:
    def work(lane: Lane) -> None:
        batch = begin_first(lane)
        lane.send(BatchTexts("z", [batch.id], ["x"]))
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [work], requests=2, decoupled=True)
    errors = [line for line in lines if "too few or too many responses" in line]
    assert len(errors) == 2, lines


@pytest.mark.parametrize(
    ("before", "nbytes", "expected"),
    [(0, 1 << 19, [1, 1, 1]), (8 << 20, 8, [1, 1, 1]), (0, 8, None)],
    ids=["large", "full", "small"],
)
def test_a_waiting_worker_gets_all_its_memory_back(
    program: Path, tmp_path: Path, before: int, nbytes: int, expected: list[int] | None
) -> None:
    """Large parts at once, all parts if its memory is full, and a few small ones when it sends nothing more."""
    credits: list[int] = []

    def work(lane: Lane) -> None:
        batch = begin_first(lane)
        lane.arena.allocate(before)
        lane.set_receive_timeout(20)
        ref = output(lane, "y", np.ones((1, nbytes // 4), np.float32))
        for _ in range(3):
            lane.send(BatchPart(batch.id, [ResponseRef([ref])]))
        credits.extend(read_credits(lane, 3))
        lane.send(BatchDone(batch.id, []))
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [work], decoupled=True)
    # Of parts that are given back in silence, a machine that is busy may make more than one.
    assert credits == expected if expected else sum(credits) == 3
    assert len(responses(lines)) == 3


def test_a_stream_that_has_not_begun_is_retried(program: Path, tmp_path: Path) -> None:
    """While a stream that had begun is being answered with an error, which takes a while."""

    def leave(lane: Lane) -> None:
        begin_first(lane, 2)
        with socket_of(lane) as connection:
            connection.recv(1, socket.MSG_PEEK)

    lines, heard = run(program, tmp_path, [leave, streaming], batches=2, decoupled=True)
    names = [type(message).__name__ for message in heard]
    assert names == ["Attach", "LaneLost", "Attach", "Detach"]
    assert heard[1].final
    assert responses(lines) == ["response to 0, flags 1: error 4 the worker was lost: é", *STREAMED]


def test_an_answer_after_the_last_one_fails_the_other_requests(
    program: Path, tmp_path: Path
) -> None:
    def repeat(lane: Lane) -> None:
        batch = begin_first(lane)
        ref = output(lane, "y", np.ones((1, 2), np.float32))
        last = ResponseRef([ref], None, ResponseDetails(final=True))
        for _ in range(2):
            lane.send(BatchPart(batch.id, [last, None]))
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [repeat], requests=2, decoupled=True)
    fault = "the worker answered a request that it had already completed"
    assert responses(lines) == [
        STREAMED[1], f"response to 1, flags 1: error 4 model model: {fault}",
    ]  # fmt: skip


def test_a_worker_that_stops_reading_blocks_nothing(program: Path, tmp_path: Path) -> None:
    def deaf(lane: Lane) -> None:
        with socket_of(lane) as connection:
            connection.shutdown(socket.SHUT_RD)
            lane.send(Room(1))
            ended = select.poll()
            ended.register(connection, 0)  # POLLHUP comes unasked
            assert ended.poll(50_000)

    lines, _ = run(program, tmp_path, [deaf, streaming], decoupled=True)
    assert responses(lines) == STREAMED


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_cancelled_stream_gets_no_responses_and_ends_once(
    program: Path, tmp_path: Path, after: int
) -> None:
    gone = {"FAKE_GONE_AFTER": str(after)}
    lines, _ = run(
        program, tmp_path, [streaming], batches=3, requests=1, decoupled=True, environment=gone
    )
    assert responses(lines) == STREAMED[:after] * 3
    assert lines.count("flags 1 to 0") == (3 if after < 2 else 0)
    assert lines[-1] == "released 3, statistics of 3"


def test_a_cancelled_stream_of_a_lost_worker_gets_no_error(program: Path, tmp_path: Path) -> None:
    def leave(lane: Lane) -> None:
        begin_first(lane)

    gone = {"FAKE_GONE_AFTER": "0"}
    lines, _ = run(program, tmp_path, [leave], decoupled=True, environment=gone)
    assert [line for line in lines if line.startswith(("response", "flags"))] == ["flags 1 to 0"]


def test_a_tritonserver_that_refuses_a_response_is_ended(program: Path, tmp_path: Path) -> None:
    hangs = {"FAKE_HANGS": "1"}
    lines, _ = run(
        program, tmp_path, [streaming], decoupled=True, environment=hangs, ends=-signal.SIGKILL
    )
    assert any("has not accepted an answer of a stream" in line for line in lines)


def test_texts_are_credited_in_groups_again_after_the_memory_was_full(
    program: Path, tmp_path: Path
) -> None:
    credits: list[int] = []

    def work(lane: Lane) -> None:
        batch = begin_first(lane)
        lane.arena.allocate(8 << 20)
        lane.set_receive_timeout(20)
        ref = output(lane, "y", np.ones((1, 2), np.float32))
        lane.send(BatchPart(batch.id, [ResponseRef([ref])]))
        for _ in range(64):
            lane.send(BatchTexts("z", [batch.id], ["x"]))
        for count in (15, 2):
            lane.send(BatchTexts("z", [batch.id] * count, ["x"] * count))
        credits.extend(read_credits(lane, 82))
        lane.send(BatchDone(batch.id, []))
        wait_for_close(lane)

    run(program, tmp_path, [work], decoupled=True)
    # The worker gets one credit for the last two messages, or two if this machine stalls between them.
    assert credits[:65] == [1] * 65
    assert credits[65:] in ([17], [15, 2])
