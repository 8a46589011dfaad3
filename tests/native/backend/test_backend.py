"""The compiled proxy under AddressSanitizer and UBSan.

A program with a minimal tritonserver (fake_tritonserver/) serves batches, with a real ZeroMQ ROUTER as the dispatcher
and real lanes as workers.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.triton.fake_tritonserver import (
    LOST,
    Work,
    contents,
    echo,
    output,
    responses,
    run,
    serving,
    socket_of,
    wait_for_close,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from pytriton._protocol import linux, messages
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Announce,
    Batch,
    BatchDone,
    BatchFailed,
    ResponseDetails,
    ResponseRef,
    Spilled,
    TensorRef,
)


def test_batches_reach_the_worker_and_responses_return(program: Path, tmp_path: Path) -> None:
    seen = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        seen.append(batch)
        return echo(lane, batch)

    lines, heard = run(program, tmp_path, [serving(answer)], batches=3, requests=2)
    doubled = (np.frombuffer(b"0123456789abcdef", np.float32) * 2).tobytes().hex()
    expected = f"flags 1: y 11 [1,4] {doubled} z 13 [1,1] 03000000616263 z 11 [0,3] "
    one = ["batch of 2 rows", f"response to 0, {expected}", f"response to 1, {expected}"]
    assert lines == [*one * 3, "released 6, statistics of 6"]
    assert [batch.id for batch in seen] == [1, 2, 3]
    request = seen[0].requests[0]
    assert (request.requested, request.details) == (["z", "y"], None)
    assert seen[0].trace is not None
    assert seen[0].trace.contexts == ['{"traceparent":"00-1-2-01"}', ""]
    assert seen[0].trace.begun_ns > 1e18
    assert json.loads(request.parameters) == {
        "text": 'a "quoted"\n\\ é',
        "integer": -1234567890123,
        "yes": True,
        "number": 0.1,
        "pytriton_not_calls": "made up",  # not sealed
    }
    attach, detach = heard
    assert (attach.registration, attach.lost, attach.avoid) == ("r-1", None, [])
    assert isinstance(detach, messages.Detach)
    assert detach.instance == attach.instance


def test_the_version_of_a_request_reaches_the_worker(program: Path, tmp_path: Path) -> None:
    seen = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        seen.append(json.loads(batch.requests[0].parameters))
        return echo(lane, batch)

    run(program, tmp_path, [serving(answer)], pytriton_versions="1,3")
    assert seen[0]["pytriton_version"] == "3"


def test_large_messages_are_sent_in_shared_memory(program: Path, tmp_path: Path) -> None:
    """Describing 600 requests takes more than 64 KiB, and so do their responses."""
    lines, _ = run(program, tmp_path, [serving(echo)], requests=600)
    assert sum(" y 11 " in line for line in responses(lines)) == 600


def test_errors_keep_their_codes(program: Path, tmp_path: Path) -> None:
    def answer(lane: Lane, batch: Batch) -> Any:
        if batch.id == 1:
            return BatchFailed(batch.id, "all of it: é")
        failed = ResponseRef([], "this one", ResponseDetails("NOT_FOUND"))
        again = ResponseRef([], None, ResponseDetails(reschedule=True))
        return BatchDone(batch.id, [failed, again])

    lines, _ = run(program, tmp_path, [serving(answer)], batches=2, requests=2)
    assert contents(lines) == [*["error 1 all of it: é"] * 2, "error 2 this one"]
    assert "request 1 is queued again" in lines
    # An execution each, as in Triton's own python backend.
    assert lines.count("batch of 2 rows") == 2
    assert lines[-1].startswith("released 4")


def test_an_unread_batch_goes_to_the_next_worker(program: Path, tmp_path: Path) -> None:
    def leave(lane: Lane) -> None:
        """Wait for data, and leave without reading it."""
        with socket_of(lane) as connection:
            connection.recv(1, socket.MSG_PEEK)

    lines, heard = run(program, tmp_path, [leave, serving(echo)])
    assert [type(message).__name__ for message in heard] == ["Attach", "Attach", "Detach"]
    assert " y 11 " in lines[1]


def test_the_dispatcher_decides_about_a_batch_that_was_read(program: Path, tmp_path: Path) -> None:
    lines, heard = run(program, tmp_path, [serving(lambda lane, batch: None)])
    assert [type(message).__name__ for message in heard] == ["Attach", "LaneLost", "Detach"]
    assert lines[0] == "response to 0, flags 1: error 4 the worker was lost: é"


@pytest.mark.parametrize("verdict", [LOST, messages.Verdict("retry")])
def test_an_answer_that_arrives_before_the_verdict_is_used(
    program: Path, tmp_path: Path, verdict: messages.Verdict
) -> None:
    """Its worker is being ended all the same, so the next batch goes to another one."""
    asked, answered = threading.Event(), threading.Event()

    def judge(overdue: Any) -> messages.Verdict:
        assert isinstance(overdue, messages.BatchOverdue)
        if not overdue.was_read or answered.is_set():
            return messages.Verdict("wait", wait_s=0.1)
        asked.set()
        assert answered.wait(60)
        return verdict

    def answer_late(lane: Lane) -> None:
        batch = lane.receive()
        assert isinstance(batch, Batch)
        assert asked.wait(60)
        lane.send(echo(lane, batch))
        answered.set()
        wait_for_close(lane)

    served: list[int] = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        served.append(batch.id)
        return echo(lane, batch)

    works = [answer_late, serving(answer)]
    lines, _ = run(program, tmp_path, works, batches=2, judge=judge, patience_s=0.1)
    assert sum(" y 11 " in line for line in lines) == 2
    assert served == [2]


def test_without_a_worker_requests_get_an_error(program: Path, tmp_path: Path) -> None:
    lines, _ = run(program, tmp_path, [serving(lambda lane, batch: BatchDone(7, []))], batches=2)
    assert "error 4 model model: the worker answered batch 1 with BatchDone 7" in lines[0]
    assert lines[1].endswith("error 4 no worker is left")


def tensor(**wrong: Any) -> Callable[[Lane, Batch], Any]:
    """Return a response with one output, some fields of which are wrong."""

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        right = output(lane, "y", np.ones((1, 4), np.float32))
        return BatchDone(batch.id, [ResponseRef([msgspec.structs.replace(right, **wrong)])])

    return answer


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (tensor(shape=[1, 5]), "different size than its shape"),
        (tensor(shape=[-1, -4]), "invalid shape"),
        (tensor(shape=[2**62, 2**62]), "invalid shape"),
        (tensor(shape=[1] * 65), "too many dimensions"),
        (tensor(datatype="FLOAT"), "malformed"),
        (tensor(name="y\0z"), "malformed"),
        (tensor(memory=5), "memory segment 5, which it never announced"),
        (tensor(offset=1 << 40), "of a smaller memory segment"),
        (tensor(offset=-16), "of a smaller memory segment"),
        (tensor(nbytes=-16), "of a smaller memory segment"),
        (tensor(nbytes=2**63 - 1), "of a smaller memory segment"),
        (tensor(datatype="BYTES", shape=[1]), "different size than its shape"),
        (tensor(datatype="BYTES", shape=[2**61]), "different size than its shape"),
        (lambda lane, batch: BatchDone(batch.id, []), "0 responses to 1 requests"),
    ],
)
def test_a_malformed_response_fails_only_its_batch(
    program: Path, tmp_path: Path, answer: Callable[[Lane, Batch], Any], complaint: str
) -> None:
    lines, _ = run(program, tmp_path, [serving(answer), serving(echo)], batches=2)
    wrong, right = responses(lines)
    assert "error 4 model model: " in wrong
    assert complaint in wrong
    assert " y 11 " in right


def test_a_message_is_read_completely_while_its_memory_grows(program: Path, tmp_path: Path) -> None:
    """The message itself is in mapped memory; its tensors are in memory that has to be mapped again, elsewhere."""

    def answer(lane: Lane, batch: Batch) -> Spilled:
        far = lane.arena.allocate(batch.id << 17) + (batch.id << 17) - 64
        memory = lane.arena.writable()
        memory[far : far + 16] = b"0123456789abcdef"
        responses = [ResponseRef([TensorRef("y", "FP32", [1, 4], 0, far, 16)])] * 2
        data = msgspec.msgpack.encode(BatchDone(batch.id, responses))
        memory[: len(data)] = data
        return Spilled(0, len(data))

    lines, _ = run(program, tmp_path, [serving(answer)], batches=2, requests=2)
    assert sum(line.endswith("[1,4] 30313233343536373839616263646566") for line in lines) == 4


def test_an_output_too_large_for_memory_fails_only_its_request(
    program: Path, tmp_path: Path
) -> None:
    """The output is a sparse tebibyte; tritonserver's gRPC frontend would crash when it allocates that."""
    nbytes = 1 << 40

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        if batch.id == 1:
            fd = linux.memfd_create("huge")
            os.ftruncate(fd, nbytes)
            linux.seal_against_shrinking(fd)
            lane.announce(1, fd)
        huge = TensorRef("y", "INT8", [1, nbytes], 1, 0, nbytes)
        small = output(lane, "y", np.ones((1, 1), "f4"))
        return BatchDone(batch.id, [ResponseRef([huge]), ResponseRef([small])])

    lines, _ = run(program, tmp_path, [serving(answer)], batches=2, requests=2)
    answers = contents(lines)
    refused = f"error 4 output y of {nbytes} bytes cannot be passed on: "
    assert [answer.startswith(refused) for answer in answers] == [True, False] * 2
    assert answers[1] == answers[3] == "y 11 [1,1] 0000803f"


