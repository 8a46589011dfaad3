"""What a callable returned: written as declared, or refused in one line that names model and output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytriton.decorators.batching import split
from pytriton.ipc import datatypes
from pytriton.ipc.lanes import tensors
from pytriton.ipc.lanes.arena import ArenaError
from pytriton.ipc.lanes.lane import Lane
from pytriton.ipc.lanes.lane_messages import BatchDone, RequestRef, TensorRef
from pytriton.ipc.lanes.tensors import Array
from pytriton.proxy.types import Request, Response
from pytriton.worker.outputs.results import Output, ResultError, ResultWriter

Lanes = tuple[Lane, Lane]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def output(name: str, datatype: str = "FP32", dims: tuple[int, ...] = (-1,)) -> Output:
    return Output(name, datatype, datatypes.element_dtype(datatype), dims)


def writer(*outputs: Output, batching: bool = True, strict: bool = False) -> ResultWriter:
    return ResultWriter("digits", outputs or [output("y")], batching=batching, strict=strict)


def request(rows: int = 1, requested: Sequence[str] = ()) -> RequestRef:
    return RequestRef([TensorRef("x", "FP32", [rows, 1], 1, 0, 4 * rows)], "", list(requested))


def responses(
    lanes: Lanes, results: Any, requests: Sequence[RequestRef], writer: ResultWriter
) -> list[dict[str, Array]]:
    """Write results in the worker and read them as the proxy does."""
    proxy, worker = lanes
    worker.arena.reset()
    worker.send(BatchDone(1, writer.write(results, requests, worker)))
    answer = proxy.receive()
    assert isinstance(answer, BatchDone)
    return [
        {ref.name: _read(proxy, ref).copy() for ref in response.outputs}
        for response in answer.responses
    ]


def _read(proxy: Lane, ref: TensorRef) -> Array:
    if ref.datatype == "BYTES":
        return tensors.decode_bytes(tensors.read_raw(proxy, ref), ref.shape)
    return tensors.read(proxy, ref, datatypes.element_dtype(ref.datatype))


def respond(lanes: Lanes, value: Any, to: ResultWriter, *, rows: int = 1) -> Array:
    """Answer one request with one output `y`."""
    return responses(lanes, [{"y": value}], [request(rows)], to)[0]["y"]


def refusal(lanes: Lanes, results: Any, to: ResultWriter, *requests: RequestRef) -> str:
    """The text with which results are refused: one line that names the model."""
    asked = requests or [request()]
    with pytest.raises(ResultError) as caught:
        to.write(to.checked(results, len(asked)), asked, lanes[1])
    text = str(caught.value)
    assert "\n" not in text
    assert "`digits`" in text
    assert len(text) < 300
    return text


# ── the list and its dicts ───────────────────────────────────────────────────────────────────────


def test_one_response_per_request_in_order(lanes: Lanes) -> None:
    results = [{"y": np.full((rows, 2), rows, np.float32)} for rows in (3, 1, 2)]
    got = responses(lanes, results, [request(3), request(1), request(2)], writer())
    assert [answer["y"].tolist() for answer in got] == [result["y"].tolist() for result in results]


@pytest.mark.parametrize("kind", [list, tuple])
def test_any_sequence_of_mappings_will_do(lanes: Lanes, kind: type[Any]) -> None:
    for mapping in (dict, Request, Response):
        result = mapping({"y": np.ones((1, 1), np.float32)})
        (answer,) = responses(lanes, kind([result]), [request()], writer())
        assert answer["y"].tolist() == [[1.0]]


def test_a_request_may_be_its_own_answer(lanes: Lanes) -> None:
    """As with PyTriton's `lambda requests: requests`: an only tensor, or default names."""
    one, two = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
    (answer,) = responses(lanes, [Request({"x": one})], [request()], writer())
    assert answer["y"] == 1
    both = writer(output("OUTPUT_1"), output("OUTPUT_2"), strict=True)
    sent = Request({"INPUT_2": two, "INPUT_1": one})
    (answer,) = responses(lanes, [sent], [request()], both)
    assert [answer[name].item() for name in ("OUTPUT_1", "OUTPUT_2")] == [1, 2]
    text = refusal(lanes, [Request({"a": one, "b": two})], writer(output("c"), output("d")))
    assert "returned no output `c`; it returned `a`, `b`" in text


