"""Files of shared weights: valid and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.weights import same, write_raw, write_safetensors

import pytriton
from pytriton.exceptions import PyTritonValidationError


def test_a_safetensors_file(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(7, np.int64),
        "c": np.empty((0, 2), np.float32),
        "d": np.array([True, False]),
    }
    write_safetensors(tmp_path / "w.safetensors", arrays)
    found = pytriton.shared(tmp_path / "w.safetensors")
    same(found, arrays)
    assert not found["a"].flags.writeable


@pytest.mark.parametrize("fortran", [False, True])
def test_an_npy_file(tmp_path: Path, fortran: bool) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    np.save(tmp_path / "w.npy", np.asfortranarray(array) if fortran else array)
    found = pytriton.shared(tmp_path / "w.npy")
    same(found, array)
    assert not found.flags.owndata


def reported(**changed: Any) -> bytes:
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}
    return json.dumps({"w": tensor}).encode()


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"{", "is not a .safetensors file"),
        (b"[]", "is not a .safetensors file"),
        (reported(dtype="F33"), "is not a .safetensors file"),
        (reported(data_offsets=[0, 4000]), "the data of w is outside of the file"),
        (reported(data_offsets=[-8, 0]), "the data of w is outside of the file"),
        (reported(shape=[3]), "w has 8 bytes, but its shape requires 12"),
        (reported(shape=[-2]), "the data of w is outside of the file"),
        (reported(shape=[1 << 40]), "is not a .safetensors file"),
        (reported(dtype="BF16", data_offsets=[0, 4]), "w is BF16, which numpy does not support"),
    ],
)
def test_a_damaged_safetensors_file_is_reported(tmp_path: Path, header: bytes, text: str) -> None:
    write_raw(tmp_path / "w.safetensors", header, bytes(64))
    with pytest.raises(PyTritonValidationError) as error:
        pytriton.shared(tmp_path / "w.safetensors")
    assert text in str(error.value)


@pytest.mark.parametrize("name", ["w.safetensors", "w.npy"])
@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 100, b"\x93NUMPY\x01\x00"])
def test_a_file_of_another_format_is_reported(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PyTritonValidationError, match=r"pytriton.shared: .*w\.(safetensors|npy)"):
        pytriton.shared(tmp_path / name)


def test_a_shortened_npy_file_is_reported(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(100.0))
    content = (tmp_path / "w.npy").read_bytes()
    (tmp_path / "w.npy").write_bytes(content[:-8])
    with pytest.raises(PyTritonValidationError, match="it is truncated"):
        pytriton.shared(tmp_path / "w.npy")


# ── torch ────────────────────────────────────────────────────────────────────────────────────────


def test_tensors_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.arange(6.0).reshape(2, 3).T, "h": torch.ones(3, dtype=torch.bfloat16)}
    found = pytriton.shared(state)
    assert torch.equal(found["w"], state["w"])
    assert torch.equal(found["h"], state["h"])
    found["w"][0, 0] = 42.0  # a page of its own from now on
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    write_raw(
        tmp_path / "w.safetensors",
        header,
        torch.tensor([1.5, 2.0], dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes(),
    )
    assert pytriton.shared(tmp_path / "w.safetensors", framework="torch")["w"].tolist() == [
        1.5,
        2.0,
    ]
