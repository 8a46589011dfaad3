"""`pb_utils.Tensor` and the helpers for types and strings."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytriton import pb_utils

TYPES = [
    (np.bool_, 1), (np.uint8, 2), (np.uint16, 3), (np.uint32, 4), (np.uint64, 5), (np.int8, 6),
    (np.int16, 7), (np.int32, 8), (np.int64, 9), (np.float16, 10), (np.float32, 11),
    (np.float64, 12), (np.object_, 13), (np.bytes_, 13),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "number"), TYPES)
def test_types(dtype: type, number: int) -> None:
    assert pb_utils.numpy_to_triton_type(dtype) == number
    assert pb_utils.Tensor("x", np.zeros(3, dtype)).triton_dtype() == number
    if dtype is not np.bytes_:
        assert pb_utils.triton_to_numpy_type(number) is dtype
        assert dtype in map(np.dtype, pb_utils.TRITON_STRING_TO_NUMPY.values())


def test_non_tensor_values_are_refused() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="cannot be an empty"):
        pb_utils.Tensor("", np.zeros(1))
    with pytest.raises(pb_utils.TritonModelException, match="complex64"):
        pb_utils.Tensor("x", np.zeros(1, np.complex64))
    with pytest.raises(pb_utils.TritonModelException, match="dtype object"):
        pb_utils.Tensor("x", np.array(["text"]))
    with pytest.raises(pb_utils.TritonModelException, match="'x' is a masked array"):
        pb_utils.Tensor("x", np.ma.masked_array([1.0, 2.0], [False, True]))
    with pytest.raises(TypeError, match="list"):
        pb_utils.Tensor("x", [1, 2])  # type: ignore[arg-type]


def test_arrays_become_contiguous_and_native() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3)).astype(">f8")
    tensor = pb_utils.Tensor("x", array)
    assert tensor.as_numpy().flags.c_contiguous
    assert tensor.as_numpy().dtype == np.dtype("=f8")
    assert tensor.as_numpy().tolist() == array.tolist()
    assert tensor.shape() == [2, 3]


@pytest.mark.parametrize("dtype", [dtype for dtype, number in TYPES if number < 13])
def test_dlpack_shares_memory(dtype: type) -> None:
    tensor = pb_utils.Tensor("x", np.ones((2, 3), dtype))
    for other in (tensor, tensor.to_dlpack()):
        taken = pb_utils.Tensor.from_dlpack("y", other)
        assert taken.name() == "y"
        assert taken.as_numpy().dtype == dtype
        assert np.shares_memory(taken.as_numpy(), tensor.as_numpy())
    assert tensor.__dlpack_device__() == (1, 0)


def test_bf16_by_numpy_and_by_dlpack() -> None:
    numbers = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    tensor = pb_utils.Tensor("x", numbers)
    assert (tensor.triton_dtype(), tensor.datatype) == (14, "BF16")
    again = pb_utils.Tensor.from_dlpack("y", tensor)
    assert again.datatype == "BF16"
    assert again.as_numpy().tolist() == [1.5, -2.0]
    assert again.as_numpy().dtype == ml_dtypes.bfloat16


def test_dtypes_that_dlpack_lacks() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="does not support strings"):
        pb_utils.Tensor("x", np.array([b"x"], object)).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="C-Order"):
        pb_utils.Tensor.from_dlpack("x", np.ones((2, 3)).T)
    with pytest.raises(pb_utils.TritonModelException, match="Cannot use str"):
        pb_utils.Tensor.from_dlpack("x", "text")


def test_strings_are_serialized_as_by_triton() -> None:
    array = np.array([b"ab", "ü", 3], np.object_)
    data = pb_utils.serialize_byte_tensor(array)
    assert data == b"\2\0\0\0ab\2\0\0\0\xc3\xbc\1\0\0\x003"
    assert pb_utils.deserialize_bytes_tensor(data).tolist() == [b"ab", "ü".encode(), b"3"]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.array([1])) is None
