"""A callable's results: written as declared, or refused in one line that names model and output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.lane_pair import Lanes
from fakes.result_round_trip import output, refusal, request, respond, responses, writer

from pytriton._protocol import numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import ARENA, OWN, RequestRef
from pytriton.decorators.batching import split
from pytriton.proxy.types import Request, Response
from pytriton.worker.results import ResultError, write_or_lend

# ── the list and its dicts ───────────────────────────────────────────────────────────────────────


def test_one_response_per_request_in_order(lanes: Lanes) -> None:
    results = [{"y": np.full((rows, 2), rows, np.float32)} for rows in (3, 1, 2)]
    got = responses(lanes, results, [request(3), request(1), request(2)], writer())
    assert [answer["y"].tolist() for answer in got] == [result["y"].tolist() for result in results]


@pytest.mark.parametrize("kind", [list, tuple])
def test_any_sequence_of_mappings_is_accepted(lanes: Lanes, kind: type[Any]) -> None:
    for mapping in (dict, Request, Response):
        result = mapping({"y": np.ones((1, 1), np.float32)})
        (answer,) = responses(lanes, kind([result]), [request()], writer())
        assert answer["y"].tolist() == [[1.0]]


def test_a_request_may_be_its_own_answer(lanes: Lanes) -> None:
    """As with PyTriton's `lambda requests: requests`: a single tensor, or default names."""
    one, two = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
    (answer,) = responses(lanes, [Request({"x": one})], [request()], writer())
    assert answer["y"] == 1
    both = writer(output("OUTPUT_1"), output("OUTPUT_2"), strict=True)
    sent = Request({"INPUT_2": two, "INPUT_1": one})
    (answer,) = responses(lanes, [sent], [request()], both)
    assert [answer[name].item() for name in ("OUTPUT_1", "OUTPUT_2")] == [1, 2]
    text = refusal(lanes, [Request({"a": one, "b": two})], writer(output("c"), output("d")))
    assert "returned no output `c`; it returned `a`, `b`" in text


def test_unnamed_outputs_may_have_the_callables_names(lanes: Lanes) -> None:
    """As in PyTriton's documents: `{"add": ..., "sub": ...}`; matched by number and order, and not if strict."""
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
def test_a_result_that_is_not_a_list(lanes: Lanes, results: Any) -> None:
    text = refusal(lanes, results, writer())
    assert "must be list of response dicts with numpy arrays" in text
    assert f"Got {type(results).__name__}" in text
    assert "factory" not in text
    assert ("decorate it with @batch" in text) == isinstance(results, (dict, Request))


def test_a_callable_as_result_hints_at_a_forgotten_factory(lanes: Lanes) -> None:
    def make(scale: float = 2.0) -> Any:
        return lambda requests: [{"y": request["x"] * scale} for request in requests]

    text = refusal(lanes, make([request()]), writer())  # type: ignore[arg-type]
    assert text.endswith("If it creates the callable, register it with factory=True.")


@pytest.mark.parametrize(
    "element", [None, np.ones((50, 50)), [1], "y"], ids=lambda v: type(v).__name__
)
def test_an_element_that_is_not_a_dict(lanes: Lanes, element: Any) -> None:
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


def test_an_undeclared_output_is_dropped_or_refused_if_strict(lanes: Lanes) -> None:
    result = {"y": np.ones((1, 1), np.float32), "extra": "anything"}
    assert list(responses(lanes, [result], [request()], writer())[0]) == ["y"]
    assert "`extra` is not defined" in refusal(lanes, [result], writer(strict=True))


def test_only_requested_outputs_are_written_and_checked(lanes: Lanes) -> None:
    to = writer(output("y"), output("z"), output("w"))
    result = {"y": np.ones((1, 1)), "z": np.full((1, 1), 2.0), "w": "of no use"}
    requests = [request(requested=["z"]), request(requested=["z", "y"]), request(requested=["y"])]
    got = responses(lanes, [result, result, {"y": np.ones((1, 1))}], requests, to)
    assert [sorted(answer) for answer in got] == [["z"], ["y", "z"], ["y"]]
    assert got[0]["z"].tolist() == [[2.0]]


def test_a_callable_may_choose_the_outputs_of_a_request_for_all(lanes: Lanes) -> None:
    to = writer(output("y"), output("z"), chooses=True)
    y, z = {"y": np.ones((1, 1))}, {"z": np.ones((1, 1))}
    for every in (request(), request(requested=["y", "z"])):
        assert [[*one] for one in responses(lanes, [y, z], [every] * 2, to)] == [["y"], ["z"]]
    assert "no output `z`; it returned `y`" in refusal(lanes, [y], to, request(requested=["z"]))
    assert "no output `y`; it returned nothing" in refusal(lanes, [{}], to)


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
def test_a_scalar_lacks_the_batch_axis(lanes: Lanes, value: Any) -> None:
    text = refusal(lanes, [{"y": value}], writer())
    assert text == "Output `y` of model `digits` is a scalar and lacks the batch axis."


