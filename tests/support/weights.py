"""Files of weights, and the comparison of what was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def same(found: Any, wanted: Any) -> None:
    """Check that a value equals the expected one, including its types and the order of its keys."""
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.tolist() == wanted.tolist()
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            same(one, other)
    else:
        assert found == wanted


def write_safetensors(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write a .safetensors file."""
    names = {"float32": "F32", "int64": "I64", "bool": "BOOL", "uint8": "U8"}
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": names[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    data = b"".join(array.tobytes() for array in arrays.values())
    write_raw(path, json.dumps(header).encode(), data)


def write_raw(path: Path, header: bytes, data: bytes) -> None:
    """Write a .safetensors file with an arbitrary header."""
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
