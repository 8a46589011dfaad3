"""Request ids in errors: the compiled proxy uses the id that the worker's log has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.triton.fake_tritonserver import begin_first, contents, echo, run, serving

from pytriton._protocol import messages
from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import Batch, BatchFailed, Room
from pytriton._protocol.lanes.request_records import id_at

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LOST = "error 4 the worker was lost: é"


class Fails:
    """A worker whose callable fails; it records the ids of its requests."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, lane: Lane, batch: Batch) -> BatchFailed:
        self.names += [id_at(batch, place) for place in range(len(batch.requests))]
        return BatchFailed(batch.id, "raised")


@pytest.mark.parametrize(
    ("given", "header"),
    [
        ("order-17", "x-request-id=no"),
        ("", "X-Request-Id=h-1"),
        ("", f"Traceparent={PARENT}"),
        ("", "traceparent=no trace"),
        ("", "other=value"),
        ("two\tlines\x7f", ""),
        ("naïve", ""),
        ("100 % ] [request id: x]", ""),
        ("x" * 300, ""),
        ("", "x-request-id=" + "y" * 300),
        ("", "x-request-id=" + "%" * 99),
        ("", "x-request-id=" + "é" * 99),
    ],
)
def test_an_error_has_the_request_id_of_the_workers_log(
    program: Path, tmp_path: Path, given: str, header: str
) -> None:
    worker = Fails()
    environment = {"FAKE_ID": given, **({"FAKE_HEADER": header} if header else {})}
    lines, _ = run(
        program, tmp_path, [serving(worker)], requests=2, environment=environment, named=True
    )
    assert len(set(worker.names)) == (2 if header in ("other=value", "traceparent=no trace") else 1)
    assert contents(lines) == [f"error 1 {with_id('raised', name)}" for name in worker.names]


def test_a_lost_worker_is_reported_with_its_request(program: Path, tmp_path: Path) -> None:
    """The dispatcher gets the id, too, for its event; of several requests it gets none."""
    seen: list[str] = []

    def judge(asked: Any) -> messages.Verdict:
        guilty = asked.lost_workers > 1
        return messages.Verdict("fail", "it kills") if guilty else messages.Verdict("retry")

    def work(lane: Lane, batch: Batch) -> Any:
        seen.append(id_at(batch, 0))
        return None if len(seen) < 3 else echo(lane, batch)

    lines, heard = run(
        program, tmp_path, [serving(work)] * 3, requests=2, environment={"FAKE_ID": ""},
        judge=judge, named=True,
    )  # fmt: skip
    assert contents(lines)[0] == f"error 4 it kills [request id: {seen[1]}]"
    lost = [one.request_id for one in heard if isinstance(one, messages.LaneLost)]
    assert lost == ["", seen[1]]


@pytest.mark.parametrize(
    ("given", "names"),
    [("order-17", ["order-17", "order-17"]), ("", ["1", ""])],
    ids=["its client's", "its trace's, or none"],
)
def test_a_request_that_reached_no_worker_keeps_the_clients_id(
    program: Path, tmp_path: Path, given: str, names: list[str]
) -> None:
    """No worker has generated an id for it, so no log has one."""
    broken = serving(lambda lane, batch: BatchFailed(7, "not this one"))
    lines, _ = run(
        program, tmp_path, [broken], batches=2, requests=2, environment={"FAKE_ID": given},
        named=True,
    )  # fmt: skip
    assert contents(lines)[2:] == [
        f"error 4 {with_id('no worker is left', name)}" for name in names
    ]


def test_errors_of_python_models_have_triton_s_wording(program: Path, tmp_path: Path) -> None:
    lines, _ = run(
        program, tmp_path, [serving(Fails())], named=True, pytriton_python_model="details"
    )
    assert contents(lines) == ["error 1 raised"]


@pytest.mark.parametrize("given", ["order-17", ""])
def test_a_stream_that_is_lost_names_its_request(program: Path, tmp_path: Path, given: str) -> None:
    """By then the request belongs to tritonserver again."""
    names: list[str] = []

    def leave(lane: Lane) -> None:
        names.append(id_at(begin_first(lane), 0))

    lines, heard = run(
        program, tmp_path, [leave], decoupled=True, environment={"FAKE_ID": given}, named=True
    )
    assert contents(lines) == [f"{LOST} [request id: {names[0]}]"]
    assert [one.request_id for one in heard if isinstance(one, messages.LaneLost)] == names


def test_a_stream_that_fails_names_its_request(program: Path, tmp_path: Path) -> None:
    def fail(lane: Lane) -> None:
        lane.send(Room(1))
        batch = lane.receive()
        assert isinstance(batch, Batch)
        lane.send(BatchFailed(batch.id, "raised"))
        with pytest.raises(LaneClosed):
            lane.receive()

    lines, _ = run(program, tmp_path, [fail], decoupled=True, named=True)
    assert contents(lines) == ["error 1 raised [request id: i]"]