def test_unexpected_descriptors_are_closed(program: Path, tmp_path: Path) -> None:
    """Two at once, and one with an empty packet: none is open when the next batch arrives."""
    sent: list[socket.socket] = []

    def send(data: bytes, count: int) -> Work:
        def work(lane: Lane) -> None:
            lane.receive()
            ours, theirs = socket.socketpair()
            sent.append(ours)
            ours.settimeout(60)
            with theirs, socket_of(lane) as connection:
                connection.send(msgspec.msgpack.encode(Announce(5)))
                socket.send_fds(connection, [data], [theirs.fileno()] * count)

        return work

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        for one in sent:
            # A time-out while the proxy, which waits for us, holds the other end.
            assert one.recv(1) == b""
        return echo(lane, batch)

    works = [send(b"\0", 2), send(b"", 1), serving(answer)]
    lines, _ = run(program, tmp_path, works, batches=3)
    assert " y 11 " in lines[-2]
    assert len(sent) == 2
    for one in sent:
        one.close()


def test_an_error_text_may_contain_zero_bytes(program: Path, tmp_path: Path) -> None:
    def answer(lane: Lane, batch: Batch) -> Any:
        if batch.id == 1:
            return BatchFailed(batch.id, "a\0b")
        return BatchDone(batch.id, [ResponseRef([], "c\0d")])

    lines, _ = run(program, tmp_path, [serving(answer)], batches=2)
    assert contents(lines) == ["error 1 a?b", "error 1 c?d"]


