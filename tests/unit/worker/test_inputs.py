"""From a batch on the lane to the callable's requests: gathered, writable, owned by the callable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fakes.fake_call_log import FakeCallLog
from fakes.lane_pair import Lanes, lane_pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.examples import examples

from pytriton._protocol import numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneError
from pytriton._protocol.lanes.lane_messages import (
    ARENA,
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestRef,
    TensorRef,
)
from pytriton._protocol.lanes.request_records import ids_of
from pytriton._protocol.lanes.tensors import Array
from pytriton._protocol.messages import ModelSpec, WorkerEnvironment
from pytriton.proxy.types import Request
from pytriton.worker.inputs import read_requests, without_invalid
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import CallLog, Part

Inputs = dict[str, Array]
_DATATYPES = {dtype: name for name, dtype in numpy_types.NUMERIC.items() if name != "BF16"}
_DATATYPES[np.dtype(ml_dtypes.bfloat16)] = "BF16"


def put(lane: Lane, name: str, array: Array) -> TensorRef:
    lane.arena.allocate(3)  # so that tensors are not adjacent
    if array.dtype == object:
        return tensors.write_raw(lane, name, "BYTES", array.shape, tensors.encode_bytes(array))
    return tensors.write(lane, name, _DATATYPES[array.dtype], array, array.dtype)


def received(
    refs: list[RequestRef], lane: Lane, *, batching: bool, zero_copy: bool = False
) -> list[Request]:
    return read_requests([Part(lane, Batch(1, refs))], batching=batching, zero_copy=zero_copy)


def send(lanes: Lanes, batch: Sequence[Inputs], parameters: str = "") -> list[RequestRef]:
    """Send a batch as the proxy; return what the worker receives."""
    proxy, worker = lanes
    proxy.arena.reset()
    refs = [
        RequestRef([put(proxy, name, array) for name, array in inputs.items()], parameters, [])
        for inputs in batch
    ]
    proxy.send(Batch(1, refs))
    received = worker.receive()
    assert isinstance(received, Batch)
    return received.requests


def read(lanes: Lanes, batch: Sequence[Inputs], *, batching: bool = True) -> list[Request]:
    return received(send(lanes, batch), lanes[1], batching=batching)


def assert_same(requests: Sequence[Request], batch: Sequence[Inputs]) -> None:
    assert [list(request) for request in requests] == [list(inputs) for inputs in batch]
    for request, inputs in zip(requests, batch):
        for name, array in inputs.items():
            assert request[name].dtype == array.dtype
            assert request[name].shape == array.shape
            assert request[name].tolist() == array.tolist()


def strings(*elements: bytes) -> Array:
    array = np.empty((len(elements), 1), object)
    array[:, 0] = elements
    return array


def assert_gathered(arrays: Sequence[Array]) -> Array:
    """Check that the arrays are adjacent in one base; return the base."""
    base: Array | None = arrays[0].base
    assert base is not None
    start = base.ctypes.data
    for array in arrays:
        assert array.base is base
        assert np.shares_memory(array, base) or array.size == 0
        assert array.flags.c_contiguous
        assert array.ctypes.data == start
        start += array.nbytes
    assert base.flags.c_contiguous
    assert start == base.ctypes.data + base.nbytes
    return base


def test_requests_of_a_batch_are_slices_of_one_array(lanes: Lanes) -> None:
    rng = np.random.default_rng(1)
    batch: list[Inputs] = [
        {"x": rng.random((rows, 3, 2)), "y": rng.integers(0, 9, (rows, 4), dtype=np.int32)}
        for rows in (2, 1, 5)
    ]
    requests = read(lanes, batch)
    assert_same(requests, batch)
    for name in ("x", "y"):
        base = assert_gathered([request[name] for request in requests])
        np.testing.assert_array_equal(base, np.concatenate([inputs[name] for inputs in batch]))


@pytest.mark.parametrize("datatype", sorted(numpy_types.NUMERIC))
def test_every_datatype_is_gathered(lanes: Lanes, datatype: str) -> None:
    dtype = numpy_types.element_dtype(datatype)
    batch: list[Inputs] = [
        {"x": np.array([[1], [0]]).astype(dtype)},
        {"x": np.array([[1]]).astype(dtype)},
    ]
    requests = read(lanes, batch)
    assert_same(requests, batch)
    assert_gathered([request["x"] for request in requests])


def test_rows_of_no_elements_and_requests_of_no_rows(lanes: Lanes) -> None:
    batch: list[Inputs] = [
        {"x": np.ones((0, 3)), "y": np.ones((2, 0))},
        {"x": np.ones((2, 3)), "y": np.ones((1, 0))},
    ]
    assert_same(read(lanes, batch), batch)
    assert_same(read(lanes, batch[:1]), batch[:1])


def test_requests_of_different_shapes_get_separate_arrays(lanes: Lanes) -> None:
    batch = [
        {"x": np.ones((2, 3)), "y": np.ones((2, 1))},
        {"x": np.ones((2, 4)), "y": np.ones((2, 1))},
    ]
    requests = read(lanes, batch)
    assert_same(requests, batch)
    assert not np.shares_memory(requests[0]["x"], requests[1]["x"])
    assert requests[0]["x"].base is not requests[1]["x"].base or requests[0]["x"].base is None
    assert_gathered([request["y"] for request in requests])  # each input by itself


def test_requests_of_different_datatypes_are_not_mixed(lanes: Lanes) -> None:
    batch: list[Inputs] = [{"x": np.ones((1, 2), np.float32)}, {"x": np.ones((1, 2), np.int32)}]
    assert_same(read(lanes, batch), batch)


def test_inputs_omitted_by_some_clients(lanes: Lanes) -> None:
    batch: list[Inputs] = [
        {"x": np.ones((1, 2)), "y": np.zeros((1, 2))},
        {"x": np.full((2, 2), 2.0)},
        {"y": np.full((3, 2), 3.0)},
        {},
        {"y": np.full((1, 2), 4.0)},
    ]
    requests = read(lanes, batch)
    assert_same(requests, batch)
    assert_gathered([requests[0]["x"], requests[1]["x"]])
    assert_gathered([requests[0]["y"], requests[2]["y"], requests[4]["y"]])


@pytest.mark.parametrize("batching", [False, True])
def test_bytes(lanes: Lanes, batching: bool) -> None:
    batch = [{"x": strings(b"a\0", b"")}, {"x": strings("é".encode())}]
    assert_same(read(lanes, batch, batching=batching), batch)
    assert_same(read(lanes, batch[:1], batching=batching), batch[:1])


def test_without_batching_every_request_has_its_own_array(lanes: Lanes) -> None:
    batch: list[Inputs] = [{"x": np.array(1.5)}, {"x": np.arange(3.0)}, {"x": np.arange(3.0)}]
    requests = read(lanes, batch, batching=False)
    assert_same(requests, batch)
    for request in requests:
        assert request["x"].flags.owndata


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batching", [False, True])
def test_arrays_belong_to_the_callable(lanes: Lanes, count: int, batching: bool) -> None:
    batch = [{"x": np.full((2, 5), float(k)), "s": strings(b"a", b"b")} for k in range(count)]
    refs = send(lanes, batch)
    requests = received(refs, lanes[1], batching=batching)
    for request in requests:
        for array in request.values():
            assert array.flags.writeable
            assert array.flags.aligned
        request["x"][:] = -1
        request["s"][:] = b"-"
    assert_same(received(refs, lanes[1], batching=batching), batch)  # Triton's memory is as before
    kept = [request["x"].copy() for request in requests]
    lanes[0].arena.writable()[:] = b"\xff" * lanes[0].arena.size
    for request, copy in zip(requests, kept):
        np.testing.assert_array_equal(request["x"], copy)


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_tensors_at_unaligned_addresses(lanes: Lanes, count: int, batching: bool) -> None:
    proxy, worker = lanes
    offset = proxy.arena.allocate(100) + 1
    proxy.arena.writable()[offset : offset + 16] = np.array([1.0, 2.0]).tobytes()
    refs = [RequestRef([TensorRef("x", "FP64", [1, 2], ARENA, offset, 16)], "", [])] * count
    proxy.send(Batch(1, refs))
    worker.receive()
    for request in received(refs, worker, batching=batching):
        assert request["x"].tolist() == [[1.0, 2.0]]
        assert request["x"].flags.aligned


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a":1,"b":"é","c":true,"d":1.5}', {"a": 1, "b": "é", "c": True, "d": 1.5}),
        ('{"a":Infinity,"b":-Infinity}', {"a": float("inf"), "b": float("-inf")}),
    ],
)
def test_parameters(lanes: Lanes, text: str, parameters: dict[str, Any]) -> None:
    refs = send(lanes, [{"x": np.ones((1, 1))}, {}], text)
    for request in received(refs, lanes[1], batching=True):
        assert request.parameters == parameters
        assert request.span is None


def test_names_of_the_requested_outputs_are_passed_on(lanes: Lanes) -> None:
    refs = [RequestRef([], "", ["y", "z"])]
    (request,) = received(refs, lanes[1], batching=True)
    assert request.requested_output_names == ["y", "z"]


def test_no_requests(lanes: Lanes) -> None:
    assert received([], lanes[1], batching=True) == []


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("datatype", "shape", "memory", "offset", "nbytes"),
    [
        ("FP32", [-1, 2], ARENA, 0, -8),
        ("FP32", [1, -2], ARENA, 0, -8),
        ("FP32", [1, 2], ARENA, 0, 4),
        ("FP32", [1, 2], ARENA, 1 << 40, 8),
        ("FP32", [1, 2], 5, 0, 8),
        ("FP32", [1 << 62, 0], ARENA, 0, 4),
        ("BYTES", [1], ARENA, -1, 4),
        ("BYTES", [2], ARENA, 0, 4),
    ],
    ids=str,
)
def test_invalid_descriptors(
    lanes: Lanes,
    datatype: str,
    shape: list[int],
    memory: int,
    offset: int,
    nbytes: int,
    count: int,
    batching: bool,
) -> None:
    send(lanes, [{"x": np.zeros((1, 2))}])
    refs = [RequestRef([TensorRef("x", datatype, shape, memory, offset, nbytes)], "", [])] * count
    with pytest.raises((LaneError, ArenaError)):
        received(refs, lanes[1], batching=batching)


DTYPES = [np.dtype(code) for code in ("f4", "i8", "u1", "?")]
INPUT = st.none() | st.tuples(st.integers(0, 4), st.sampled_from([[2], [3], [2, 2], [0], []]))


@given(
    st.lists(st.tuples(INPUT, INPUT), max_size=6), st.sampled_from(DTYPES), st.sampled_from(DTYPES)
)
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_batch_is_read_as_sent(
    lanes: Lanes, shapes: list[Any], first: np.dtype[Any], second: np.dtype[Any]
) -> None:
    batch: list[Inputs] = []
    for index, request in enumerate(shapes):
        inputs: Inputs = {}
        for name, dtype, shape in zip("xy", (first, second), request):
            if shape is not None:
                dims = (shape[0], *shape[1])
                inputs[name] = (np.arange(math.prod(dims)) + index).reshape(dims).astype(dtype)
        batch.append(inputs)
    for batching in (False, True):
        requests = read(lanes, batch, batching=batching)
        assert len(requests) == len(batch)
        for got, inputs in zip(requests, batch):
            assert set(got) == set(inputs)
            for name, array in inputs.items():
                assert got[name].dtype == array.dtype
                np.testing.assert_array_equal(got[name], array)
                assert got[name].flags.writeable
                assert got[name].flags.c_contiguous


# ── zero copy ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_views_are_read_only_and_in_the_peers_memory(
    lanes: Lanes, count: int, batching: bool
) -> None:
    batch = [{"x": np.full((2, 5), float(k)), "s": strings(b"a", b"b")} for k in range(count)]
    refs = send(lanes, batch)
    requests = received(refs, lanes[1], batching=batching, zero_copy=True)
    assert_same(requests, batch)
    mapped = np.frombuffer(lanes[1].memory(ARENA, 1), np.uint8)
    for request in requests:
        assert np.shares_memory(request["x"], mapped)
        with pytest.raises(ValueError, match="read-only"):
            request["x"][0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            request["x"].flags.writeable = True
        request["s"][0, 0] = b"decoded, and the callable's own"
    lanes[0].arena.writable()[:] = b"\0" * lanes[0].arena.size
    assert not any(request["x"].any() for request in requests)  # no copy: the change is visible


@pytest.mark.parametrize("datatype", sorted(numpy_types.NUMERIC))
def test_every_datatype_can_be_viewed(lanes: Lanes, datatype: str) -> None:
    dtype = numpy_types.element_dtype(datatype)
    batch: list[Inputs] = [{"x": np.array([[1], [0]]).astype(dtype)}, {"x": np.ones((0, 3), dtype)}]
    assert_same(received(send(lanes, batch), lanes[1], batching=True, zero_copy=True), batch)


def test_a_view_at_an_unaligned_address_is_not_a_copy(lanes: Lanes) -> None:
    proxy, worker = lanes
    offset = proxy.arena.allocate(100) + 1
    proxy.arena.writable()[offset : offset + 16] = np.array([1.0, 2.0]).tobytes()
    refs = [RequestRef([TensorRef("x", "FP64", [1, 2], ARENA, offset, 16)], "", [])]
    proxy.send(Batch(1, refs))
    worker.receive()
    (request,) = received(refs, worker, batching=True, zero_copy=True)
    assert request["x"].tolist() == [[1.0, 2.0]]
    assert not request["x"].flags.aligned
    assert np.shares_memory(request["x"], np.frombuffer(worker.memory(ARENA, 1), np.uint8))


def test_views_of_a_merged_batch_are_in_their_lanes_memory(lanes: Lanes) -> None:
    refs = send(lanes, [{"x": np.ones((1, 2))}])
    with lane_pair() as (proxy, worker):
        others = send((proxy, worker), [{"x": np.full((2, 2), 2.0)}, {"x": np.full((1, 2), 3.0)}])
        parts = [Part(lanes[1], Batch(1, refs)), Part(worker, Batch(1, others))]
        requests = read_requests(parts, batching=True, zero_copy=True)
        assert [request["x"][0, 0] for request in requests] == [1.0, 2.0, 3.0]
        mapped = np.frombuffer(worker.memory(ARENA, 1), np.uint8)
        shares = [np.shares_memory(request["x"], mapped) for request in requests]
        assert shares == [False, True, True]


# ── Requests that lack an input which is not optional: they fail, and nobody in their batch with them ──


def test_other_requests_keep_their_ids_and_traces() -> None:
    parent = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
    refs = [RequestRef([], "", [], name) for name in ("", "given", "", "")]
    batch = Batch(7, refs, BatchTrace(3, ["", "", parent]), taken_ns=16, reads=True, rows=4)
    rest = without_invalid(batch, ["wrong", None, None, None])
    assert ids_of(rest) == ids_of(batch)[1:]
    assert ids_of(rest) == ["given", "4bf92f3577b34da6a3ce929d0e0e4736", "10-7-3"]
    assert rest.trace == BatchTrace(3, ["", parent, ""])
    assert (rest.taken_ns, rest.reads) == (16, True)


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
    return WorkerModel(ModelSpec("sum", 1, config, WorkerEnvironment("")), infer, CallLog())


def batch(lanes: Lanes, *requests: dict[str, float]) -> Part:
    """Send a batch as the proxy, and receive it as the worker: inputs by name."""
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
    """Return the answer to each request, as the proxy reads it."""
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


def test_only_the_request_that_lacks_an_input_fails(lanes: Lanes) -> None:
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
    monkeypatch.setattr("pytriton.worker.model.spans_of", lambda *_: None)  # they are not collected
    served = model(sums)
    served.log = log = FakeCallLog()
    lane, sent = batch(lanes, {"o": 2}, {"x": 1})
    parent = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
    part = Part(lane, structs.replace(sent, trace=BatchTrace(0, ["", parent])))
    assert answers(lanes, served, part)[1] == 1
    assert log.traces == ["4bf92f3577b34da6a3ce929d0e0e4736"]


def test_the_callable_is_not_called_without_valid_requests(lanes: Lanes) -> None:
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


def test_without_optional_inputs_tritons_own_check_is_used(lanes: Lanes) -> None:
    (answer,) = model(sums, optional=False).answer([batch(lanes, {"o": 2})])
    assert isinstance(answer, BatchFailed)
    assert answer.text == "KeyError: 'x'"


def test_a_decoupled_models_batch_fails_as_a_whole(lanes: Lanes) -> None:
    served = model(sums, decoupled=True)
    with pytest.raises(ValueError, match="lacks the input `x` of model `sum`"):
        served.requests([batch(lanes, {"o": 2})])
