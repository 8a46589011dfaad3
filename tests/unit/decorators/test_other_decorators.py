"""Decorators above ``@batch``: grouping, filling, padding, first values, the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.decorators import (
    ConstantPadder,
    TritonContext,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    set_triton_context,
    triton_context,
)
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton.model_config import DynamicBatcher, TensorSpec, TritonModelConfig
from pytriton.proxy.types import Request

CONFIG = TritonModelConfig(
    "m",
    max_batch_size=16,
    batcher=DynamicBatcher(preferred_batch_size=[4, 8]),
    inputs=[
        TensorSpec("x", np.float32, (-1,)),
        TensorSpec("k", np.int64, (1,), optional=True),
        TensorSpec("t", np.bytes_, (1,), optional=True),
    ],
    outputs=[TensorSpec("y", np.float32, (-1,))],
)


def request(x: float, **others: Any) -> Request:
    data = {"x": np.array([[x]], np.float32)}
    return Request({**data, **{name: np.array([[value]]) for name, value in others.items()}})


def answers(responses: list[dict[str, Any]], name: str = "y") -> list[float]:
    return [float(response[name][0, 0]) for response in responses]


def test_group_by_keys_calls_once_per_set_and_keeps_the_order() -> None:
    calls = []

    @group_by_keys
    @batch
    def infer(x: Any, k: Any = None) -> dict[str, Any]:
        calls.append((len(x), k is not None))
        return {"y": x}

    responses = infer([request(1), request(2, k=5), request(3), request(4, k=6)])
    assert answers(responses) == [1, 2, 3, 4]
    assert calls == [(2, False), (2, True)]


def test_group_by_keys_refuses_a_wrong_number_of_responses() -> None:
    infer = group_by_keys(lambda requests: [{}])
    with pytest.raises(PyTritonRuntimeError, match="1 responses for 2 requests"):
        infer([request(1), request(2), request(3, k=1)])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_group_by_values_calls_with_equal_values_and_keeps_the_order(values: list[int]) -> None:
    calls = []

    @batch
    @group_by_values("k")
    def infer(x: Any, k: Any) -> dict[str, Any]:
        assert (k == k[0]).all()
        calls.append(int(k[0, 0]))
        return {"y": x + k}

    responses = infer([request(10 * i, k=value) for i, value in enumerate(values)])
    assert answers(responses) == [10 * i + value for i, value in enumerate(values)]
    assert sorted(calls) == sorted(set(values))


def test_group_by_values_accepts_texts_several_keys_and_list_outputs() -> None:
    sizes = []

    @batch
    @group_by_values("t", "k")
    def infer(x: Any, t: Any, k: Any) -> list[Any]:
        sizes.append(len(x))
        return [x]

    set_triton_context(infer, CONFIG)
    texts = [(b"a", 1), (b"b", 1), (b"a", 2), (b"a", 1)]
    assert answers(infer([request(i, t=t, k=k) for i, (t, k) in enumerate(texts)])) == [0, 1, 2, 3]
    assert sizes == [2, 1, 1]


def test_group_by_values_must_be_below_batch() -> None:
    infer = group_by_values("k")(batch(lambda x, k: {"y": x}))
    with pytest.raises(
        PyTritonRuntimeError, match="@group_by_values decorator must be used after the @batch"
    ):
        infer([request(1, k=1)])


@pytest.mark.parametrize("served", [False, True])
def test_a_key_that_is_not_an_input_is_refused(served: bool) -> None:
    @batch
    @group_by_values("kk")
    def infer(x: Any) -> dict[str, Any]:
        return {"y": x}

    if served:
        set_triton_context(infer, CONFIG)
    with pytest.raises(PyTritonBadParameterError, match="names 'kk', which is not an input"):
        infer([request(1)])


def test_omitted_inputs_are_ignored() -> None:
    @batch
    @group_by_values("k")
    @first_value("k")
    def infer(x: Any) -> dict[str, Any]:
        return {"y": x}

    set_triton_context(infer, CONFIG)
    assert answers(infer([request(1), request(2)])) == [1, 2]


def _ragged(pad_fn: Any) -> Any:
    @batch
    @group_by_values("k", pad_fn=pad_fn)
    def infer(x: Any, k: Any) -> dict[str, Any]:
        length = int(k[0, 0])
        return {"y": np.ones((len(x), length)), "t": np.full((len(x), length), b"a" * length)}

    return infer


def test_outputs_of_groups_are_padded_to_fit() -> None:
    first, second = _ragged(ConstantPadder(-1))([request(0, k=1), request(0, k=3)])
    np.testing.assert_array_equal(first["y"], [[1, -1, -1]])
    np.testing.assert_array_equal(second["y"], [[1, 1, 1]])
    assert first["t"].tolist() == [[b"a", b"", b""]]
    assert second["t"].tolist() == [[b"aaa"] * 3]


def test_outputs_of_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PyTritonRuntimeError, match=r"different shapes.*ConstantPadder"):
        _ragged(None)([request(0, k=1), request(0, k=3)])


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (np.zeros((1, 1), "f4"), np.zeros((1, 2), "f8"), "different dtypes"),
        (np.zeros((1, 1), "f4"), np.zeros((1, 2, 1), "f4"), "numbers of dimensions"),
        (np.zeros((1, 1), "M8[s]"), np.zeros((1, 2), "M8[s]"), "cannot be padded"),
    ],
)
def test_the_padder_refuses_unpaddable_outputs(left: Any, right: Any, message: str) -> None:
    with pytest.raises(PyTritonRuntimeError, match=message):
        ConstantPadder()([{"y": left}, {"y": right}])


def test_the_padder_leaves_the_batch_axis_alone_and_pads_objects_with_empty_bytes() -> None:
    short = np.array([[b"a\0"]] * 3, object)
    padded = ConstantPadder()([{"y": short}, {"y": np.full((1, 2), b"b", object)}])
    assert padded[0]["y"].tolist() == [[b"a\0", b""]] * 3
    assert padded[1]["y"].shape == (1, 2)


def test_fill_optionals_fills_with_a_batch_axis_and_keeps_parameters() -> None:
    @fill_optionals(k=np.array([7]))
    @batch(parameters=True)
    def infer(x: Any, k: Any, parameters: Any) -> dict[str, Any]:
        assert [p["n"] for p in parameters] == [1, 1, 2]
        k += 0  # inputs can be written to
        return {"y": x + k}

    set_triton_context(infer, CONFIG)
    two_rows = Request({"x": np.zeros((2, 1), np.float32)}, {"n": 1})
    sent = request(1, k=5)
    sent.parameters = {"n": 2}
    responses = infer([two_rows, sent])
    np.testing.assert_array_equal(responses[0]["y"], [[7], [7]])
    assert answers(responses)[1] == 6
    assert list(two_rows) == ["x"]


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"kk": np.array([7])}, "'kk', which is not an input of model 'm'"),
        ({"k": np.array([7.0])}, "has dtype float64.*int64"),
        ({"k": np.array([7, 8])}, r"has shape \(2,\)"),
        ({"k": np.array(7)}, r"has shape \(\)"),
    ],
)
def test_fill_optionals_refuses_defaults_that_do_not_fit(
    defaults: dict[str, Any], message: str
) -> None:
    infer = fill_optionals(**defaults)(batch(lambda **inputs: {"y": inputs["x"]}))
    set_triton_context(infer, CONFIG)
    with pytest.raises(PyTritonBadParameterError, match=message):
        infer([request(1)])


def test_fill_optionals_accepts_only_arrays() -> None:
    with pytest.raises(PyTritonBadParameterError, match="must be a numpy array"):
        fill_optionals(k=7)  # type: ignore[arg-type]
    with pytest.raises(PyTritonBadParameterError, match="masked array"):
        fill_optionals(k=np.ma.masked_array([1], [True]))


@pytest.mark.parametrize(("rows", "padded"), [(1, 4), (4, 4), (5, 8), (9, 16), (16, 16), (17, 17)])
def test_pad_batch_repeats_the_last_row_and_cuts_the_outputs_back(rows: int, padded: int) -> None:
    seen = []

    @batch
    @pad_batch
    def infer(x: Any) -> dict[str, Any]:
        seen.append(x)
        return {"y": x}

    set_triton_context(infer, CONFIG)
    x = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    [response] = infer([Request({"x": x})])
    assert len(seen[0]) == padded
    np.testing.assert_array_equal(seen[0][rows:], np.full((padded - rows, 1), rows - 1))
    np.testing.assert_array_equal(response["y"], x)


def test_first_value_passes_scalars_and_rows() -> None:
    @batch
    @first_value("k", "t", "row")
    def infer(x: Any, k: Any, t: Any, row: Any) -> dict[str, Any]:
        assert (k, type(k), t) == (5, np.int64, b"de")
        np.testing.assert_array_equal(row, [1, 2])
        return {"y": x * k}

    requests = [request(i, k=5, t=b"de") for i in (1, 2)]
    for each in requests:
        each["row"] = np.array([[1, 2]])
    assert answers(infer(requests)) == [5, 10]


def test_first_value_accepts_a_list_of_requests() -> None:
    """PyTriton's second use of it: each request is handled separately."""
    seen = []

    @first_value("k", "none")
    def infer(requests: Any) -> list[dict[str, Any]]:
        seen.extend([(one["k"], one.parameters) for one in requests])
        return [{"y": one["x"] * one["k"]} for one in requests]

    requests = [request(1, k=5), request(2, k=6)]
    requests[1].parameters = {"p": 1}
    assert answers(infer(requests)) == [5, 12]
    assert seen == [(5, None), (6, {"p": 1})]
    (plain,) = first_value("k")(lambda requests: requests)([{"k": np.array([[3]])}])
    assert plain == {"k": 3}
    mixed = Request({"x": np.ones((2, 1)), "k": np.array([[3], [4]])})
    with pytest.raises(PyTritonRuntimeError, match="values of input 'k' differ"):
        infer([mixed])


