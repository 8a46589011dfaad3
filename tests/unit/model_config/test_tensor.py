"""`Tensor` and the dtype table."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import Tensor
from pytriton.model_config.dtypes import to_config_datatype, to_numpy_dtype, to_triton_datatype

NUMERIC = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize(("datatype", "scalar"), NUMERIC.items())
def test_every_spelling_of_a_numeric_dtype_is_kept_as_its_scalar_type(
    datatype: str, scalar: type
) -> None:
    name = np.dtype(scalar).name
    spellings = [scalar, np.dtype(scalar), name, datatype, f"TYPE_{datatype}", datatype.lower()]
    for spelling in spellings:
        assert Tensor((1,), spelling).dtype is scalar
        assert to_triton_datatype(spelling) == datatype
    assert to_config_datatype(scalar) == f"TYPE_{datatype}"
    assert to_numpy_dtype(datatype) == to_numpy_dtype(f"TYPE_{datatype}") == np.dtype(scalar)


@pytest.mark.parametrize(
    ("spelling", "scalar"),
    [
        (bool, np.bool_),
        (int, np.int64),
        (float, np.float64),
        ("<f4", np.float32),
        ("bool", np.bool_),
        (np.longlong, np.int64),
        (np.dtype("q"), np.int64),
        (" float32 ", np.float32),
    ],
)
def test_builtins_and_numpy_codes(spelling: Any, scalar: type) -> None:
    assert Tensor((1,), spelling).dtype is scalar


@pytest.mark.parametrize(
    ("spelling", "kept"),
    [
        (bytes, bytes),
        (object, object),
        (np.bytes_, np.bytes_),
        (np.object_, np.object_),
        (np.dtype(object), np.object_),
        (np.dtype("S5"), np.bytes_),
        (str, np.str_),
        (np.str_, np.str_),
        ("bytes", np.bytes_),
        ("object", np.object_),
        ("str", np.str_),
        ("BYTES", np.bytes_),
        ("TYPE_STRING", np.bytes_),
    ],
)
def test_types_of_the_bytes_family_are_kept(spelling: Any, kept: type) -> None:
    assert Tensor((1,), spelling).dtype is kept
    assert to_triton_datatype(spelling) == "BYTES"
    assert to_config_datatype(spelling) == "TYPE_STRING"
    assert to_numpy_dtype("BYTES") == np.dtype(object)


@pytest.mark.parametrize(
    "spelling",
    [
        None,
        complex,
        np.complex64,
        "complex64",
        np.datetime64,
        "M8[s]",
        np.dtype([("a", "f4")]),
        np.dtype((np.float32, (2,))),
        np.longdouble,
        dict,
        "no such type",
        3.5,
        ml_dtypes.float8_e5m2,
    ],
    ids=repr,
)
def test_other_dtypes_are_refused_with_the_alternatives(spelling: Any) -> None:
    with pytest.raises(PyTritonBadParameterError, match=r"no data type.*float32.*bytes"):
        Tensor((1,), spelling)


def test_a_misspelt_dtype_gets_a_suggestion() -> None:
    with pytest.raises(PyTritonBadParameterError, match="Did you mean 'float32'"):
        Tensor((1,), "flaot32")


def test_an_unknown_triton_datatype_is_refused() -> None:
    with pytest.raises(PyTritonBadParameterError, match="Unknown Triton data type 'FP8'"):
        to_numpy_dtype("FP8")


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((), ()),
        ((-1,), (-1,)),
        ([224, 224, 3], (224, 224, 3)),
        ((np.int64(2), np.uint8(3)), (2, 3)),
        (np.array([1, -1]), (1, -1)),
    ],
)
def test_shapes_become_tuples_of_int(shape: Any, kept: tuple[int, ...]) -> None:
    tensor = Tensor(shape, np.float32)
    assert tensor.shape == kept
    assert [type(size) for size in tensor.shape] == [int] * len(kept)


@pytest.mark.parametrize("shape", [3, None, "3", (0,), (-2,), (1.5,), (True,), ("1",), (None,)])
def test_other_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(PyTritonBadParameterError, match="shape of tensor 'image'"):
        Tensor(shape, np.float32, name="image")


@pytest.mark.parametrize("name", ["", 3])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(PyTritonBadParameterError, match="non-empty string"):
        Tensor((1,), np.float32, name=name)


def test_is_a_frozen_hashable_picklable_dataclass() -> None:
    tensor = Tensor((1, -1), "float32", "x", True)
    assert pickle.loads(pickle.dumps(tensor)) == tensor == Tensor((1, -1), np.float32, "x", True)
    assert hash(tensor) == hash(Tensor((1, -1), np.float32, "x", True))
    with pytest.raises(dataclasses.FrozenInstanceError):
        tensor.name = "y"  # type: ignore[misc]
