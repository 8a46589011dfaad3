"""Conversion of users' inputs to Triton's shapes, and of outputs back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytriton.client._inference.tensor_conversion import named_inputs, restore
from pytriton.client.exceptions import (
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientValueError,
)
from pytriton.model_config import TensorSpec, TritonModelConfig


def config(*, batching: bool) -> TritonModelConfig:
    return TritonModelConfig(
        model_name="m",
        batching=batching,
        inputs=[
            TensorSpec(name="x", dtype=np.float32, shape=(-1,)),
            TensorSpec(name="n", dtype=np.int64, shape=(), optional=True),
        ],
        outputs=[
            TensorSpec(name="y", dtype=np.float32, shape=(-1,)),
            TensorSpec(name="n", dtype=np.int64, shape=()),
        ],
    )


ROW = np.ones(3, np.float32)
NUMBER = np.array(7)


@pytest.mark.parametrize(
    ("batching", "sample", "positional", "shapes"),
    [
        (True, True, [ROW, NUMBER], {"x": (1, 3), "n": (1, 1)}),
        (True, False, [ROW[None], NUMBER[None]], {"x": (1, 3), "n": (1, 1)}),
        (False, True, [ROW, NUMBER], {"x": (3,), "n": (1,)}),
        (True, True, [ROW], {"x": (1, 3)}),
        (True, True, [ROW, np.int64(7)], {"x": (1, 3), "n": (1, 1)}),
    ],
)
def test_inputs_get_tritons_shape(
    batching: bool, sample: bool, positional: list[Any], shapes: dict[str, Any]
) -> None:
    arrays = named_inputs(config(batching=batching), positional, {}, sample=sample)
    assert {name: array.shape for name, array in arrays.items()} == shapes


@pytest.mark.parametrize(
    ("batching", "sample", "y", "n"),
    [(True, True, (3,), ()), (True, False, (1, 3), (1,)), (False, True, (1, 3), (1, 1))],
)
def test_outputs_get_the_users_shape(
    batching: bool, sample: bool, y: tuple[int, ...], n: tuple[int, ...]
) -> None:
    answer = {"y": ROW[None], "n": NUMBER[None, None]}
    restored = restore(answer, config(batching=batching), sample=sample)
    assert (restored["y"].shape, restored["n"].shape) == (y, n)


def test_the_byte_order_is_this_machines() -> None:
    swapped = ROW.astype(ROW.dtype.newbyteorder())
    array = named_inputs(config(batching=True), [], {"x": swapped}, sample=True)["x"]
    assert array.dtype == np.float32
    assert array.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("array", [np.ma.masked_array([1.0], [True]), np.ma.masked])
def test_masked_arrays_are_refused(array: Any) -> None:
    with pytest.raises(PyTritonClientValueError, match="'x' is a masked array"):
        named_inputs(config(batching=True), [], {"x": array}, sample=True)


def test_a_batch_needs_at_least_one_row() -> None:
    none = np.ones((0, 3), np.float32)
    with pytest.raises(
        PyTritonClientValueError, match=r"'x' has no rows \(its shape is \(0, 3\)\)"
    ):
        named_inputs(config(batching=True), [none], {}, sample=False)
    arrays = named_inputs(config(batching=True), [none[:, 0]], {}, sample=True)
    assert arrays["x"].shape == (1, 0)  # a row of nothing


def test_a_batch_needs_a_batching_model() -> None:
    with pytest.raises(PyTritonClientModelDoesntSupportBatchingError, match="use infer_sample"):
        named_inputs(config(batching=False), [ROW], {}, sample=False)