def test_outputs_declared_without_names_may_have_names_of_the_callable(lanes: Lanes) -> None:
    """As in PyTriton's documents: `{"add": ..., "sub": ...}`; as many, in their order, and not if strict."""
    one, two = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
    unnamed = [output("OUTPUT_1"), output("OUTPUT_2")]
    (answer,) = responses(lanes, [{"add": one, "sub": two}], [request()], writer(*unnamed))
    assert [answer[name].item() for name in ("OUTPUT_1", "OUTPUT_2")] == [1, 2]
    swapped = {"OUTPUT_2": two, "OUTPUT_1": one}
    (answer,) = responses(lanes, [swapped], [request()], writer(*unnamed))
    assert [answer[name].item() for name in ("OUTPUT_1", "OUTPUT_2")] == [1, 2]
    for wrong in ({"add": one}, {"OUTPUT_1": one, "sub": two}):
        assert "returned no output `OUTPUT_" in refusal(lanes, [wrong], writer(*unnamed))
    assert "Not all keys" in refusal(lanes, [{1: one, 2: two}], writer(*unnamed))
    strict = writer(*unnamed, strict=True)
    assert "`add` is not defined" in refusal(lanes, [{"add": one, "sub": two}], strict)


@pytest.mark.parametrize(
    "results",
    [
        None,
        5,
        "text",
        b"text",
        {"y": np.ones(1)},
        Request({"y": np.ones(1)}),
        np.ones((100, 100)),
        iter([{}]),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_result_that_is_no_list(lanes: Lanes, results: Any) -> None:
    text = refusal(lanes, results, writer())
    assert "must be list of response dicts with numpy arrays" in text
    assert f"Got {type(results).__name__}" in text
    assert "factory" not in text


def test_a_callable_instead_of_a_list_comes_from_a_forgotten_factory(lanes: Lanes) -> None:
    def make(scale: float = 2.0) -> Any:
        return lambda requests: [{"y": request["x"] * scale} for request in requests]

    text = refusal(lanes, make([request()]), writer())  # type: ignore[arg-type]
    assert text.endswith("If it makes the callable, register it with factory=True.")


@pytest.mark.parametrize(
    "element", [None, np.ones((50, 50)), [1], "y"], ids=lambda v: type(v).__name__
)
def test_element_that_is_no_dict(lanes: Lanes, element: Any) -> None:
    text = refusal(lanes, [element], writer())
    assert f"Got a list with {type(element).__name__}" in text


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_responses(lanes: Lanes, count: int) -> None:
    text = refusal(lanes, [{"y": np.ones((1, 1))}] * count, writer(), request(), request())
    assert f"({count}) does not match number of requests (2)" in text


@pytest.mark.parametrize(("result", "returned"), [({}, "nothing"), ({"a": 1, "b": 2}, "`a`, `b`")])
def test_missing_output(lanes: Lanes, result: dict[str, Any], returned: str) -> None:
    text = refusal(lanes, [result], writer())
    assert text == f"Model `digits` returned no output `y`; it returned {returned}."


def test_undeclared_output_is_dropped(lanes: Lanes) -> None:
    result = {"y": np.ones((1, 1), np.float32), "extra": "anything"}
    assert list(responses(lanes, [result], [request()], writer())[0]) == ["y"]


def test_undeclared_output_is_refused_if_strict(lanes: Lanes) -> None:
    result = {"y": np.ones((1, 1), np.float32), "extra": "anything"}
    assert "`extra` is not defined" in refusal(lanes, [result], writer(strict=True))


def test_only_requested_outputs_are_written_and_looked_at(lanes: Lanes) -> None:
    to = writer(output("y"), output("z"), output("w"))
    result = {"y": np.ones((1, 1)), "z": np.full((1, 1), 2.0), "w": "of no use"}
    requests = [request(requested=["z"]), request(requested=["z", "y"]), request(requested=["y"])]
    got = responses(lanes, [result, result, {"y": np.ones((1, 1))}], requests, to)
    assert [sorted(answer) for answer in got] == [["z"], ["y", "z"], ["y"]]
    assert got[0]["z"].tolist() == [[2.0]]


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2.5, 2.5), (3, 3.0), (True, 1.0), (np.float64(2.5), 2.5), (np.int8(-1), -1.0)],
)
def test_scalars_of_a_model_without_batching(lanes: Lanes, value: Any, expected: float) -> None:
    got = respond(lanes, value, writer(output("y", dims=()), batching=False))
    assert got.shape == ()
    assert got == expected


