"""proxy_backend/frontend/core/datatypes.h, and the same table in the compiled proxy's protocol.h."""

from __future__ import annotations

from pathlib import Path

from pytriton._protocol import datatypes, numpy_types

PATH = Path("proxy_backend/frontend/core/datatypes.h")
_HEAD = """/* Written by scripts/generate from pytriton/_protocol/datatypes.py: do not edit.
 *
 * Number in Triton's C API, name in requests, bytes; 0: its values have none in common.
 */
/* clang-format off */
#ifndef PYTRITON_FRONTEND_CORE_DATATYPES_H
#define PYTRITON_FRONTEND_CORE_DATATYPES_H

"""


def table(*, quoted: bool) -> str:
    """Return a macro with a row for each, `quoted`: whose name is a string. The size of what has none in bytes is 0."""
    rows = [
        f"    X({code}, {_quoted(name) if quoted else name}, {_size(name)})"
        for code, name in enumerate(datatypes.TRITON_CODES)
        if quoted or code
    ]
    return "#define DATATYPES(X) \\\n" + " \\\n".join(rows)


def header() -> str:
    """Return the text of the frontend's header."""
    return f"{_HEAD}{table(quoted=False)}\n\n#endif\n"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _size(name: str) -> int:
    return numpy_types.NUMERIC[name].itemsize if name in numpy_types.NUMERIC else 0
