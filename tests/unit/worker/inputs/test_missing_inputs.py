"""Requests that lack an input that their model needs."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestRef,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.lanes.request_records import id_at
from pytriton.worker.inputs.batch_requests import RequiredInputs, complete, with_faults
from pytriton.worker.request_log import ids_of

_CONFIG: dict[str, Any] = {"input": [{"name": "a"}, {"name": "b", "optional": True}]}


def request(*names: str, request_id: str = "") -> RequestRef:
    refs = [TensorRef(name, "FP32", [1], 0, 0, 4) for name in names]
    return RequestRef(refs, "", [], request_id)


def test_without_optional_inputs_tritons_count_is_enough() -> None:
    required = RequiredInputs("m", {"input": [{"name": "a"}, {"name": "b"}]})
    assert required.names == []
    assert required.lacking(Batch(1, [request("b", "b")])) is None


def test_a_batch_in_which_all_is_there_has_no_fault() -> None:
    required = RequiredInputs("m", _CONFIG)
    assert required.lacking(Batch(1, [request("a"), request("b", "a")])) is None


@pytest.mark.parametrize(("given", "reported"), [(["b"], "it has `b`."), ([], "it has none.")])
def test_a_missing_input_error_names_it_and_those_present(given: list[str], reported: str) -> None:
    faults = RequiredInputs("m", _CONFIG).lacking(Batch(1, [request("a"), request(*given)]))
    assert faults is not None
    assert faults[0] is None
    assert faults[1] is not None
    assert "lacks the input `a` of model `m`" in faults[1]
    assert faults[1].endswith(reported)


def test_the_others_are_served_and_the_answers_are_in_order() -> None:
    faults = ["first is wrong", None, "third is wrong", None]
    batch = Batch(7, [request("b"), request("a"), request("b"), request("a", "b")])
    assert complete(batch, faults) == Batch(
        7, [request("a", request_id="0-7-1"), request("a", "b", request_id="0-7-3")]
    )
    two, four = ResponseRef([]), ResponseRef([], "four's own error")
    answer = with_faults(BatchDone(7, [two, four]), faults, batch)
    wrong = [ResponseRef([], with_id(faults[at] or "", id_at(batch, at))) for at in (0, 2)]
    assert wrong[0].error == "first is wrong [request id: 0-7-0]"
    assert answer == BatchDone(7, [wrong[0], two, wrong[1], four])


def test_the_others_keep_their_ids_and_their_traces() -> None:
    parent = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
    refs = [request("b"), request("a", request_id="given"), *[request("a")] * 2]
    batch = Batch(7, refs, BatchTrace(3, ["", "", parent]), taken_ns=16, reads=True, rows=4)
    rest = complete(batch, ["wrong", None, None, None])
    assert ids_of(rest) == ids_of(batch)[1:]
    assert ids_of(rest) == ["given", "4bf92f3577b34da6a3ce929d0e0e4736", "10-7-3"]
    assert rest.trace == BatchTrace(3, ["", parent, ""])
    assert (rest.taken_ns, rest.reads) == (16, True)


def test_when_the_rest_of_the_batch_fails_each_has_its_own_reason() -> None:
    batch = Batch(7, [RequestRef([], "", [], "one"), RequestRef([], "", [], "two")])
    answer = with_faults(BatchFailed(7, "the callable failed"), ["lacks a", None], batch)
    assert [one.error for one in answer.responses] == [
        "lacks a [request id: one]",
        "the callable failed [request id: two]",
    ]
