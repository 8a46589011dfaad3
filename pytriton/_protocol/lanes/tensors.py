"""Tensors in shared memory: their datatypes, how arrays are laid down and how they are read again.

The table of datatypes is Triton's (KServe v2 "Tensor Data Types"). numpy has no BF16: a process
with ml_dtypes gets its bfloat16, one without it (the proxy) treats the tensor as 16-bit words and
never looks inside.
"""

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
#: Up to so many bytes a copy is so short that other threads can wait for it.
_PLAIN_COPY = 1 << 16


class Memories(Protocol):
    """The memory that a peer announced: a `Lane`, or a connection for calls."""

    def memory(self, number: int, end: int) -> mmap.mmap:
        """Return the bytes [0, end), or more, of memory `number`."""


class Writable(Protocol):
    """Memory of one's own: a `Lane`, or a slot of a call."""

    arena: Arena


def read(lane: Memories, ref: TensorRef, dtype: np.dtype[Any]) -> Array:
    """Return a read-only view of a numeric tensor in the peer's memory, valid until the batch is answered.

    Raises:
        LaneError, ArenaError: the descriptor is wrong.
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
        raise ArenaError(f"tensor {ref.name}: {nbytes} bytes at {offset} for {ref.shape}")
    return array


def read_raw(lane: Memories, ref: TensorRef) -> memoryview:
    """Return a read-only view of a tensor's bytes in the peer's memory (for BYTES).

    Raises:
        LaneError, ArenaError: the descriptor is wrong.
    """
    if ref.offset < 0 or ref.nbytes < 0:
        raise ArenaError(f"tensor {ref.name}: {ref.nbytes} bytes at {ref.offset}")
    if ref.nbytes == 0:
        return memoryview(b"")
    memory = lane.memory(ref.memory, ref.offset + ref.nbytes)
    return memoryview(memory)[ref.offset : ref.offset + ref.nbytes]


def write(
    lane: Writable, name: str, datatype: str, array: Array, dtype: np.dtype[Any]
) -> TensorRef:
    """Lay an array down in the lane's arena as `dtype`, C-contiguous, and return where it lies.

    Any strides and byte order will do: this is the one copy of an output.
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
    """Lay bytes down in the lane's arena and return where they lie."""
    nbytes = len(data)
    offset = lane.arena.allocate(nbytes)
    if nbytes:
        lane.arena.writable()[offset : offset + nbytes] = data
    return TensorRef(name, datatype, list(shape), ARENA, offset, nbytes)


def write_string(lane: Writable, name: str, data: bytes) -> TensorRef:
    """Lay a BYTES tensor of one element down in the lane's arena and return where it lies."""
    arena = lane.arena
    nbytes = 4 + len(data)
    offset = arena.allocate(nbytes)
    arena.writable()[offset : offset + nbytes] = _LENGTH.pack(nbytes - 4) + data
    return TensorRef(name, "BYTES", [1], ARENA, offset, nbytes)


def address(array: Array) -> int:
    """Return where an array's first element lies in this process."""
    start: int = array.__array_interface__["data"][0]
    return start


class TextError(ValueError):
    """An input that takes text has other bytes."""


def encode_bytes(array: Array) -> bytes:
    """Serialize the elements of an object, S or U array as Triton does: length in 4 bytes, then the bytes.

    str is encoded as UTF-8. Trailing NULs of S and U elements are lost: numpy takes them for padding.

    Raises:
        TypeError: an element is neither bytes nor str, or a str that has no UTF-8 form.
    """
    if array.size == 1:  # such as each text of a stream
        (item,) = array.ravel().tolist()
        data = item if type(item) is bytes else _to_bytes(item)
        return _LENGTH.pack(len(data)) + data
    items = array.ravel().tolist()
    if any(type(item) is not bytes for item in items):
        items = [_to_bytes(item) for item in items]
    lengths = map(_LENGTH.pack, map(len, items))
    return b"".join(chain.from_iterable(zip(lengths, items)))


def decode_bytes(data: memoryview, shape: Iterable[int]) -> Array:
    """Return the object array of bytes that `encode_bytes` serialized.

    Raises:
        ArenaError: the data do not hold exactly as many elements as the shape says.
    """
    dims = list(shape)
    count = _count(dims)
    items = _split_equal(data, count)
    if items is None:
        items = _split(data, count)
    array: Array = np.empty(count, object)
    array[:] = items
    try:
        return array.reshape(dims)
    except ValueError as error:
        raise ArenaError(f"BYTES tensor: {error}") from error


def as_text(name: str, array: Array) -> Array:
    """Return an array of bytes as one of str.

    Raises:
        TextError: an element is no UTF-8.
    """
    items = array.ravel().tolist()
    try:
        decoded = [item.decode() for item in items]
    except UnicodeDecodeError as error:
        raise TextError(
            f"input `{name}` takes text (dtype=str), and {error.object[:40]!r} in it is not UTF-8: {error.reason}; for "
            "other bytes, the model has to declare dtype=bytes"
        ) from None
    text: Array = np.empty(len(items), object)
    text[:] = decoded
    return text.reshape(array.shape)


def check_bytes(data: memoryview, shape: Iterable[int]) -> None:
    """See that `data` hold as many serialized elements as a shape says.

    Raises:
        ArenaError: they do not.
    """
    count, start, end = _count(shape), 0, len(data)
    if count > end // 4:  # each takes 4 bytes at least
        raise ArenaError(f"BYTES tensor of {end} bytes cannot hold {count} elements")
    for _ in range(count):
        if start + 4 > end:
            raise ArenaError("BYTES tensor ends in the middle of an element")
        start += 4 + _LENGTH.unpack_from(data, start)[0]
    if start != end:
        raise ArenaError(f"BYTES tensor holds {end} bytes where its elements take {start}")


def _empty(ref: TensorRef, dtype: np.dtype[Any]) -> Array:
    if ref.nbytes or ref.offset < 0 or _count(ref.shape):
        raise ArenaError(f"tensor {ref.name}: {ref.nbytes} bytes at {ref.offset} for {ref.shape}")
    try:
        nothing: Array = np.ndarray(ref.shape, dtype, b"")
    except ValueError as error:  # more dimensions than numpy has, or one of 2**63 beside one of 0
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
            raise TypeError(f"str elements must have a UTF-8 form: {error}") from error
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(f"elements must be bytes or str, not {shown(item, 60)}")


def _split_equal(data: memoryview, count: int) -> list[bytes] | None:
    """Split in bulk when all elements have the same length, the common case; None when they have not."""
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
        raise ArenaError(f"BYTES tensor holds {len(whole)} bytes where its elements take {start}")
    return items
