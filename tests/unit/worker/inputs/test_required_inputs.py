"""Requests that lack an input which is not optional: they fail, and nobody in their batch with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestRef,
)
from pytriton._protocol.messages import ModelSpec, WorkerEnvironment
from pytriton.worker.model import Part, WorkerModel

Lanes = tuple[Lane, Lane]


def model(infer: Any, *, optional: bool = True, decoupled: bool = False) -> WorkerModel:
    def entry(name: str) -> dict[str, Any]:
        return {"name": name, "data_type": "TYPE_FP32", "dims": [1]}

    config = {
        "name": "sum",
        "max_batch_size": 8,
        "input": [entry("x"), {**entry("o"), "optional": optional}],
        "output": [entry("y")],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    return WorkerModel(ModelSpec("sum", 1, config, WorkerEnvironment("")), infer)


def batch(lanes: Lanes, *requests: dict[str, float]) -> Part:
    """What the proxy sends, and the worker receives: inputs by name."""
    proxy, worker = lanes
    refs = []
    for inputs in requests:
        arrays = [(name, np.full((1, 1), value, np.float32)) for name, value in inputs.items()]
        tensor_refs = [tensors.write(proxy, n, "FP32", a, a.dtype) for n, a in arrays]
        refs.append(RequestRef(tensor_refs, "", []))
    proxy.send(Batch(5, refs))
    received = worker.receive()
    assert isinstance(received, Batch)
    return Part(worker, received)


def answers(lanes: Lanes, to: WorkerModel, part: Part) -> list[float | str | None]:
    """The answer to each request, as the proxy reads it."""
    (answer,) = to.answer([part])
    assert isinstance(answer, BatchDone)
    assert answer.id == 5
    part.lane.send(answer)
    received = lanes[0].receive()
    assert isinstance(received, BatchDone)
    return [
        response.error
        if response.error is not None
        else float(tensors.read(lanes[0], response.outputs[0], np.dtype(np.float32))[0, 0])
        for response in received.responses
    ]


def sums(requests: Any) -> Any:
    return [{"y": request["x"] + request.get("o", 0)} for request in requests]


def test_only_the_request_that_lacks_it_fails(lanes: Lanes) -> None:
    part = batch(lanes, {"x": 1}, {"o": 2}, {"x": 3, "o": 4}, {})
    right, wrong, also_right, empty = answers(lanes, model(sums), part)
    assert (right, also_right) == (1, 7)
    assert wrong == (
        "the request lacks the input `x` of model `sum`, which is not optional; it has `o`. "
        "[request id: 0-5-1]"
    )
    assert "it has none. [request id: " in str(empty)


def test_callable_and_clients_see_the_same_request_ids(lanes: Lanes) -> None:
    def refuses(requests: Any) -> Any:
        raise LookupError(" ".join(request.request_id for request in requests))

    part = batch(lanes, {"o": 2}, {"x": 1}, {"x": 3})
    _, second, third = answers(lanes, model(refuses), part)
    assert second == "LookupError: 0-5-1 [request id: 0-5-1]"  # each was tried alone, too
    assert third == "LookupError: 0-5-2 [request id: 0-5-2]"


def test_the_other_requests_are_traced(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton.worker.model.spans_of", lambda *_: None)  # nobody collects them
    served = model(sums)
    reported: list[str] = []
    served.on_traced = reported.append
    lane, sent = batch(lanes, {"o": 2}, {"x": 1})
    parent = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
    part = Part(lane, structs.replace(sent, trace=BatchTrace(0, ["", parent])))
    assert answers(lanes, served, part)[1] == 1
    assert reported == ["4bf92f3577b34da6a3ce929d0e0e4736"]


def test_the_callable_is_not_called_for_nothing(lanes: Lanes) -> None:
    def refuses(requests: Any) -> Any:
        raise AssertionError("nothing is left to do")

    (wrong,) = answers(lanes, model(refuses), batch(lanes, {"o": 2}))
    assert "lacks the input `x`" in str(wrong)


def test_a_failing_callable_gives_each_request_its_own_error(lanes: Lanes) -> None:
    def fails(requests: Any) -> Any:
        raise LookupError("no weights")

    failed, wrong = answers(lanes, model(fails), batch(lanes, {"x": 1}, {"o": 2}))
    assert failed == "LookupError: no weights [request id: 0-5-0]"
    assert "lacks the input `x`" in str(wrong)


def test_merged_batches_are_distinguished(lanes: Lanes) -> None:
    part = batch(lanes, {"o": 2})
    good = batch(lanes, {"x": 1})
    first, second = model(sums).answer([part, good])
    assert isinstance(first, BatchDone)
    assert isinstance(second, BatchDone)
    assert "lacks" in str(first.responses[0].error)
    assert second.responses[0].error is None


def test_without_optional_inputs_tritons_own_check_is_enough(lanes: Lanes) -> None:
    (answer,) = model(sums, optional=False).answer([batch(lanes, {"o": 2})])
    assert isinstance(answer, BatchFailed)
    assert answer.text == "KeyError: 'x'"


def test_of_a_decoupled_model_the_batch_fails(lanes: Lanes) -> None:
    served = model(sums, decoupled=True)
    with pytest.raises(ValueError, match="lacks the input `x` of model `sum`"):
        served.requests([batch(lanes, {"o": 2})])
