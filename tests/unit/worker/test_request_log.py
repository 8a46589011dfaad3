"""The records of a call's requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.lanes.request_records import UNBOUNDED, RequestRecord, decoded
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.worker.request_log import Part, RequestLog


class Stage:
    def __init__(self) -> None:
        self.dispatcher, descriptor = WorkerStatsPage.create()
        self.log = RequestLog(descriptor)
        self.dispatcher.records.want(0, UNBOUNDED)

    def call(self, parts: list[Part], answers: Any, failed: str = "") -> list[RequestRecord]:
        if failed:
            self.log.failed(failed, 1)
        self.log.stats.end(self.log.stats.begin(1), parts, answers)
        found = self.dispatcher.records.take().messages
        return [one for message in found for one in decoded(message) or ()]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    for one in (made.dispatcher, made.log.stats):
        one.close()


def request(name: str, nbytes: int = 4, parameters: str = "") -> RequestRef:
    return RequestRef([TensorRef("x", "FP32", [1], 0, 0, nbytes)] * 2, parameters, [], name)


def part(number: int, *refs: RequestRef, rows: int = 0, taken_ns: int = 0) -> Part:
    return Part(None, Batch(number, list(refs), taken_ns=taken_ns, rows=rows))  # type: ignore[arg-type]


def answer(nbytes: int) -> ResponseRef:
    return ResponseRef([TensorRef("y", "FP32", [1], 0, 0, nbytes)])


def test_each_request_of_merged_batches_has_a_record(stage: Stage) -> None:
    versioned = f'{{"{VERSION_PARAMETER}":"7"}}'
    parts = [
        part(1, request("a"), request("b", 8), rows=5, taken_ns=1),
        part(1, request("c", 1, versioned), rows=2),
    ]
    found = stage.call(parts, [BatchDone(1, [answer(3), answer(6)]), BatchDone(1, [answer(9)])])
    assert [(one.id, one.bytes_in, one.bytes_out, one.version) for one in found] == [
        ("a", 8, 3, 0), ("b", 16, 6, 0), ("c", 2, 9, 7),
    ]  # fmt: skip
    assert {(one.status, one.requests, one.rows) for one in found} == {("ok", 3, 7)}
    assert found[0].queue_ns > 0
    assert found[2].queue_ns == -1
    assert found[0].compute_ns >= 0


def test_failed_requests_have_a_reason(stage: Stage) -> None:
    both = part(1, request("a"), request("b"))
    found = stage.call([both], [BatchFailed(1, "no")], "result")
    assert [(one.id, one.status, one.bytes_out) for one in found] == [
        ("a", "result", 0),
        ("b", "result", 0),
    ]
    found = stage.call([both], [BatchDone(1, [ResponseRef([], "lacks x"), answer(1)])], "input")
    assert [one.status for one in found] == ["input", "ok"]
    found = stage.call([both], [BatchDone(1, [answer(1)] * 2)])
    assert [one.status for one in found] == ["ok", "ok"]  # the previous failure does not count


def test_failures_record_the_exceptions_type_without_its_text(stage: Stage) -> None:
    both = part(1, request("a"), request("b"))
    stage.log.failed("callable", 1, ValueError("a secret"))
    found = stage.call([both], [BatchDone(1, [answer(1), ResponseRef([], "no")])])
    assert [one.error for one in found] == ["", "ValueError"]
    assert [one.error for one in stage.call([both], [BatchFailed(1, "no")])] == ["", ""]
    stage.log.failed("callable", 2, type("x" * 1000, (Exception,), {})())
    found = stage.call([both], [BatchFailed(1, "no")])
    assert [one.error for one in found] == ["x" * 100] * 2


def test_a_sample_is_one_request_of_a_call_or_those_that_failed(stage: Stage) -> None:
    stage.dispatcher.records.want(0, 5)
    three = part(1, request("a"), request("b"), request("c"))
    assert [one.id for one in stage.call([three], [BatchDone(1, [answer(1)] * 3)])] == ["a"]
    failed = BatchDone(1, [answer(1), ResponseRef([], "no"), ResponseRef([], "no")])
    assert [one.id for one in stage.call([three], [failed], "input")] == ["b", "c"]
    assert [one.id for one in stage.call([three], [BatchFailed(1, "no")], "input")] == ["a", "b"]
    assert stage.call([three], [BatchFailed(1, "no")], "input") == []  # this many were requested


@pytest.mark.parametrize(
    ("failure", "sent", "said"), [("", 12, ("ok", 12)), ("timeout", None, ("timeout", -1))]
)
def test_a_stream_has_one_end(stage: Stage, failure: str, sent: Any, said: Any) -> None:
    stream = SimpleNamespace(failure=failure, bytes_out=sent, error="ZeroDivisionError")
    (found,) = stage.call([part(1, request("s"))], stream)
    assert (found.status, found.bytes_out) == said
    assert found.error == "ZeroDivisionError"


@pytest.mark.parametrize(
    "value", ['"²"', '"9999999999999999999999"', "7", '"-1"', "null", '"x"', '"1\\n"']
)
def test_client_supplied_versions_are_ignored(stage: Stage, value: str) -> None:
    one = request("a", parameters=f'{{"{VERSION_PARAMETER}":{value}}}')
    (found,) = stage.call([part(1, one)], [BatchDone(1, [answer(1)])])
    assert found.version == 0


@pytest.mark.parametrize("name", ["\udc80" * 200, "\x00\x1b[2J", "x" * 100_000, "é"])
def test_any_request_id_can_be_written(stage: Stage, name: str) -> None:
    for one in (request(name), request("", parameters=json.dumps({"X-Request-ID": name}))):
        (found,) = stage.call([part(1, one)], [BatchDone(1, [answer(1)])])
        assert 0 < len(found.id) <= 200
        assert found.id.isprintable()


def test_a_lost_stream_has_no_record(stage: Stage) -> None:
    assert stage.call([], ()) == []


@pytest.mark.parametrize(
    "parameters",
    ["[" * 100_000 + VERSION_PARAMETER, f'["{VERSION_PARAMETER}"]', "x-request-id", '["traceparent"]'],
)  # fmt: skip
def test_invalid_sizes_and_parameters_from_a_proxy_are_harmless(
    stage: Stage, parameters: str
) -> None:
    most = (1 << 64) - 1
    refs = [request("", most, parameters), request("", most, parameters)]
    parts = [part(1, *refs, rows=most), part(2, *refs, rows=most)]
    found = stage.call(parts, [BatchDone(number, [answer(most)] * 2) for number in (1, 2)])
    assert len(found) == 4
    assert {(one.rows, one.bytes_in, one.version) for one in found} == {((1 << 63) - 1,) * 2 + (0,)}


@pytest.mark.parametrize(("said", "noted"), [(-(2**63), (0, 0, -1)), (2**63 - 1, (2**63 - 1,) * 3)])
def test_sizes_from_a_hostile_proxy_are_bounded(
    stage: Stage, said: int, noted: tuple[int, int, int]
) -> None:
    """Their sums exceed what a record can hold."""
    parts = [part(number, request("a", nbytes=said), rows=said) for number in (1, 2)]
    answers = [BatchDone(number, [answer(said)]) for number in (1, 2)]
    records = stage.call(parts, answers)
    assert [(one.rows, one.bytes_in, one.bytes_out) for one in records] == [noted, noted]