@pytest.mark.parametrize("value", [b"a\0", "é", b"", np.bytes_(b"a\0"), np.str_("s")])
def test_strings_of_a_model_without_batching(lanes: Lanes, value: bytes | str) -> None:
    got = respond(lanes, value, writer(output("y", "BYTES", ()), batching=False))
    assert got.shape == ()
    assert got.item() == (value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("value", [5, np.float32(1), np.array(1.0)])
def test_scalar_lacks_the_batch_axis(lanes: Lanes, value: Any) -> None:
    text = refusal(lanes, [{"y": value}], writer())
    assert text == "Output `y` of model `digits` is a scalar, it lacks the batch axis."


@pytest.mark.parametrize("value", [[1.0], None, {"a": 1}, object(), [[1, 2]] * 500, 1j])
def test_what_is_no_array_is_named(lanes: Lanes, value: Any) -> None:
    text = refusal(lanes, [{"y": value}], writer(batching=False))
    assert text.startswith("Not all values returned by `digits` model callable are numpy arrays: ")
    assert f"output `y` is {type(value).__name__}" in text
    assert text.endswith("not a numpy array.")


def test_a_key_that_is_no_string_is_named(lanes: Lanes) -> None:
    text = refusal(lanes, [{1: np.ones((1, 1))}], writer())
    assert text == "Not all keys returned by `digits` model callable are string: int 1."


def test_wrong_number_of_rows(lanes: Lanes) -> None:
    text = refusal(lanes, [{"y": np.ones((3, 2))}], writer(), request(2))
    assert text == (
        "Output `y` of model `digits` has 3 rows along the batch axis (shape (3, 2)) for a request of 2."
    )


def test_a_request_without_inputs_takes_any_number_of_rows(lanes: Lanes) -> None:
    requests = [RequestRef([], "", [])]
    (answer,) = responses(lanes, [{"y": np.ones((3, 2))}], requests, writer())
    assert answer["y"].shape == (3, 2)


def test_one_array_for_two_outputs(lanes: Lanes) -> None:
    array = np.arange(4, dtype=np.float32).reshape(2, 2)
    to = writer(output("y"), output("z", "INT32"))
    with pytest.raises(ResultError, match="`z`"):
        to.write([{"y": array, "z": array}], [request(2)], lanes[1])
    to = writer(output("y"), output("z", "FP64"))
    (answer,) = responses(lanes, [{"y": array, "z": array}], [request(2)], to)
    assert answer["y"].tolist() == answer["z"].tolist() == array.tolist()
    assert answer["z"].dtype == np.float64


def test_views_of_inputs_and_other_layouts(lanes: Lanes) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    whole.flags.writeable = False
    for view in (whole[::2], whole[::-1, ::3], whole.T[:4], np.broadcast_to(whole[:1], (4, 6))):
        got = respond(lanes, view, writer(), rows=len(view))
        np.testing.assert_array_equal(got, view)
    np.testing.assert_array_equal(respond(lanes, whole.astype(">f4"), writer(), rows=4), whole)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_arrays(lanes: Lanes, shape: tuple[int, ...]) -> None:
    assert respond(lanes, np.ones(shape, np.float32), writer(), rows=shape[0]).shape == shape
    assert (
        respond(lanes, np.ones(shape, np.int64), writer(output("y", "INT8")), rows=shape[0]).shape
        == shape
    )


def test_more_than_the_machine_has_is_no_memory(lanes: Lanes) -> None:
    large = np.broadcast_to(np.zeros(1, np.float32), (1, 1 << 50))
    with pytest.raises(ArenaError, match="available"):
        writer().write([{"y": large}], [request()], lanes[1])
    assert respond(lanes, np.ones((1, 1)), writer()).tolist() == [[1.0]]


# ── datatypes ────────────────────────────────────────────────────────────────────────────────────

CASTABLE = [
    (np.float64, [0.1, -1e30], "FP32"),
    (np.float64, [0.5, 2.0], "FP16"),
    (np.float32, [0.5, 2.0], "FP64"),
    (np.float32, [0.5, 2.0], "BF16"),
    (np.float64, [0.5, 2.0], "BF16"),
    (np.int64, [1, 2], "BF16"),
    (BFLOAT16, [0.5, 2.0], "FP32"),
    (np.int64, [1, -2], "FP32"),
    (np.bool_, [True, False], "FP32"),
    (np.bool_, [True, False], "INT8"),
    (np.int64, [0, 255], "UINT8"),
    (np.int64, [-128, 127], "INT8"),
    (np.int64, [-(1 << 31), (1 << 31) - 1], "INT32"),
    (np.uint64, [0, (1 << 63) - 1], "INT64"),
    (np.int64, [0, (1 << 63) - 1], "UINT64"),
    (np.uint8, [0, 255], "INT16"),
    (np.uint8, [0, 127], "INT8"),
]
LOSING = [
    (np.int64, [0, 256], "UINT8"),
    (np.int64, [-1, 0], "UINT8"),
    (np.int64, [0, 128], "INT8"),
    (np.int64, [0, 1 << 31], "INT32"),
    (np.uint64, [0, 1 << 63], "INT64"),
    (np.int8, [-1, 0], "UINT64"),
    (np.uint8, [0, 128], "INT8"),
    (np.float32, [1.0, 2.0], "INT64"),
    (np.float64, [1.0, 0.0], "BOOL"),
    (np.int64, [1, 0], "BOOL"),
    (np.complex64, [1.0, 2.0], "FP32"),
    (BFLOAT16, [1.0, 2.0], "INT32"),
    (np.object_, [1.0, 2.0], "FP32"),
    (np.object_, [1.0, 2.0], "BF16"),
    ("U3", ["1", "2"], "FP32"),
    ("m8[s]", [1, 2], "INT64"),
    ("M8[s]", [1, 2], "INT64"),
    ([("a", "f4"), ("b", "f4")], [(1.0, 2.0), (3.0, 4.0)], "FP32"),
    ("V4", [b"abcd", b"efgh"], "BF16"),
]


def _id(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("given", "values", "declared"), CASTABLE, ids=_id)
def test_what_can_be_cast_is_cast(
    lanes: Lanes, given: Any, values: list[Any], declared: str
) -> None:
    array = np.array(values, given).reshape(2, 1)
    got = respond(lanes, array, writer(output("y", declared)), rows=2)
    assert got.dtype == datatypes.element_dtype(declared)
    np.testing.assert_array_equal(got, array.astype(got.dtype))
    if got.dtype.kind in "iu":
        assert got.ravel().tolist() == values


ONLY = (
    " Only bool, numeric, string, unicode and object arrays are supported by Triton "
    "(dtype.kind: biufOSU)."
)


@pytest.mark.parametrize(("given", "values", "declared"), LOSING, ids=_id)
def test_what_would_lose_values_is_refused(
    lanes: Lanes, given: Any, values: list[Any], declared: str
) -> None:
    array = np.array(values, given).reshape(2, 1)
    text = refusal(lanes, [{"y": array}], writer(output("y", declared)), request(2))
    name = datatypes.element_dtype(declared)
    assert text == (
        f"Output `y` of model `digits` has dtype {array.dtype}, which cannot be cast to {name} "
        f"without losing values.{'' if array.dtype.kind in 'biufOSU' or given is BFLOAT16 else ONLY}"
    )


def test_integer_of_python_that_no_dtype_holds(lanes: Lanes) -> None:
    to = writer(output("y", "INT64", ()), batching=False)
    assert "Output `y`" in refusal(lanes, [{"y": 1 << 70}], to)
    to = writer(output("y", "UINT8", ()), batching=False)
    assert "Output `y`" in refusal(lanes, [{"y": 300}], to)
    assert respond(lanes, 200, to) == 200


@pytest.mark.parametrize("dtype", ["O", "S4", "U4"])
def test_strings_of_every_kind(lanes: Lanes, dtype: str) -> None:
    array = np.array([["a"], ["bcd"]]).astype(dtype)
    got = respond(lanes, array, writer(output("y", "BYTES")), rows=2)
    assert got.tolist() == [[b"a"], [b"bcd"]]


def test_nuls_in_strings(lanes: Lanes) -> None:
    array = np.array([[b"a\0\0", b"\0"]], object)
    got = respond(lanes, array, writer(output("y", "BYTES")))
    assert got.tolist() == array.tolist()


def test_numbers_are_no_strings(lanes: Lanes) -> None:
    text = refusal(lanes, [{"y": np.ones((1, 1))}], writer(output("y", "BYTES")))
    assert text == "Output `y` of model `digits` has dtype float64, expected bytes, str or object."


@pytest.mark.parametrize(
    "element", [5, None, np.ones((9, 9)), "\ud800"], ids=lambda v: type(v).__name__
)
def test_object_array_with_something_else_in_it(lanes: Lanes, element: object) -> None:
    array = np.empty((1, 2), object)
    array[0, 0], array[0, 1] = b"fine", element
    text = refusal(lanes, [{"y": array}], writer(output("y", "BYTES")))
    assert text.startswith("Output `y` of model `digits` ")


# ── strict ───────────────────────────────────────────────────────────────────────────────────────


def test_strict_takes_exactly_what_is_declared(lanes: Lanes) -> None:
    to = writer(output("y", "FP32", (-1, 3)), output("s", "BYTES", (1,)), strict=True)
    result = {"y": np.ones((2, 7, 3), np.float32), "s": np.array([[b"a"], [b"b"]], object)}
    (answer,) = responses(lanes, [result], [request(2)], to)
    assert answer["y"].shape == (2, 7, 3)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_strict_casts_nothing(lanes: Lanes, dtype: type[Any]) -> None:
    text = refusal(lanes, [{"y": np.ones((1, 1), dtype)}], writer(strict=True))
    assert text == (
        f"Output `y` of model `digits` has invalid type. Returned: {np.dtype(dtype)}. Expected: float32."
    )


@pytest.mark.parametrize("shape", [(1,), (1, 3), (1, 2, 1), (1, 2, 3, 1)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_strict_checks_the_shape(lanes: Lanes, datatype: str, shape: tuple[int, ...]) -> None:
    to = writer(output("y", datatype, (-1, 3)), strict=True)
    array = np.full(shape, b"a" if datatype == "BYTES" else 1, datatypes.element_dtype(datatype))
    text = refusal(lanes, [{"y": array}], to)
    assert text.startswith("Output `y` of model `digits` has invalid shapes. Returned: ")
    assert f"{shape[1:]}. Expected: (-1, 3)" in text


def test_without_strict_the_sizes_of_a_shape_are_not_checked(lanes: Lanes) -> None:
    got = respond(lanes, np.ones((1, 2), np.float32), writer(output("y", "FP32", (3,))))
    assert got.shape == (1, 2)


# ── slices of one array ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sizes", [[1, 1], [3, 1, 2], [0, 2], [0, 0]])
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slices_are_written_as_each_by_itself(
    lanes: Lanes, sizes: list[int], changed: bool, dtype: Any
) -> None:
    whole = np.arange(2.0 * sum(sizes)).reshape(-1, 2).astype(dtype)
    results = split({"y": whole, "z": whole[::-1]}, sizes)
    if changed:
        results[0]["y"] = results[0]["y"] + 100
    wanted = [{name: array.copy() for name, array in result.items()} for result in results]
    got = responses(
        lanes, results, [request(size) for size in sizes], writer(output("y"), output("z"))
    )
    for one, other in zip(got, wanted):
        assert {name: array.tolist() for name, array in one.items()} == {
            name: array.tolist() for name, array in other.items()
        }


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("batching", "dims", "shape"),
    [(True, (-1,), (2,)), (True, (-1,), (2, 3, 4)), (False, (-1, -1), (2,)), (False, (1,), ())],
)
def test_an_output_of_another_rank_than_declared_is_refused(
    lanes: Lanes, strict: bool, batching: bool, dims: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Its metadata would tell clients something else."""
    request = RequestRef([TensorRef("x", "FP32", [2, 1], 0, 0, 8)], "", [])
    checks = writer(output("y", dims=dims), batching=batching, strict=strict)
    with pytest.raises(ResultError, match=r"`y` of model `digits` has "):
        checks.write([{"y": np.ones(shape, np.float32)}], [request], lanes[0])