@pytest.mark.parametrize(
    ("descriptors", "attempts"),
    [
        (4, 1),  # standard ones, the connection with the dispatcher, and none for the lane
        (5, 2),  # none for its memory: a worker is tried anew with each batch
        (6, 2),  # none to pass that memory on
    ],
)
def test_running_out_of_descriptors_is_reported_to_the_client(
    program: Path, tmp_path: Path, descriptors: int, attempts: int
) -> None:
    works = [serving(echo)] * 3
    lines, heard = run(program, tmp_path, works, batches=2, descriptors=descriptors)
    said = "\n".join(lines)
    assert "Too many open files" in said or "no file descriptors are left" in said
    assert sum(isinstance(message, messages.Attach) for message in heard) <= attempts


_scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=9),
)
_nested = st.recursive(
    _scalar,
    lambda of: st.lists(of, max_size=6) | st.dictionaries(st.text(max_size=3), of, max_size=3),
)
_tag = st.sampled_from(["BatchDone", "BatchFailed", "Announce", "Spilled", "Batch", "Metrics", ""])
_ref = st.tuples(
    st.sampled_from(["y", "z", ""]), st.sampled_from(["FP32", "BYTES", "INT8"]),

    st.lists(st.integers(-1, 5), max_size=3),
    st.integers(0, 1), st.integers(-1, 1 << 17), st.integers(-1, 1 << 17),
)  # fmt: skip
_response = st.tuples(
    st.lists(_ref, max_size=3), st.none() | st.text(max_size=5), st.none() | _nested
)
_message = st.one_of(
    st.binary(max_size=200),
    st.tuples(_tag, _nested, _nested).map(msgspec.msgpack.encode),
    st.tuples(st.just("BatchDone"), st.integers(1, 2), st.lists(_response, max_size=2)).map(
        msgspec.msgpack.encode
    ),
)


@pytest.fixture
def empty(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        folder = tmp_path / "one"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    return make


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(packets=st.lists(_message, min_size=1, max_size=4))
def test_the_proxy_survives_anything_a_worker_sends(
    program: Path, empty: Callable[[], Path], packets: list[bytes]
) -> None:
    """Every request is answered, no invalid memory is accessed, and nothing leaks."""

    def send(lane: Lane) -> None:
        try:
            lane.receive()
            lane.arena.allocate(1 << 16)
            lane.arena.writable()[: 1 << 16] = bytes(1 << 16)
            lane.send(messages_of_memory)  # announces the arena on its way
            with socket_of(lane) as connection:
                for packet in packets:
                    connection.send(packet or b"\0", socket.MSG_NOSIGNAL)
        except (LaneClosed, ConnectionError):
            return

    messages_of_memory = BatchDone(1, [ResponseRef([TensorRef("y", "FP32", [0], 0, 0, 0)])])
    lines, _ = run(program, empty(), [send, serving(echo)], batches=2)
    assert lines[-1] == "released 2, statistics of 2"


def test_an_instance_with_a_worker_is_ready(program: Path, tmp_path: Path) -> None:
    lines, _ = run(program, tmp_path, [serving(echo)], environment={"FAKE_READY": "1"})
    assert lines[0] == "ready: yes"


def test_without_a_dispatcher_each_request_fails_with_the_reason(
    program: Path, tmp_path: Path
) -> None:
    """As with a server that is being stopped, whose dispatcher no longer answers."""
    text = "é is being stopped"
    ready = {"FAKE_READY": "1"}
    lines, heard = run(
        program, tmp_path, [], requests=2, attaches=False, environment=ready, pytriton_stand_in=text
    )
    assert heard == []
    assert lines[0] == f"ready: {text}"
    assert contents(lines) == [f"error 4 {text}"] * 2
    assert lines[-1] == "released 2, statistics of 2"
