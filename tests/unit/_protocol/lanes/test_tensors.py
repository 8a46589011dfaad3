"""Tensors in shared memory: every datatype and layout survives a round trip; BYTES are encoded as tritonclient does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fakes.lane_pair import Lanes, lane_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.examples import examples
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from pytriton._protocol import numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import LaneError
from pytriton._protocol.lanes.lane_messages import ARENA, BatchDone, ResponseRef, TensorRef
from pytriton._protocol.lanes.tensors import Array, check_bytes, decode_bytes, encode_bytes

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ELEMENTS = st.binary(max_size=20) | st.binary(max_size=4).map(lambda data: data + b"\0\0")


def objects(elements: list[Any], shape: tuple[int, ...] | None = None) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array if shape is None else array.reshape(shape)


def pass_on(lanes: Lanes, ref: TensorRef) -> None:
    """Share the memory of the first end with the second."""
    lanes[0].send(BatchDone(1, [ResponseRef([ref])]))
    assert lanes[1].receive() == BatchDone(1, [ResponseRef([ref])])


def there_and_back(lanes: Lanes, array: Array, dtype: np.dtype[Any]) -> Array:
    ref = tensors.write(lanes[0], "x", "ANY", array, dtype)
    assert ref == TensorRef(
        "x", "ANY", list(array.shape), ARENA, ref.offset, array.size * dtype.itemsize
    )
    pass_on(lanes, ref)
    return tensors.read(lanes[1], ref, dtype)


# ── numeric ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("datatype", numpy_types.NUMERIC)
def test_every_datatype_survives_a_round_trip(lanes: Lanes, datatype: str) -> None:
    dtype = numpy_types.element_dtype(datatype)
    sent = np.frombuffer(np.random.default_rng(1).bytes(6 * dtype.itemsize), np.uint8)
    array = (sent % 2).astype(dtype)[:6] if datatype == "BOOL" else sent.view(dtype)
    read = there_and_back(lanes, array.reshape(2, 3), dtype)
    assert read.dtype == dtype
    assert read.shape == (2, 3)
    assert read.tobytes() == array.tobytes()


def test_the_table_of_datatypes_matches_tritonclients() -> None:
    from tritonclient.utils import triton_to_np_dtype

    for datatype, dtype in numpy_types.NUMERIC.items():
        if datatype != "BF16":  # numpy has none; tritonclient says float32, and packs it itself
            assert dtype == triton_to_np_dtype(datatype)
    assert numpy_types.element_dtype("BF16") == BFLOAT16
    assert numpy_types.element_dtype("BYTES") == triton_to_np_dtype("BYTES")


def _readonly() -> Array:
    array: Array = np.arange(6.0)
    array.flags.writeable = False
    return array


LAYOUTS = {
    "C": np.arange(24.0).reshape(2, 3, 4),
    "Fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "strided": np.arange(48.0).reshape(6, 8)[::3, 1::2],
    "backwards": np.arange(6.0)[::-1],
    "broadcast": np.broadcast_to(np.array([1.0, 2.0]), (3, 2)),
    "read-only": _readonly(),
    "big-endian": np.arange(6).astype(">f8"),
    "unaligned": np.frombuffer(b"\0" + np.arange(3.0).tobytes(), np.uint8)[1:].view("<f8"),
    "scalar": np.array(3.5),
    "empty": np.empty((0,)),
    "dimension 0": np.empty((2, 0, 3)),
    "32 dimensions": np.ones([1] * 32),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_arrives_in_c_order(lanes: Lanes, layout: str) -> None:
    array = LAYOUTS[layout]
    read = there_and_back(lanes, array, np.dtype("<f8"))
    assert read.shape == array.shape
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, array)


@given(data=st.data(), shape=SHAPES)
@settings(max_examples=examples(60), deadline=None)
def test_any_array_survives_a_round_trip(data: st.DataObject, shape: tuple[int, ...]) -> None:
    with lane_pair() as lanes:
        for _ in range(2):  # the second lies behind the first
            dtype = data.draw(npst.scalar_dtypes().filter(lambda dtype: dtype.kind in "biuf"))
            array = data.draw(npst.arrays(dtype, shape))
            order = data.draw(st.permutations(range(len(shape))))
            read = there_and_back(lanes, array.transpose(order), dtype.newbyteorder("<"))
            np.testing.assert_array_equal(read, array.transpose(order))


def test_write_casts_to_the_declared_dtype(lanes: Lanes) -> None:
    read = there_and_back(lanes, np.array([0.1, 1e300]), np.dtype(np.float64))
    assert read.tolist() == [0.1, 1e300]
    read = there_and_back(lanes, np.array([0.1, 2.5]), np.dtype(np.float32))
    assert read.tolist() == [np.float32(0.1), 2.5]
    read = there_and_back(lanes, np.array([1.0, 2.5], np.float32), BFLOAT16)
    assert read.astype(np.float32).tolist() == [1.0, 2.5]


@pytest.mark.parametrize("shape", [(3,), (0,), ()])
def test_read_arrays_are_read_only(lanes: Lanes, shape: tuple[int, ...]) -> None:
    read = there_and_back(lanes, np.ones(shape), np.dtype(np.float64))
    assert not read.flags.writeable


def test_views_survive_the_lane(lanes: Lanes) -> None:
    read = there_and_back(lanes, np.arange(1000), np.dtype(np.int64))
    lanes[0].arena.allocate(1 << 20)  # grows
    ref = tensors.write(lanes[0], "y", "INT64", np.arange(5), np.dtype(np.int64))
    pass_on(lanes, ref)
    tensors.read(lanes[1], ref, np.dtype(np.int64))  # maps again
    np.testing.assert_array_equal(read, np.arange(1000))


@pytest.mark.parametrize(
    ("shape", "offset", "nbytes"),
    [
        ([4], 0, 15),
        ([4], 0, 17),
        ([4], -4, 16),
        ([-4], 0, -16),
        ([-2, -2], 0, 16),
        ([4], 1 << 20, 16),
        ([4], 1 << 63, 16),
        ([1 << 62], 0, 1 << 64),
        ([0, 1 << 63], 0, 0),
        ([0, -1], 0, 0),
        ([1] * 70 + [0], 0, 0),
        ([1] * 70, 0, 4),
    ],
    ids=str,
)
def test_invalid_descriptors_of_numeric_tensors(
    lanes: Lanes, shape: list[int], offset: int, nbytes: int
) -> None:
    pass_on(lanes, tensors.write(lanes[0], "x", "FP32", np.ones(4), np.dtype(np.float32)))
    ref = TensorRef("x", "FP32", shape, ARENA, offset, nbytes)
    with pytest.raises(ArenaError):
        tensors.read(lanes[1], ref, np.dtype(np.float32))


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 4), (0, -1), (0, 1 << 20), (1 << 63, 1)])
def test_invalid_descriptors_of_raw_bytes(lanes: Lanes, offset: int, nbytes: int) -> None:
    pass_on(lanes, tensors.write_raw(lanes[0], "x", "BYTES", [1], b"data"))
    with pytest.raises(ArenaError):
        tensors.read_raw(lanes[1], TensorRef("x", "BYTES", [1], ARENA, offset, nbytes))


def test_unannounced_memory(lanes: Lanes) -> None:
    ref = TensorRef("x", "FP32", [1], 9, 0, 4)
    with pytest.raises(LaneError, match="memory segment 9"):
        tensors.read(lanes[1], ref, np.dtype(np.float32))
    with pytest.raises(LaneError, match="memory segment 9"):
        tensors.read_raw(lanes[1], ref)


def test_unknown_datatype() -> None:
    with pytest.raises(KeyError, match="FP8"):
        numpy_types.element_dtype("FP8")


# ── BYTES ────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(ELEMENTS, max_size=20))
def test_bytes_survive_a_round_trip(elements: list[bytes]) -> None:
    data = encode_bytes(objects(elements))
    assert decode_bytes(memoryview(data), [len(elements)]).tolist() == elements


@given(st.integers(0, 8), st.data())
def test_bytes_of_equal_lengths_survive_a_round_trip(length: int, data: st.DataObject) -> None:
    element = st.binary(min_size=length, max_size=length)
    elements = data.draw(st.lists(element, max_size=20))
    decoded = decode_bytes(memoryview(encode_bytes(objects(elements))), [len(elements)])
    assert decoded.tolist() == elements
    assert all(type(item) is bytes for item in decoded.tolist())


def test_lengths_that_only_sum_up_to_equal_ones() -> None:
    elements = [b"abcd", b"ab", b"abcdef"]  # 3 times 4 bytes in all
    data = memoryview(encode_bytes(objects(elements)))
    assert decode_bytes(data, [3]).tolist() == elements


@given(st.lists(ELEMENTS | st.text(max_size=10), min_size=1, max_size=20))
def test_bytes_are_encoded_as_in_tritonclient(elements: list[bytes | str]) -> None:
    array = objects(elements)
    data = encode_bytes(array)
    assert data == serialize_byte_tensor(array).item()
    decoded = decode_bytes(memoryview(data), [len(elements)])
    assert decoded.tolist() == deserialize_bytes_tensor(data).tolist()


#: Without lone surrogates, which have no UTF-8, and without trailing NULs, which numpy cuts off.
WORDS = st.text(max_size=5).filter(lambda word: not word.endswith("\0"))


@given(
    npst.arrays(st.sampled_from(["S5", "S1"]), SHAPES) | npst.arrays("U5", SHAPES, elements=WORDS)
)
def test_fixed_width_strings_are_encoded_as_in_tritonclient(array: Array) -> None:
    witness = serialize_byte_tensor(array.astype(object))  # it takes no U arrays
    assert encode_bytes(array) == (witness.item() if witness.size else b"")


@given(SHAPES)
def test_shape_of_bytes(shape: tuple[int, ...]) -> None:
    array = objects([b"%d" % index for index in range(int(np.prod(shape)))], shape)
    decoded = decode_bytes(memoryview(encode_bytes(array)), shape)
    assert decoded.shape == shape
    assert decoded.tolist() == array.tolist()


def test_bytes_of_an_array_in_fortran_order_are_in_c_order() -> None:
    array = objects([b"a", b"bb", b"c", b"dd"], (2, 2))
    assert encode_bytes(np.asfortranarray(array)) == encode_bytes(array)
    assert encode_bytes(array.T) == encode_bytes(array.T.copy())


def test_all_kinds_of_elements_are_accepted() -> None:
    elements = [
        b"a\0",
        "é",
        bytearray(b"b\0"),
        memoryview(b"cd")[::1],
        np.str_("s"),
        np.bytes_(b"t"),
    ]
    data = encode_bytes(objects(elements))
    assert decode_bytes(memoryview(data), [6]).tolist() == [
        b"a\0", "é".encode(), b"b\0", b"cd", b"s", b"t",
    ]  # fmt: skip


def test_trailing_nuls_of_s_arrays_are_padding() -> None:
    data = encode_bytes(np.array([b"a\0b\0", b"\0"], "S8"))
    assert decode_bytes(memoryview(data), [2]).tolist() == [b"a\0b", b""]


@pytest.mark.parametrize("element", [1, None, 1.5, ["a"], np.arange(100).reshape(2, 50), "\ud800"])
def test_a_non_string_element_is_named_in_one_line(element: object) -> None:
    array = np.empty(2, object)
    array[0], array[1] = b"fine", element
    with pytest.raises(TypeError, match="elements must") as caught:
        encode_bytes(array)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (b"", [1]),
        (b"\1\0\0", [1]),
        (b"\1\0\0\0", [1]),
        (b"\1\0\0\0ab", [1]),
        (b"\1\0\0\0a", [2]),
        (b"\1\0\0\0a\1\0\0\0b", [1]),
        (b"\xff\xff\xff\xffa", [1]),
        (b"\xff\xff\xff\xff" * 2, [1 << 40]),
        (b"\0\0\0\0", [0]),
        (b"\0\0\0\0", [-1]),
        (b"\0\0\0\0", [-1, -1]),
        (b"\0\0\0\0", [1] * 70),
        (b"", [0, 1 << 63]),
        (b"\1\0\0\0a", [1 << 80]),
    ],
    ids=str,
)
def test_malformed_bytes(data: bytes, shape: list[int]) -> None:
    with pytest.raises(ArenaError):
        decode_bytes(memoryview(data), shape)


def test_bytes_in_shared_memory(lanes: Lanes) -> None:
    array = objects([b"a\0", b"", "é".encode(), b"\0" * 70_000], (2, 2))
    data = encode_bytes(array)
    ref = tensors.write_raw(lanes[0], "x", "BYTES", array.shape, data)
    empty = tensors.write_raw(lanes[0], "x", "BYTES", [0], b"")
    pass_on(lanes, ref)
    assert decode_bytes(tensors.read_raw(lanes[1], ref), ref.shape).tolist() == array.tolist()
    assert decode_bytes(tensors.read_raw(lanes[1], empty), empty.shape).tolist() == []


@given(
    st.lists(ELEMENTS, max_size=6), st.integers(-1, 7), st.integers(0, 40), st.binary(max_size=5)
)
def test_bytes_are_validated_without_decoding_them(
    elements: list[bytes], more: int, cut: int, behind: bytes
) -> None:
    """Too many elements, too few, truncated, or followed by other bytes."""
    data = encode_bytes(np.array(elements, object)) + behind
    data = data[: len(data) - cut] if cut < 10 else data
    shape = [max(0, len(elements) + more)]
    try:
        decode_bytes(memoryview(data), shape)
    except ArenaError:
        with pytest.raises(ArenaError):
            check_bytes(memoryview(data), shape)
    else:
        check_bytes(memoryview(data), shape)
