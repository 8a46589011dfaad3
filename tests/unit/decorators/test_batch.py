"""``@batch`` and ``@sample``: requests are joined, answers are split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models.decorated import config, requests_of

from pytriton.decorators import (
    batch,
    convert_output,
    get_inference_request_batch_size,
    get_model_config,
    get_triton_context,
    group_by_values,
    pad_batch,
    sample,
    set_triton_context,
)
from pytriton.decorators.batching import gather, split
from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.types import Request

BIG = 1 << 15  # float32 values in a row: large enough for adjacency to be looked for


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    row=st.lists(st.integers(0, 3), max_size=2),
    dtype=st.sampled_from(["float32", "int8", "bool", "object", "S3"]),
)
def test_joining_and_splitting_returns_the_requests(
    sizes: list[int], row: list[int], dtype: str
) -> None:
    arrays = [np.ones((size, *row), dtype) for size in sizes]
    requests = [Request({"a": array, "b": array.copy()}) for array in arrays]
    joined, found = gather(requests)
    assert found == sizes
    np.testing.assert_array_equal(joined["a"], np.concatenate(arrays))
    for response, request in zip(split(joined, found), requests):
        assert response.keys() == request.keys()
        np.testing.assert_array_equal(response["a"], request["a"])
        assert response["a"].dtype == request["a"].dtype


@given(
    sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    from_bytes=st.booleans(),
)
def test_adjacent_requests_are_joined_without_a_copy(
    sizes: list[int], before: int, after: int, from_bytes: bool
) -> None:
    rows = before + sum(sizes) + after
    base = np.arange(rows * BIG, dtype=np.float32).reshape(rows, BIG).copy()
    whole = base.reshape(-1).view(np.uint8).copy().view("f4").reshape(base.shape)
    source = whole if from_bytes else base
    requests, low = [], before
    for size in sizes:
        requests.append(Request({"x": source[low : low + size]}))
        low += size
    joined = gather(requests)[0]["x"]
    assert np.shares_memory(joined, source)
    assert joined.dtype == np.float32
    np.testing.assert_array_equal(joined, base[before : before + sum(sizes)])


def test_slices_that_cover_their_base_are_joined_into_the_base() -> None:
    base = np.zeros((3, BIG), np.float32)
    assert gather([Request({"x": base[:1]}), Request({"x": base[1:]})])[0]["x"] is base


@pytest.mark.parametrize(
    "pieces",
    [
        lambda base: [base[1:2], base[0:1]],
        lambda base: [base[0:1], base[2:3]],
        lambda base: [base[0:1], base[0:1]],
        lambda base: [base[0:1], base.copy()[1:2]],
        lambda base: [base[0:1, ::2], base[1:2, ::2]],
        lambda base: [base[0:1], base[1:2].view(np.int32)],
        lambda base: [base[0:1].view(np.int32), base[1:2].view(np.int32)],
        lambda base: [base[0:1], base[1:1]],
    ],
    ids=["swapped", "gap", "twice", "two bases", "strided", "dtypes", "recast", "empty end"],
)
def test_joining_equals_concatenating_whatever_the_requests_share(
    pieces: Callable[[Any], list[Any]],
) -> None:
    base = np.arange(4 * BIG, dtype=np.float32).reshape(4, BIG)
    arrays = pieces(base.copy())
    joined = gather([Request({"x": array}) for array in arrays])[0]["x"]
    expected = np.concatenate(arrays)
    assert joined.dtype == expected.dtype
    np.testing.assert_array_equal(joined, expected)


def test_adjacent_object_arrays_are_joined() -> None:
    base = np.full((4, BIG), b"a", dtype=object)
    base[1, 0] = b"b"
    joined = gather([Request({"x": base[:2]}), Request({"x": base[2:3]})])[0]["x"]
    np.testing.assert_array_equal(joined, base[:3])


def test_a_single_request_is_passed_unchanged() -> None:
    request = requests_of(3)[0]
    seen = {}

    @batch
    def infer(x: Any) -> dict[str, Any]:
        seen["x"] = x
        return {"y": x}

    responses = infer([request])
    assert seen["x"] is request["x"]
    assert responses[0]["y"] is request["x"]


def test_responses_are_views_of_the_output() -> None:
    out = np.zeros((3, 2))
    responses = batch(lambda x: {"y": out})(requests_of(1, 2))
    assert [response["y"].shape for response in responses] == [(1, 2), (2, 2)]
    assert all(response["y"].base is out for response in responses)


def test_plain_dicts_work_as_requests() -> None:
    responses = batch(lambda x: {"y": x})([{"x": np.zeros((1, 2))}, {"x": np.ones((2, 2))}])
    np.testing.assert_array_equal(responses[1]["y"], np.ones((2, 2)))


@pytest.mark.parametrize("kind", [list, tuple])
def test_sequences_are_named_in_the_order_of_the_configuration(kind: type) -> None:
    infer = batch(lambda x: kind([x, -x]))
    set_triton_context(infer, config("first", "second"))
    responses = infer(requests_of(1, 2))
    assert [list(response) for response in responses] == [["first", "second"]] * 2
    np.testing.assert_array_equal(responses[1]["second"], -responses[1]["first"])


def test_sequences_get_default_names_without_a_server() -> None:
    assert list(batch(lambda x: [x, x])(requests_of(1))[0]) == ["OUTPUT_1", "OUTPUT_2"]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (
            lambda x: {"y": x[:1]},
            ValueError,
            "Received output tensors with different batch sizes: y: 1. Expected.*: 3",
        ),
        (lambda x: {"y": x, "z": np.float32(1)}, ValueError, "z: no batch axis"),
        (
            lambda x: [x, x],
            PyTritonValidationError,
            "Outputs length different than config outputs length",
        ),
        (lambda x: x, PyTritonValidationError, "Unsupported output type .*ndarray"),
        (
            lambda x: None,
            PyTritonValidationError,
            r"Unsupported output type .*NoneType.* of <lambda>\(\) \(model .*Is a `return` missing",
        ),
        (lambda x: {"y": 0.5}, ValueError, r"^Output `y` is a float, not a numpy array.*size 3"),
        (lambda x: {"y": None}, ValueError, "^Output `y` is a NoneType, not a numpy array"),
        (lambda x: {"y": "hello"}, ValueError, "^Output `y` is a str, not a numpy array"),
        (lambda x: {"y": [[1, 2], [3]]}, ValueError, r"^Output `y` is a list, not"),
        (lambda x: {"y": x, "z": 1}, ValueError, "^Output `z` is an int, not a numpy array"),
    ],
)
def test_wrong_outputs_are_refused(
    returned: Callable[..., Any], error: type[Exception], message: str
) -> None:
    infer = batch(returned)
    set_triton_context(infer, config("y"))
    with pytest.raises(error, match=message):
        infer(requests_of(1, 2))


def test_an_output_may_be_a_list_of_rows() -> None:
    requests = [Request({"x": np.ones((rows, 2))}) for rows in (1, 2, 1)]

    @batch
    def infer(x: Any) -> Any:
        return {
            "y": [row + place for place, row in enumerate(x)],
            "z": x * 2,
            "s": [b"a\0"] * len(x),
        }

    first, second, third = infer(requests)
    assert [one["y"].tolist() for one in (first, second, third)] == [
        [[1, 1]], [[2, 2], [3, 3]], [[4, 4]],
    ]  # fmt: skip
    assert second["z"].tolist() == [[2, 2], [2, 2]]
    assert first["s"].tolist() == [b"a\0"]
    assert infer(requests[:1])[0]["y"].tolist() == [[1, 1]]


@pytest.mark.parametrize("below", [[], [group_by_values("g")], [pad_batch]])
def test_an_exception_in_place_of_a_row_answers_its_request(below: list[Any]) -> None:
    def infer(x: Any, g: Any = None) -> Any:
        return {"y": [ValueError("negative") if row[0] < 0 else row * 2 for row in x]}

    decorated = infer
    for one in below:
        decorated = one(decorated)
    values = [[1], [-1, 2], [3]]
    requests = [
        Request({"x": np.array(rows)[:, None], "g": np.array(rows)[:, None] % 2}) for rows in values
    ]
    served = batch(decorated)
    set_triton_context(served, config("y", max_batch_size=8))
    first, second, third = served(requests)
    assert (first["y"].tolist(), third["y"].tolist()) == ([[2]], [[6]])
    assert isinstance(second, ValueError)


def test_rows_that_do_not_form_an_array_are_refused() -> None:
    @batch
    def infer(x: Any) -> Any:
        return {"y": [np.ones(place + 1) for place in range(len(x))]}

    assert (
        len(infer([Request({"x": np.ones((1, 1))})] * 2)[1]["y"][0]) == 2
    )  # of two, they may differ
    with pytest.raises(ValueError, match="Output `y`: the rows of one request"):
        infer([Request({"x": np.ones((2, 1))})])


@pytest.mark.parametrize("decorator", [batch, sample])
def test_an_exception_in_place_of_all_outputs_is_raised(decorator: Any) -> None:
    with pytest.raises(LookupError, match="gone"):
        decorator(lambda x: LookupError("gone"))([Request({"x": np.ones((1, 1))})])


def test_requests_with_different_inputs_are_refused() -> None:
    requests = [Request({"a": np.zeros((1, 1))}), Request({"b": np.zeros((1, 1))})]
    with pytest.raises(
        PyTritonValidationError, match="Cannot batch requests with different set of inputs keys"
    ):
        batch(lambda **inputs: inputs)(requests)


@pytest.mark.parametrize("requests", [[], [Request({}), Request({})]])
def test_batches_without_rows_are_refused(requests: list[Request]) -> None:
    with pytest.raises(PyTritonValidationError, match=r"empty list|no input with a batch axis"):
        batch(lambda **inputs: inputs)(requests)


def test_a_request_without_inputs_is_answered_unchanged() -> None:
    infer = batch(parameters=True)(lambda parameters: {"y": np.full(3, parameters[0]["n"])})
    assert infer([Request({}, {"n": 5})])[0]["y"].tolist() == [5, 5, 5]


def test_parameters_are_passed_on_request() -> None:
    @batch(parameters=True)
    def infer(x: Any, parameters: list[dict[str, Any]]) -> dict[str, Any]:
        return {"y": x * np.array([[p.get("scale", 1)] for p in parameters])}

    one = np.ones((1, 1))
    responses = infer([Request({"x": one}, {"scale": 3}), Request({"x": one})])
    assert [float(response["y"][0, 0]) for response in responses] == [3.0, 1.0]

    @sample(parameters=True)
    def single(x: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"y": x * parameters["scale"]}

    assert single([Request({"x": one}, {"scale": 3})])[0]["y"] == 3
    several_rows = infer([Request({"x": np.ones((3, 1))}, {"scale": 2}), Request({"x": one})])
    assert [response["y"].ravel().tolist() for response in several_rows] == [[2, 2, 2], [1]]
    with pytest.raises(PyTritonValidationError, match="input called 'parameters'"):
        infer([Request({"x": one, "parameters": one})])


def test_the_requests_themselves_are_passed_on_request() -> None:
    @batch(requests=True)
    def infer(x: Any, requests: list[Request]) -> Iterator[dict[str, Any]]:
        for step in range(3):
            if all(request.is_cancelled() for request in requests):
                return
            yield {name: x + step for name in requests[0].requested_output_names or ()}

    gone: list[Request] = []
    sent = Request({"x": np.ones((1, 1))}, None, None, ["y"], lambda: sent in gone)
    stream = infer([sent])
    assert [response.keys() for response in next(stream)] == [{"y"}]
    gone.append(sent)
    assert list(stream) == []

    single = sample(request=True)(lambda x, request: {"y": x if request is sent else None})
    assert single([sent])[0]["y"] is sent["x"]
    with pytest.raises(PyTritonValidationError, match="input called 'request'"):
        single([Request({"x": np.ones(1), "request": np.ones(1)})])


def test_sample_passes_the_first_request() -> None:
    @sample
    def infer(x: Any) -> Any:
        return [x + 1]

    set_triton_context(infer, config("y", batching=False))
    [response] = infer([Request({"x": np.array([1.0, 2.0])})])
    np.testing.assert_array_equal(response["y"], [2.0, 3.0])


def test_helpers_of_custom_decorators() -> None:
    def infer(requests: Any) -> Any:
        return requests

    assert get_inference_request_batch_size(requests_of(3)[0]) == 3
    assert convert_output([1, 2], model_config=config("a", "b")) == {"a": 1, "b": 2}
    for helper in (get_model_config, get_triton_context):
        with pytest.raises(PyTritonValidationError, match="not being served"):
            helper(infer)
    served = config("y")
    set_triton_context(infer, served)
    assert get_model_config(infer) is served
    assert convert_output((1,), infer) == {"y": 1}
