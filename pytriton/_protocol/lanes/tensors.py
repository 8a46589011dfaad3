"""Writes and reads tensors in shared memory: numpy arrays and BYTES tensors."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytriton._protocol.errors import shown
from pytriton._protocol.lanes.arena import Arena, ArenaError
from pytriton._protocol.lanes.lane_messages import ARENA, TensorRef

Array = npt.NDArray[Any]

_LENGTH = struct.Struct("<I")
#: Up to this size, a copy is so short that it may hold the GIL.
_PLAIN_COPY = 1 << 16


class Memories(Protocol):
    """The memory segments that a peer has announced: those of a `Lane` or a `CallConnection`."""

    def memory(self, number: int, end: int) -> mmap.mmap:
        """Return a mapping of memory segment `number` that covers at least the bytes [0, end)."""


class Writable(Protocol):
    """An object with an arena that this process writes tensors to: a `Lane`, or the `Slot` of a call."""

    arena: Arena


def read(lane: Memories, ref: TensorRef, dtype: np.dtype[Any]) -> Array:
    """Return a read-only view of a numeric tensor in the peer's memory, valid until the batch is answered.

    Raises:
        LaneError, ArenaError: the reference is invalid.
    """
    nbytes, offset = ref.nbytes, ref.offset
    if nbytes <= 0 or offset < 0:
        return _empty(ref, dtype)
    memory = lane.memory(ref.memory, offset + nbytes)
    try:
        array: Array = np.ndarray(ref.shape, dtype, memory, offset)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArenaError(f"tensor {ref.name}: {error}") from error
    if array.nbytes != nbytes:
        raise ArenaError(
            f"tensor {ref.name}: invalid reference: {nbytes} bytes at {offset} for {ref.shape}"
        )
    return array


def read_raw(lane: Memories, ref: TensorRef) -> memoryview:
    """Return a read-only view of the bytes of a BYTES tensor in the peer's memory.

    Raises:
        LaneError, ArenaError: the reference is invalid.
    """
    if ref.offset < 0 or ref.nbytes < 0:
        raise ArenaError(
            f"tensor {ref.name}: invalid reference: {ref.nbytes} bytes at {ref.offset}"
        )
    if ref.nbytes == 0:
        return memoryview(b"")
    memory = lane.memory(ref.memory, ref.offset + ref.nbytes)
    return memoryview(memory)[ref.offset : ref.offset + ref.nbytes]


def write(
    lane: Writable, name: str, datatype: str, array: Array, dtype: np.dtype[Any]
) -> TensorRef:
    """Write an array to the lane's arena as `dtype`, C-contiguous, and return a reference to it.

    The array may have any strides and byte order. This is the only time that an output is copied.
    """
    nbytes = dtype.itemsize * array.size
    arena = lane.arena
    offset = arena.allocate(nbytes)
    if nbytes > _PLAIN_COPY or array.dtype is not dtype or not array.flags.c_contiguous:
        target: Array = np.ndarray(array.shape, dtype, arena.writable(), offset)
        np.copyto(target, array, casting="unsafe")
    elif nbytes:  # the same in a quarter of the time
        arena.writable()[offset : offset + nbytes] = array  # type: ignore[call-overload]
    return TensorRef(name, datatype, list(array.shape), ARENA, offset, nbytes)


def write_raw(
    lane: Writable, name: str, datatype: str, shape: Iterable[int], data: bytes | memoryview
) -> TensorRef:
    """Write bytes to the lane's arena and return a reference to them."""
    nbytes = len(data)
    offset = lane.arena.allocate(nbytes)
    if nbytes:
        lane.arena.writable()[offset : offset + nbytes] = data
    return TensorRef(name, datatype, list(shape), ARENA, offset, nbytes)


def write_string(lane: Writable, name: str, data: bytes) -> TensorRef:
    """Write a BYTES tensor of one element to the lane's arena and return a reference to it."""
    arena = lane.arena
    nbytes = 4 + len(data)
    offset = arena.allocate(nbytes)
    arena.writable()[offset : offset + nbytes] = _LENGTH.pack(nbytes - 4) + data
    return TensorRef(name, "BYTES", [1], ARENA, offset, nbytes)


def address(array: Array) -> int:
    """Return the address of an array's first element in this process."""
    start: int = array.__array_interface__["data"][0]
    return start


class TextError(ValueError):
    """A text input contains bytes that are not UTF-8."""


def encode_bytes(array: Array) -> bytes:
    """Serialize the elements of an array of dtype object, S or U in Triton's format: length in 4 bytes, then the bytes.

    str is encoded as UTF-8. Trailing NULs of S and U elements are lost: numpy treats them as padding.

    Raises:
        TypeError: an element is neither bytes nor str, or a str that cannot be encoded as UTF-8.
    """
    if array.size == 1:  # for example, each text of a stream
        (item,) = array.ravel().tolist()
        data = item if type(item) is bytes else _to_bytes(item)
        return _LENGTH.pack(len(data)) + data
    items = array.ravel().tolist()
    if any(type(item) is not bytes for item in items):
        items = [_to_bytes(item) for item in items]
    lengths = map(_LENGTH.pack, map(len, items))
    return b"".join(chain.from_iterable(zip(lengths, items)))