@pytest.mark.parametrize(
    ("decorator", "said"),
    [
        (pad_batch, "@pad_batch decorator must be used after"),
        (group_by_values("k"), "@group_by_values decorator must be used after"),
    ],
)
def test_decorators_that_need_named_inputs_report_it(decorator: Any, said: str) -> None:
    with pytest.raises(PyTritonRuntimeError, match=said):
        decorator(lambda requests: requests)([request(1, k=5)])


@pytest.mark.parametrize("decorator", [fill_optionals(k=np.array([1])), group_by_keys])
def test_decorators_that_need_requests_report_it(decorator: Any) -> None:
    with pytest.raises(PyTritonRuntimeError, match=r"must be used before \(above\) the @batch"):
        batch(decorator(lambda x: {"y": x}))([request(1)])


def test_first_value_can_keep_the_row() -> None:
    infer = batch(first_value("k", squeeze_single_values=False)(lambda x, k: {"y": x + k.shape[0]}))
    assert answers(infer([request(1, k=5)])) == [2]


@pytest.mark.parametrize("served", [False, True])
def test_first_value_skips_missing_inputs(served: bool) -> None:
    """Inputs that requests omit, and keys that the model does not declare."""
    infer = batch(first_value("k", "kk")(lambda x: {"y": x}))
    if served:
        set_triton_context(infer, CONFIG)
    assert answers(infer([request(1), request(2)])) == [1, 2]


