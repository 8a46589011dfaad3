"""Attacks of a worker on the proxy besides its responses: seals, changed strings, descriptors, names of metrics."""

from __future__ import annotations

import array
import fcntl
import os
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.triton.fake_tritonserver import (
    echo,
    output,
    run,
    serving,
    socket_of,
    wait_for_close,
)

from pytriton._protocol import linux
from pytriton._protocol.calls.call_connection import MAX_MEMORIES
from pytriton._protocol.calls.call_messages import Memory
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    MAX_METRICS,
    Batch,
    BatchDone,
    Metrics,
    MetricUpdate,
    ResponseRef,
    Room,
)

#: linux/fcntl.h.
_ADD_SEALS = 1033
_GROW, _WRITE = 4, 8


def seal(fd: int) -> list[int]:
    """Try to seal the memory behind a read-only descriptor; return the seals that were refused."""
    refused = []
    with closing(open(f"/proc/self/fd/{fd}", "r+b", buffering=0)) as writable:
        for wanted in (_GROW, _WRITE):
            with suppress(PermissionError):
                fcntl.fcntl(writable, _ADD_SEALS, wanted)
                continue
            refused.append(wanted)
    return refused


def test_a_worker_cannot_seal_the_memory_of_the_proxy(program: Path, tmp_path: Path) -> None:
    """It could open it for writing through /proc. Sealed against writing or growing, the memory would be useless."""
    refused = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        reply = echo(lane, batch)
        refused.append(seal(lane._memories[0]._fd))
        return reply

    lines, _ = run(program, tmp_path, [serving(answer)], batches=2, requests=600)
    assert refused == [[_GROW, _WRITE]] * 2
    assert sum(" y 11 " in line for line in lines) == 1200


def test_strings_are_checked_in_a_private_copy(program: Path, tmp_path: Path) -> None:
    def answer(lane: Lane, batch: Batch) -> BatchDone:
        ref = tensors.write_raw(lane, "z", "BYTES", [1, 1], b"\3\0\0\0abc")
        assert ref.offset == 0
        return BatchDone(batch.id, [ResponseRef([ref])])

    changes = {"FAKE_CHANGES": "1"}
    lines, _ = run(program, tmp_path, [serving(answer)], environment=changes)
    assert "the worker's output z has a different size than its shape requires" in lines[1]
    lines, _ = run(program, tmp_path / "..", [serving(answer)])
    assert lines[1].endswith(" z 13 [1,1] 03000000616263")


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_trailing_response_fields_are_optional(program: Path, tmp_path: Path, fields: int) -> None:
    """The last fields of its details are optional, too."""

    def answer(lane: Lane) -> None:
        batch = lane.receive()
        assert isinstance(batch, Batch)
        ref = output(lane, "y", np.ones((1, 2), np.float32))
        response = [[ref], None, ["INTERNAL"]][:fields]
        lane.announce(0, lane.arena.open_readonly())
        data = msgspec.msgpack.encode(["BatchDone", batch.id, [response]])
        with socket_of(lane) as connection:
            connection.send(data)
        wait_for_close(lane)

    lines, _ = run(program, tmp_path, [answer])
    assert lines[1] == "response to 0, flags 1: y 11 [1,2] 0000803f0000803f"


def leave(lane: Lane) -> None:
    """Receive the batch, and leave without answering it."""
    assert isinstance(lane.receive(), Batch)


def counted(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("metric ")]


def complaints(lines: list[str]) -> list[str]:
    return [line for line in lines if "custom metric" in line]


def test_custom_metrics_cannot_use_tritonservers_names(program: Path, tmp_path: Path) -> None:
    def work(lane: Lane) -> None:
        lane.send(Room(1))
        lane.send(Metrics([MetricUpdate("nv_inference_count", "", "COUNTER", {})]))
        leave(lane)

    lines, _ = run(program, tmp_path, [work], decoupled=True)
    (said,) = complaints(lines)
    assert "nv_inference_count: names that begin with nv_ are reserved for tritonserver" in said


