"""Generate proxy_backend/common/datatypes.h, the table of tritonserver's data types."""

from __future__ import annotations

from pathlib import Path

from pytriton._protocol import datatypes, numpy_types

PATH = Path("proxy_backend/common/datatypes.h")
_HEAD = """/* Written by scripts/generate from pytriton/_protocol/datatypes.py: do not edit.
 *
 * tritonserver's datatypes: number in its C API, name in requests, bytes per element (0: variable).
 */
/* clang-format off */
#ifndef PYTRITON_COMMON_DATATYPES_H
#define PYTRITON_COMMON_DATATYPES_H

"""
_ENUM = """

typedef enum {
    TYPE_INVALID,
#define DATATYPE(number, name, size) TYPE_##name = (number),
    DATATYPES(DATATYPE)
#undef DATATYPE
    TYPE_COUNT,
} DataType;

#endif
"""


def header() -> str:
    """Return the header: a macro with a row for each data type except INVALID, which is 0."""
    rows = [
        f"    X({code}, {name}, {_size(name)})"
        for code, name in enumerate(datatypes.TRITON_CODES)
        if code
    ]
    return f"{_HEAD}#define DATATYPES(X) \\\n" + " \\\n".join(rows) + _ENUM


def _size(name: str) -> int:
    return numpy_types.NUMERIC[name].itemsize if name in numpy_types.NUMERIC else 0