def test_first_value_refuses_different_values_by_default() -> None:
    requests = [request(1, k=5), request(2, k=6)]
    with pytest.raises(PyTritonRuntimeError, match="values of input 'k' differ"):
        batch(first_value("k")(lambda x, k: {"y": x}))(requests)
    infer = batch(first_value("k", strict=False)(lambda x, k: {"y": x * k}))
    assert answers(infer(requests)) == [5, 10]


@pytest.mark.parametrize("key", ["triton_context", "__triton_context__"])
def test_first_value_refuses_special_keys(key: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match="special key"):
        first_value(key)


def test_first_value_needs_a_batching_model() -> None:
    infer = batch(first_value("k")(lambda x, k: {"y": x}))
    set_triton_context(infer, TritonModelConfig("m", batching=False))
    with pytest.raises(PyTritonRuntimeError, match="batching=False"):
        infer([request(1, k=5)])


def test_requests_are_grouped_by_their_parameters() -> None:
    """Each group has one call, which gets the parameters as one dict."""
    calls = []

    @batch(parameters=True)
    @group_by_values("parameters")
    @pad_batch
    @first_value("parameters")
    def infer(x: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        calls.append((len(x), parameters))
        return {"y": x * parameters["scale"]}

    set_triton_context(infer, CONFIG)
    requests = [request(1), Request({"x": np.full((4, 1), 2)}), request(3)]
    for each, scale in zip(requests, (2, 3, 2)):
        each.parameters = {"scale": scale, "lang": "de"}
    responses = infer(requests)
    assert calls == [(4, {"scale": 2, "lang": "de"}), (4, {"scale": 3, "lang": "de"})]
    assert [response["y"].ravel().tolist() for response in responses] == [[2], [6] * 4, [6]]


def test_triton_context_has_the_model_config_both_ways() -> None:
    @batch
    @triton_context
    def infer(x: Any, triton_context: TritonContext) -> dict[str, Any]:
        assert triton_context.model_configs[infer] is triton_context.model_config
        return {"y": x * triton_context.model_config.max_batch_size}

    set_triton_context(infer, CONFIG)
    assert answers(infer([request(1)])) == [16]


def test_triton_context_without_a_server_is_an_error() -> None:
    """Whether or not the callable reads it; and the callable is not called."""
    calls = []

    @batch
    @triton_context
    def infer(x: Any, triton_context: TritonContext) -> dict[str, Any]:
        calls.append(x)
        return {"y": x}

    with pytest.raises(PyTritonValidationError, match="not being served"):
        infer([request(1)])
    assert calls == []


def test_groups_of_generators_must_yield_equally_often() -> None:
    @batch
    @group_by_values("k")
    def stream(x: Any, k: Any) -> Iterator[dict[str, Any]]:
        for _ in range(int(k[0, 0])):
            yield {"y": x}

    with pytest.raises(PyTritonRuntimeError, match="different numbers of results"):
        list(stream([request(10, k=1), request(20, k=2)]))
