"""Weight files that can be mapped without a copy: safetensors, and numpy's .npy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from pytriton._sharing import segments, trees
from pytriton._sharing.segments import Segment
from pytriton.exceptions import PyTritonValidationError

#: Data types: name in safetensors -> name in numpy ("" if it has none), name in torch.
_DTYPES = {
    "F64": ("<f8", "float64"),
    "F32": ("<f4", "float32"),
    "F16": ("<f2", "float16"),
    "BF16": ("", "bfloat16"),
    "F8_E4M3": ("", "float8_e4m3fn"),
    "F8_E5M2": ("", "float8_e5m2"),
    "I64": ("<i8", "int64"),
    "I32": ("<i4", "int32"),
    "I16": ("<i2", "int16"),
    "I8": ("|i1", "int8"),
    "U64": ("<u8", "uint64"),
    "U32": ("<u4", "uint32"),
    "U16": ("<u2", "uint16"),
    "U8": ("|u1", "uint8"),
    "BOOL": ("|b1", "bool"),
}
#: Maximum size of a safetensors header in bytes, as in the safetensors library.
_MAX_HEADER_BYTES = 100_000_000


def digest_of(path: Path) -> str:
    """Return a text that changes when the file does. It contains the path, device, inode, modification time and size.

    Raises:
        FileNotFoundError: the file does not exist
    """
    real = path.resolve(strict=True)
    seen = os.stat(real)
    return f"{real} {seen.st_dev} {seen.st_ino} {seen.st_mtime_ns} {seen.st_size}"


def load(path: Path, digest: str, framework: str) -> Any:
    """Map a file and return its arrays: an array for .npy, a dictionary for .safetensors.

    Args:
        path: the file
        digest: identifies the file's content
        framework: "numpy" or "torch": the type of the arrays

    Raises:
        PyTritonValidationError: the file has another format, or content that cannot be mapped
    """
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", ".npy"):
        raise PyTritonValidationError(
            f"pytriton.shared: {path} is neither a .safetensors nor a .npy file. For other formats, share the "
            f"result of a function that reads the file: "
            f"pytriton.shared(lambda: load({str(path)!r}), key=Path({str(path)!r}))."
        )
    if not os.path.getsize(path):
        raise PyTritonValidationError(f"pytriton.shared: {path} is empty.")
    segment = segments.file(digest, path)
    try:
        if suffix == ".npy":
            return _npy(path, segment, framework)
        return _safetensors(segment, framework)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"pytriton.shared: {path} is not a {suffix} file that can be mapped: {error}"
        raise PyTritonValidationError(text) from error


def _npy(path: Path, segment: Segment, framework: str) -> Any:
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        at = file.tell()
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    if at + dtype.itemsize * int(np.prod(shape, dtype=np.int64)) > segment.size:
        raise ValueError("it is truncated")
    sizes = list(reversed(shape)) if fortran else list(shape)
    if framework == "torch":
        found = trees.tensor(segment, at, dtype.name, sizes)
        return found.permute(*reversed(range(len(shape)))) if fortran else found
    found = trees.array(segment, at, dtype, sizes)
    return found.transpose() if fortran else found


def _safetensors(segment: Segment, framework: str) -> dict[str, Any]:
    mapped = segment.read_only()
    length = int.from_bytes(mapped[:8], "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, segment.size - 8):
        raise ValueError("its header length is invalid")
    header = json.loads(mapped[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: _tensor(segment, 8 + length, name, header_entry, framework)
        for name, header_entry in header.items()
    }


def _tensor(segment: Segment, data: int, name: str, header_entry: Any, framework: str) -> Any:
    of_numpy, of_torch = _DTYPES[header_entry["dtype"]]
    shape, (begin, end) = list(header_entry["shape"]), header_entry["data_offsets"]
    if not 0 <= begin <= end <= segment.size - data or any(one < 0 for one in shape):
        raise ValueError(f"the data of {name} is outside of the file")
    if framework == "torch":
        found = trees.tensor(segment, data + begin, of_torch, shape)
        size = found.element_size() * found.numel()
    elif of_numpy:
        found = trees.array(segment, data + begin, np.dtype(of_numpy), shape)
        size = found.nbytes
    else:
        raise ValueError(
            f"{name} is {header_entry['dtype']}, which numpy does not support; use framework='torch'"
        )
    if size != end - begin:
        raise ValueError(f"{name} has {end - begin} bytes, but its shape requires {size}")
    return found
