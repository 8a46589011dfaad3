"""Serializes nested dictionaries, lists and tuples of arrays and tensors into one block of memory, and restores them.

[ length of the layout, 8 bytes ][ layout, JSON ] [ array ][ array ] …     each aligned to 64 bytes
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pytriton._protocol.numpy_types import is_masked
from pytriton._sharing.segments import Buffer, Segment
from pytriton.exceptions import PyTritonValidationError

_ALIGNED = 64
_PLAIN = (str, int, float, bool, type(None))
_KINDS = "biufcSUV"


class Layout:
    """The serialized form of a value.

    Raises:
        PyTritonValidationError: the value contains no array, or something that cannot be shared
    """

    def __init__(self, value: Any) -> None:
        self._pieces: list[memoryview] = []
        self._leaves: list[dict[str, Any]] = []
        self._size = 0
        tree = self._of(value, "value")
        if not self._leaves:
            raise PyTritonValidationError(
                "pytriton.shared: the value contains no array. Share numpy arrays or torch tensors on the CPU, in "
                "dictionaries, lists and tuples."
            )
        head = json.dumps({"tree": tree, "leaves": self._leaves}).encode()
        self.head = len(head).to_bytes(8, "little") + head
        self.head += bytes(_padding(len(self.head)))

    def pieces(self) -> Iterator[Buffer]:
        """Yield the pieces of the serialized form, in order."""
        yield self.head
        for piece in self._pieces:
            yield piece
            yield bytes(_padding(len(piece)))

    def _of(self, value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray):
            if is_masked(value):
                raise _refusal(where, "a masked array, whose mask would be lost")
            return self._leaf(value, "numpy", value.dtype.str, where)
        if _is_tensor(value):
            return self._tensor(value, where)
        if isinstance(value, Mapping):
            wrong = next((key for key in value if not isinstance(key, str)), None)
            if wrong is not None:
                raise _refusal(where, f"a dictionary with a key {wrong!r} that is not a string")
            return {"d": {key: self._of(one, f"{where}[{key!r}]") for key, one in value.items()}}
        if isinstance(value, (list, tuple)):
            kind = "l" if isinstance(value, list) else "t"
            return {kind: [self._of(one, f"{where}[{i}]") for i, one in enumerate(value)]}
        if isinstance(value, _PLAIN):
            return {"v": value}
        raise _refusal(where, f"of type {type(value).__name__}")

    def _tensor(self, tensor: Any, where: str) -> Any:
        if tensor.device.type != "cpu":
            raise _refusal(
                where, f"a tensor on {tensor.device}: GPU memory cannot be shared this way"
            )
        if tensor.layout is not sys.modules["torch"].strided:
            raise _refusal(where, f"a tensor with the layout {tensor.layout}")
        flat = tensor.detach().contiguous().reshape(-1)
        as_bytes = (
            flat.view(sys.modules["torch"].uint8).numpy() if flat.numel() else np.empty(0, "u1")
        )
        dtype = str(tensor.dtype).rpartition(".")[2]
        return self._leaf(as_bytes, "torch", dtype, where, list(tensor.shape))

    def _leaf(
        self, array: Any, kind: str, dtype: str, where: str, shape: list[int] | None = None
    ) -> Any:
        if array.dtype.kind not in _KINDS or array.dtype.hasobject or array.dtype.names:
            raise _refusal(where, f"an array of {array.dtype}")
        whole = np.ascontiguousarray(array)
        piece = memoryview(whole.reshape(-1).view("u1").data) if whole.size else memoryview(b"")
        self._leaves.append(
            {
                "kind": kind,
                "dtype": dtype,
                "shape": list(array.shape) if shape is None else shape,
                "at": self._size,
            }
        )
        self._pieces.append(piece)
        self._size += len(piece) + _padding(len(piece))
        return {"a": len(self._leaves) - 1}


def deserialize(segment: Segment) -> Any:
    """Return the value stored in a segment. Its arrays refer to the segment's memory.

    Raises:
        ValueError: the segment contains something else
    """
    mapped = segment.read_only()
    length = int.from_bytes(mapped[:8], "little")
    if length > segment.size - 8:
        raise ValueError(
            "pytriton.shared: the memory shared under this key does not contain a serialized value"
        )
    head = json.loads(mapped[8 : 8 + length])
    begin = 8 + length + _padding(8 + length)
    leaves = [_array(segment, begin, leaf) for leaf in head["leaves"]]
    return _value(head["tree"], leaves)


def _array(segment: Segment, begin: int, leaf: Mapping[str, Any]) -> Any:
    if leaf["kind"] == "torch":
        return tensor(segment, begin + leaf["at"], leaf["dtype"], leaf["shape"])
    return array(segment, begin + leaf["at"], np.dtype(leaf["dtype"]), leaf["shape"])


def array(segment: Segment, at: int, dtype: Any, shape: list[int]) -> Any:
    """Return a part of a segment as a read-only array; `at` is its offset in bytes."""
    count = int(np.prod(shape, dtype=np.int64))
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype)
    return np.frombuffer(segment.read_only(), dtype, count, at).reshape(shape)


def tensor(segment: Segment, at: int, dtype: str, shape: list[int]) -> Any:
    """Return a part of a segment as a tensor; `at` is its offset in bytes. Written pages become private to this process."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    kind = getattr(torch, dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return torch.empty(shape, dtype=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(segment.private(), dtype=kind, count=count, offset=at).reshape(
            shape
        )


def _value(tree: Mapping[str, Any], leaves: list[Any]) -> Any:
    ((kind, what),) = tree.items()
    if kind == "a":
        return leaves[what]
    if kind == "d":
        return {key: _value(one, leaves) for key, one in what.items()}
    if kind == "v":
        return what
    values = [_value(one, leaves) for one in what]
    return values if kind == "l" else tuple(values)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _padding(length: int) -> int:
    return -length % _ALIGNED


def _refusal(where: str, what: str) -> PyTritonValidationError:
    return PyTritonValidationError(
        f"pytriton.shared: {where} is {what}. Share numpy arrays of numbers, fixed-length strings or booleans, or "
        "torch tensors on the CPU, in dictionaries with strings as keys, lists and tuples."
    )