def decode_bytes(data: memoryview, shape: Iterable[int]) -> Array:
    """Deserialize a BYTES tensor to an object array of bytes; the reverse of `encode_bytes`.

    Raises:
        ArenaError: the number of elements in the data does not match the shape.
    """
    dims = list(shape)
    count = _count(dims)
    array: Array
    if count == 1:  # for example, the body of a request to a typed function
        item = _only(data)
        array = np.empty(1, object)
        array[0] = item
    else:
        items = _split_equal(data, count)
        if items is None:
            items = _split(
                data, count
            )  # before memory is allocated for a count that the data does not hold
        array = np.empty(count, object)
        array[:] = items
    try:
        return array.reshape(dims)
    except ValueError as error:
        raise ArenaError(f"BYTES tensor: {error}") from error


def as_text(name: str, array: Array) -> Array:
    """Convert an array of bytes to an array of str.

    Raises:
        TextError: an element is not UTF-8.
    """
    items = array.ravel().tolist()
    try:
        decoded = [item.decode() for item in items]
    except UnicodeDecodeError as error:
        raise TextError(
            f"input `{name}` must be text (dtype=str), but {error.object[:40]!r} is not UTF-8: {error.reason}; for an "
            "input with arbitrary bytes, the model must declare dtype=bytes"
        ) from None
    text: Array = np.empty(len(items), object)
    text[:] = decoded
    return text.reshape(array.shape)


def check_bytes(data: memoryview, shape: Iterable[int]) -> None:
    """Check that serialized data contains exactly the number of elements that the shape requires.

    Raises:
        ArenaError: the number of elements differs, or the data ends in the middle of an element.
    """
    count, start, end = _count(shape), 0, len(data)
    if count > end // 4:  # each takes at least 4 bytes
        raise ArenaError(f"BYTES tensor of {end} bytes cannot hold {count} elements")
    for _ in range(count):
        if start + 4 > end:
            raise ArenaError("BYTES tensor ends in the middle of an element")
        start += 4 + _LENGTH.unpack_from(data, start)[0]
    if start != end:
        raise ArenaError(f"BYTES tensor holds {end} bytes, but its elements take {start}")


def _empty(ref: TensorRef, dtype: np.dtype[Any]) -> Array:
    if ref.nbytes or ref.offset < 0 or _count(ref.shape):
        raise ArenaError(
            f"tensor {ref.name}: invalid reference: {ref.nbytes} bytes at {ref.offset} for {ref.shape}"
        )
    try:
        nothing: Array = np.ndarray(ref.shape, dtype, b"")
    except (
        ValueError
    ) as error:  # more dimensions than numpy supports, or one of 2**63 beside one of 0
        raise ArenaError(f"tensor {ref.name}: {error}") from error
    return nothing


def _count(shape: Iterable[int]) -> int:
    count = 1
    for dim in shape:
        if dim < 0:
            raise ArenaError(f"negative dimension in {list(shape)}")
        count *= dim
    return count


def _to_bytes(item: object) -> bytes:
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"elements must be encodable as UTF-8: {error}") from error
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(f"elements must be bytes or str, not {shown(item, 60)}")


def _split_equal(data: memoryview, count: int) -> list[bytes] | None:
    """Split the data in bulk if all elements have the same length, the common case; otherwise return None."""
    if count < 2 or len(data) < 4:
        return None
    (length,) = _LENGTH.unpack_from(data)
    if length == 0 or len(data) != count * (4 + length):
        return None
    records = np.frombuffer(data, dtype=[("length", "<u4"), ("element", f"V{length}")], count=count)
    if not (records["length"] == length).all():
        return None
    items: list[bytes] = records["element"].tolist()
    return items


def _only(data: memoryview) -> bytes:
    """Return the only element of a BYTES tensor."""
    if len(data) >= 4 and _LENGTH.unpack_from(data)[0] == len(data) - 4:
        return bytes(data[4:])
    return _split(data, 1)[0]  # raises the error


def _split(data: memoryview, count: int) -> list[bytes]:
    whole = bytes(data)
    items = []
    start = 0
    unpack = _LENGTH.unpack_from
    try:
        for _ in range(count):
            end = start + 4 + unpack(whole, start)[0]
            items.append(whole[start + 4 : end])
            start = end
    except struct.error as error:
        raise ArenaError(f"BYTES tensor ends in the middle of an element: {error}") from error
    if start != len(whole):
        raise ArenaError(f"BYTES tensor holds {len(whole)} bytes, but its elements take {start}")
    return items
