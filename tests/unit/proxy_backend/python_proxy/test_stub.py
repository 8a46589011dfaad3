"""Internals of the stub that the proxy uses: serialized strings, BF16, and where a tensor is in memory."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes.triton.fake_stub import Tensor, pb_utils

from pytriton.proxy_backend.python_proxy import stub

WORDS = np.array([[b"a", b""], [b"long", "é".encode()]], object)
SERIALIZED = b"\1\0\0\0a\0\0\0\0\4\0\0\0long\2\0\0\0\xc3\xa9"


def test_strings_come_as_bytes() -> None:
    raw = stub.BytesTensors().serialized(Tensor("s", WORDS))
    assert raw is not None
    assert raw.dtype == np.uint8
    assert raw.tobytes() == SERIALIZED


def test_a_stub_that_decoded_the_strings() -> None:
    raw = stub.BytesTensors()
    assert raw.serialized(Tensor("x", np.zeros(3, np.float32))) is None


def test_strings_go_as_bytes() -> None:
    tensor = stub.BytesTensors().make("s", [2, 2], memoryview(SERIALIZED))
    assert tensor is not None
    assert (tensor.name(), tensor.shape(), bytes(tensor.held)) == ("s", [2, 2], SERIALIZED)


def test_no_strings_at_all() -> None:
    tensor = stub.BytesTensors().make("s", [0, 2], memoryview(b""))
    assert tensor is not None
    assert (tensor.shape(), tensor.held) == ([0, 2], b"")


def test_other_string_tensors_are_serialized_normally() -> None:
    stub.BytesTensors()
    assert Tensor("s", WORDS).held == SERIALIZED


def test_a_stub_that_does_not_use_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the caller decodes the strings; nothing is left over for the next tensor."""
    tensors = stub.BytesTensors()
    monkeypatch.setattr(pb_utils, "Tensor", lambda name, array: object())
    assert tensors.make("s", [1], memoryview(b"\1\0\0\0a")) is None
    monkeypatch.undo()
    assert Tensor("s", WORDS).held == SERIALIZED


@pytest.mark.parametrize(
    ("dtype", "datatype"),
    [
        (np.float16, "FP16"), (np.float32, "FP32"), (np.float64, "FP64"), (np.int8, "INT8"),
        (np.int64, "INT64"), (np.uint16, "UINT16"), (np.bool_, "BOOL"),
    ],
)  # fmt: skip
def test_the_address_of_a_tensor(dtype: Any, datatype: str) -> None:
    array = np.zeros((2, 3), dtype)
    tensor = Tensor("x", array)
    assert stub.place_of(tensor) == (datatype, array.ctypes.data)
    assert stub.address_of(tensor) == array.ctypes.data


def test_strings_have_no_address() -> None:
    assert stub.place_of(Tensor("s", WORDS)) is None


def test_other_failures_are_not_mistaken_for_strings() -> None:
    class Broken:
        def __dlpack__(self) -> Any:
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        stub.place_of(Broken())


def test_bf16_is_sent_as_16_bit_words() -> None:
    words = np.array([0x3F80, 0x4000], np.uint16)  # 1.0 and 2.0
    tensor = stub.bf16_tensor("x", words)

    class Capsule:
        def __dlpack__(self) -> Any:
            return tensor.held

    assert stub.place_of(Capsule()) == ("BF16", words.ctypes.data)


class Held:
    """Laid out like an object of pybind11: after the head an address, and its std::shared_ptr."""

    __slots__ = ("address", "counts", "pointer")


@pytest.fixture
def held() -> Iterator[tuple[Held, Any]]:
    """A fake object of the stub, and its reference count, which can be changed."""
    made = Held()
    # That address is not a Python object, and must not be dereferenced.
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(made))
    counts = (ctypes.c_int32 * 4)(0, 0, 2, 1)
    words = (ctypes.c_size_t * 3).from_address(id(made) + object.__basicsize__)
    words[:] = [ctypes.addressof(counts), ctypes.addressof(counts), ctypes.addressof(counts)]
    yield made, counts
    words[:] = [0, 0, 0]


def test_an_iterator_is_held_until_the_stub_releases_it(
    held: tuple[Held, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub, "_HELD", deque())
    iterator, counts = held
    waits = threading.Thread(target=stub.hold_until_last_owner, args=(iterator,))
    waits.start()
    waits.join(0.05)
    assert waits.is_alive()
    counts[2] = 1
    waits.join(30)
    assert not waits.is_alive()
    assert not stub._HELD


def test_an_iterator_of_unknown_state_is_held_for_a_while(
    held: tuple[Held, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: deque[tuple[float, Any]] = deque()
    monkeypatch.setattr(stub, "_HELD_S", 0.01)
    monkeypatch.setattr(stub, "_HELD", kept)
    iterator, counts = held
    stub.hold_until_last_owner(iterator)  # the stub keeps its reference
    assert [one for _, one in kept] == [iterator]
    monkeypatch.setattr(stub, "_HELD_S", 60.0)
    counts[2] = 1
    words = (ctypes.c_size_t * 3).from_address(id(iterator) + object.__basicsize__)
    words[1] += 8  # another layout
    other = object()
    stub.hold_until_last_owner(iterator)
    stub.hold_until_last_owner(other)
    assert [one for _, one in kept] == [iterator, iterator, other]
    monkeypatch.setattr(stub, "_HELD_S", -60.0)
    stub.hold_until_last_owner(other)
    assert not kept