@pytest.mark.parametrize("value", [[1.0], None, {"a": 1}, object(), [[1, 2]] * 500, 1j])
def test_results_that_are_not_arrays_are_named(lanes: Lanes, value: Any) -> None:
    text = refusal(lanes, [{"y": value}], writer(batching=False))
    assert text.startswith("Not all values returned by `digits` model callable are numpy arrays: ")
    assert f"output `y` is {type(value).__name__}" in text
    assert text.endswith("not a numpy array.")


def test_a_key_that_is_not_a_string_is_named(lanes: Lanes) -> None:
    text = refusal(lanes, [{1: np.ones((1, 1))}], writer())
    assert text == "Not all keys returned by `digits` model callable are string: int 1."


def test_wrong_number_of_rows(lanes: Lanes) -> None:
    text = refusal(lanes, [{"y": np.ones((3, 2))}], writer(), request(2))
    assert text == (
        "Output `y` of model `digits` has 3 rows along the batch axis (shape (3, 2)), but the request has 2."
    )


def test_a_request_without_inputs_takes_any_number_of_rows(lanes: Lanes) -> None:
    requests = [RequestRef([], "", [])]
    (answer,) = responses(lanes, [{"y": np.ones((3, 2))}], requests, writer())
    assert answer["y"].shape == (3, 2)


def test_one_array_for_two_outputs(lanes: Lanes) -> None:
    array = np.arange(4, dtype=np.float32).reshape(2, 2) + 0.5
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
    for dtype, to in ((np.float32, writer()), (np.int64, writer(output("y", "INT8")))):
        assert respond(lanes, np.ones(shape, dtype), to, rows=shape[0]).shape == shape


def test_results_larger_than_the_memory_are_refused(lanes: Lanes) -> None:
    large = np.broadcast_to(np.zeros(1, np.float32), (1, 1 << 50))
    with pytest.raises(ArenaError, match="available"):
        writer().write([{"y": large}], [request()], lanes[1])
    assert respond(lanes, np.ones((1, 1)), writer()).tolist() == [[1.0]]


# ── strict ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(1,), (1, 3), (1, 2, 1), (1, 2, 3, 1)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_strict_checks_the_shape(lanes: Lanes, datatype: str, shape: tuple[int, ...]) -> None:
    to = writer(output("y", datatype, (-1, 3)), strict=True)
    array = np.full(shape, b"a" if datatype == "BYTES" else 1, numpy_types.element_dtype(datatype))
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
def test_slices_are_written_like_separate_arrays(
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
    """It would contradict the metadata that clients see."""
    to = writer(output("y", dims=dims), batching=batching, strict=strict)
    text = refusal(lanes, [{"y": np.ones(shape, np.float32)}], to, request(2))
    assert "`y` of model `digits` has " in text


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_axis_of_one_is_removed_if_there_are_no_inputs(
    lanes: Lanes, strict: bool, rows: int
) -> None:
    """Such a model does not batch, whatever its configuration says, and its callable may not know."""
    to = writer(output("y", dims=(-1,)), batching=False, strict=strict)
    results, no_inputs = [{"y": np.ones((rows, 3), np.float32)}], RequestRef([], "", [])
    if rows == 1:
        (answer,) = responses(lanes, results, [no_inputs], to)
        assert answer["y"].shape == (3,)
    else:
        assert "`y` of model `digits` has" in refusal(lanes, results, to, no_inputs)


# ── How an output gets to the proxy: copied into the arena, or lent from where it lies ──

_FLOAT = np.dtype(np.float32)
_LARGE = np.zeros(1 << 18, np.float32)  # 1 MiB


@pytest.fixture
def lane(lanes: Lanes) -> Lane:
    """The worker's end of a lane whose proxy may read the worker's memory."""
    lanes[1].reads = True
    return lanes[1]


def test_a_large_output_is_sent_without_a_copy(lane: Lane) -> None:
    ref = write_or_lend(lane, "y", "FP32", _LARGE, _FLOAT)
    assert (ref.memory, ref.offset, ref.nbytes) == (OWN, tensors.address(_LARGE), 1 << 20)
    assert ref.shape == [1 << 18]
    assert lane.lent == [_LARGE]  # kept until the proxy has read it


@pytest.mark.parametrize(
    "array",
    [_LARGE[:-1], _LARGE.reshape(512, 512).T, _LARGE.astype(np.float64)],
    ids=["smaller than 1 MiB", "not contiguous", "of another type"],
)
def test_a_small_output_is_copied(lane: Lane, array: np.ndarray) -> None:
    ref = write_or_lend(lane, "y", "FP32", array, _FLOAT)
    assert ref.memory == ARENA
    assert ref.nbytes == array.size * 4
    assert lane.lent == []


def test_a_proxy_without_access_gets_a_copy(lane: Lane) -> None:
    lane.reads = False
    assert write_or_lend(lane, "y", "FP32", _LARGE, _FLOAT).memory == ARENA
