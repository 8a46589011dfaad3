"""Outputs that the compiled proxy reads from the worker's own memory, under sanitizers: the test is the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.triton.fake_tritonserver import Work, contents, echo, output, run, serving

from pytriton._protocol import linux, messages
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    OWN,
    Batch,
    BatchDone,
    BatchLent,
    Credit,
    ResponseRef,
    TensorRef,
)

#: What the proxy is lent; kept for the whole run, as the worker is this very process.
ONES = np.arange(4, dtype=np.float32).reshape(1, 4)
HEX = ONES.tobytes().hex()
#: Nothing is mapped there.
NOWHERE = 4096


def lent(**wrong: Any) -> TensorRef:
    """Return output y at its address in this process, with some fields wrong."""
    right = TensorRef("y", "FP32", [1, 4], OWN, tensors.address(ONES), ONES.nbytes)
    return msgspec.structs.replace(right, **wrong)


def second(answer: Callable[[Lane, Batch], Any]) -> Work:
    """Return a worker that answers the first batch with `echo`; from then on the proxy knows what it may read."""

    def work(lane: Lane) -> None:
        linux.allow_reading(lane.peer_pid())
        first = lane.receive()
        assert isinstance(first, Batch)
        assert not first.reads
        lane.send(echo(lane, first))
        batch = lane.receive()
        assert isinstance(batch, Batch)
        assert batch.reads, "process_vm_readv(2) is forbidden here"
        lane.arena.reset()
        answer(lane, batch)

    return work


def test_an_output_is_read_in_place_and_returned(program: Path, tmp_path: Path) -> None:
    heard: list[Any] = []

    def answer(lane: Lane, batch: Batch) -> None:
        small = output(lane, "z", ONES)
        lane.send(BatchLent(batch.id, [ResponseRef([small, lent()]), ResponseRef([lent()])]))
        heard.append(lane.receive())
        with pytest.raises(LaneClosed):
            lane.receive()

    lines, _ = run(program, tmp_path, [second(answer)], batches=2, requests=2)
    assert contents(lines)[2:] == [f"z 11 [1,4] {HEX} y 11 [1,4] {HEX}", f"y 11 [1,4] {HEX}"]
    assert heard == [Credit(1)]
    assert lines[-1] == "released 4, statistics of 4"


def _again(lane: Lane, batch: Batch, *outputs: Any) -> BatchDone:
    return BatchDone(batch.id, [ResponseRef(list(outputs)) for _ in batch.requests])


def leaves(lane: Lane, batch: Batch) -> None:
    """Answer the first request, lend unreadable memory to the second one, and exit."""
    small = output(lane, "z", ONES)
    unread = lent(offset=NOWHERE)
    lane.send(BatchLent(batch.id, [ResponseRef([small]), ResponseRef([small, unread])]))


def test_another_worker_answers_when_one_dies_while_being_read(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests already answered are not repeated; the next worker fills the response that was begun."""
    _tried_again(monkeypatch)
    asked: list[int] = []

    def rest(lane: Lane, batch: Batch) -> BatchDone:
        asked.append(len(batch.requests))
        return _again(lane, batch, output(lane, "z", 2 * ONES), output(lane, "y", 3 * ONES))

    lines, heard = run(program, tmp_path, [second(leaves), serving(rest)], batches=2, requests=2)
    z, y = (2 * ONES).tobytes().hex(), (3 * ONES).tobytes().hex()
    assert contents(lines)[2:] == [f"z 11 [1,4] {HEX}", f"z 11 [1,4] {z} y 11 [1,4] {y}"]
    assert asked == [1]
    assert [one.lost_workers for one in heard if isinstance(one, messages.LaneLost)] == [1]
    assert lines[-1] == "released 4, statistics of 4"
    assert lines.count("batch of 2 rows") == 2


def test_the_next_worker_serves_the_next_batches(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tried_again(monkeypatch)

    def rest(lane: Lane, batch: Batch) -> BatchDone:
        small = output(lane, "z", ONES)
        return _again(lane, batch, output(lane, "y", ONES), small)

    lines, _ = run(program, tmp_path, [second(leaves), serving(rest)], batches=3, requests=2)
    assert contents(lines)[3] == f"z 11 [1,4] {HEX} y 11 [1,4] {HEX}"
    assert contents(lines)[4:] == [f"y 11 [1,4] {HEX} z 11 [1,4] {HEX}"] * 2


def test_a_retry_cannot_change_the_shape_of_a_begun_response(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tried_again(monkeypatch)

    def rest(lane: Lane, batch: Batch) -> BatchDone:
        return _again(lane, batch, output(lane, "y", np.ones((1, 5), np.float32)))

    lines, _ = run(program, tmp_path, [second(leaves), serving(rest)], batches=2, requests=2)
    assert "the next worker answered with different shapes" in contents(lines)[3]


def test_without_another_worker_a_begun_response_ends_with_an_error(
    program: Path, tmp_path: Path
) -> None:
    lines, _ = run(program, tmp_path, [second(leaves)], batches=2, requests=2)
    assert contents(lines)[2:] == [f"z 11 [1,4] {HEX}", "error 4 the worker was lost: é"]
    assert lines[-1].startswith("released 4")


@pytest.mark.parametrize(
    ("ref", "complaint"),
    [
        (lent(offset=NOWHERE), "the memory of the worker's output y cannot be read"),
        (lent(offset=-16), "the memory of the worker's output y cannot be read"),
        (lent(shape=[1, 5]), "different size than its shape"),
        (lent(nbytes=0, shape=[0, 4]), "is in memory that was not requested"),
        (lent(datatype="BYTES"), "is in memory that was not requested"),
    ],
)
def test_an_unreadable_output_fails_only_its_batch(
    program: Path, tmp_path: Path, ref: TensorRef, complaint: str
) -> None:
    def answer(lane: Lane, batch: Batch) -> None:
        lane.send(BatchLent(batch.id, [ResponseRef([ref])]))
        with pytest.raises(LaneClosed):
            lane.receive()

    lines, _ = run(program, tmp_path, [second(answer), serving(echo)], batches=3)
    assert "error 4 model model: " in contents(lines)[1]
    assert complaint in contents(lines)[1]
    assert "y 11 " in contents(lines)[2]


def test_a_worker_cannot_lend_memory_unasked(program: Path, tmp_path: Path) -> None:
    """Before the proxy has announced that it reads, and in a message that cannot lend."""
    unasked = serving(lambda lane, batch: BatchLent(batch.id, [ResponseRef([lent()])]))

    def plainly(lane: Lane, batch: Batch) -> None:
        lane.send(BatchDone(batch.id, [ResponseRef([lent()])]))
        with pytest.raises(LaneClosed):
            lane.receive()

    lines, _ = run(program, tmp_path, [unasked, second(plainly)], batches=3)
    first, _, third = contents(lines)
    for one in (first, third):
        assert "output y is in memory that was not requested" in one


def _tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a dispatcher that gives a lost batch to the next worker."""
    monkeypatch.setattr("fakes.triton.fake_tritonserver.LOST", messages.Verdict("retry", ""))