def test_custom_metrics_are_counted_by_tritonserver(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each family and set of labels; an update without a change only creates it."""
    monkeypatch.setenv("FAKE_METRICS", "1")

    def update(change: str, value: float, **labels: str) -> MetricUpdate:
        return MetricUpdate("seen", "", "COUNTER", labels, None, change, value)

    def work(lane: Lane) -> None:
        lane.send(Room(1))
        lane.send(Metrics([update("", 0, model="a"), update("increment", 2, model="a")]))
        lane.send(Metrics([update("increment", 3, model="a"), update("increment", 4, model="b")]))
        lane.send(Metrics([MetricUpdate("held", "", "GAUGE", {}, None, "set", 1.5)]))
        leave(lane)

    lines, _ = run(program, tmp_path, [work], decoupled=True)
    assert sorted(counted(lines)) == [
        "metric held{} 1.5",
        'metric seen{model="a"} 5',
        'metric seen{model="b"} 4',
    ]


def test_a_metric_family_is_deleted_with_its_last_metric(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_METRICS", "1")

    def update(change: str, value: float, kind: str, **labels: str) -> MetricUpdate:
        return MetricUpdate("seen", "", kind, labels, None, change, value)

    def work(lane: Lane) -> None:
        lane.send(Room(1))
        lane.send(Metrics([update("increment", 1, "COUNTER", a="1"), update("", 0, "COUNTER")]))
        lane.send(Metrics([update("delete", 0, "COUNTER"), update("set", 2, "GAUGE")]))
        lane.send(Metrics([update("delete", 0, "COUNTER", a="1"), update("set", 3, "GAUGE")]))
        lane.send(Metrics([update("delete", 0, "COUNTER", a="never")]))
        leave(lane)

    lines, _ = run(program, tmp_path, [work], decoupled=True)
    assert counted(lines) == ["metric seen{} 0", 'metric seen{a="1"} 1', "metric seen{} 3"]
    (said,) = complaints(lines)  # while one of the counters was there
    assert "another kind already exists" in said


def test_the_number_of_a_workers_metrics_is_limited(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Existing metrics keep counting, and the log mentions the others only a few times."""
    monkeypatch.setenv("FAKE_METRICS", "1")

    def update(
        number: int, kind: str = "COUNTER", name: str = "seen", **labels: str
    ) -> MetricUpdate:
        every = {"user": str(number), **labels}
        return MetricUpdate(name, "", kind, every, None, "increment", 1)

    def work(lane: Lane) -> None:
        lane.send(Room(1))
        lane.send(Metrics([update(0, "HISTOGRAM", le="1")]))
        lane.send(Metrics([update(0, name="x" * 70_000)]))
        for begin in range(0, 2 * MAX_METRICS, MAX_METRICS):
            lane.send(Metrics([update(begin + number) for number in range(MAX_METRICS)]))
        lane.send(Metrics([update(0)]))
        leave(lane)

    lines, _ = run(program, tmp_path, [work], decoupled=True)
    assert len(counted(lines)) == MAX_METRICS
    assert 'metric seen{user="0"} 2' in counted(lines)
    said = complaints(lines)
    assert "the label 'le' is reserved for a histogram's buckets" in said[0]
    assert "have more than 64 KiB" in said[1]
    assert "this instance has too many metrics" in said[2]
    assert len(said) == 64


def test_the_number_of_a_workers_shared_memories_is_limited(program: Path, tmp_path: Path) -> None:
    """On its connection for calls, where each would be a descriptor of tritonserver."""
    ended: list[bool] = []

    def announce(connection: socket.socket, fd: int) -> None:
        number = 0
        try:
            while number <= 2 * MAX_MEMORIES:
                number += 1
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                connection.sendmsg([msgspec.msgpack.encode(Memory(number))], rights)
        except ConnectionError:
            ended.append(number > MAX_MEMORIES)

    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as calls:
        calls.bind(str(tmp_path / "0.call"))
        calls.listen()

        def answer(lane: Lane, batch: Batch) -> Any:
            connection, _ = calls.accept()
            fd = linux.memfd_create("test")
            os.ftruncate(fd, 4096)
            linux.seal_against_shrinking(fd)
            with closing(connection):
                announce(connection, fd)
            os.close(fd)
            return echo(lane, batch)

        lines, _ = run(program, tmp_path, [serving(answer)], descriptors=4 * MAX_MEMORIES)
    assert ended == [True]
    assert any(" y 11 " in line for line in lines)


@pytest.mark.parametrize(("minor", "fits"), [(18, False), (19, True), (40, True)])
def test_the_version_of_tritonservers_api_is_checked(
    program: Path, tmp_path: Path, minor: int, fits: bool
) -> None:
    works = [serving(echo)] if fits else []
    lines, _ = run(program, tmp_path, works, environment={"FAKE_API": str(minor)})
    if fits:
        assert " y 11 " in lines[1]
    else:
        assert lines == [
            f"refused: tritonserver has version 1.{minor} of the backend API, but the compiled proxy needs 1.19: "
            "use a newer tritonserver"
        ]
