"""Converts dtypes in all their spellings to Triton's data types, and Triton's data types to numpy's.

Triton's inference protocol calls data types "FP32" and "BYTES". A model configuration spells the same types
"TYPE_FP32" and "TYPE_STRING" (enum DataType in model_config.proto).
"""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np

from pytriton._protocol import numpy_types
from pytriton.exceptions import PyTritonBadParameterError

__all__ = [
    "normalise_dtype",
    "to_config_datatype",
    "to_numpy_dtype",
    "to_triton_datatype",
]

_NUMERIC: dict[str, type[np.generic]] = {
    name: dtype.type for dtype, name in numpy_types.BY_DTYPE.items()
}
# Look up by kind and size, not by type: np.longlong and np.int64 are different types of the same width.
_BY_LAYOUT = {(np.dtype(t).kind, np.dtype(t).itemsize): (name, t) for name, t in _NUMERIC.items()}
_BUILTINS: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}
_BYTES_TYPES: tuple[type, ...] = (bytes, object, np.bytes_, np.object_, np.str_)
_BYTES_WORDS: dict[str, type] = {
    "bytes": np.bytes_,
    "string": np.bytes_,
    "str": np.str_,
    "object": np.object_,
}
_KNOWN_WORDS = sorted(
    {*(np.dtype(t).name for t in _NUMERIC.values()), *_NUMERIC, *_BYTES_WORDS}
    | {"BF16", "BYTES", "bfloat16"}
)


def normalise_dtype(dtype: Any) -> type:
    """Convert any spelling of a dtype to the scalar type that a `Tensor` stores.

    Args:
        dtype: a numpy dtype or scalar type; one of the builtins bool, int, float, bytes, str and
            object; ``ml_dtypes.bfloat16``; or a string, as in numpy ("float32", "<f4") or Triton
            ("FP32", "BYTES", "TYPE_FP32"), "bytes", "object" or "bfloat16"

    Returns:
        a numpy scalar type such as ``np.float32``. ``bytes``, ``object``, ``np.bytes_``, ``np.object_`` and
        ``np.str_`` are returned unchanged.

    Raises:
        PyTritonBadParameterError: Triton does not support the type, or ml_dtypes is required but not installed

    Example:
        >>> normalise_dtype("FP32") is np.float32
        True
    """
    if isinstance(dtype, str):
        return _from_word(dtype)
    if isinstance(dtype, type):
        if dtype in _BYTES_TYPES:
            return dtype
        if dtype in _BUILTINS:
            return _BUILTINS[dtype]
        if not issubclass(dtype, (np.generic, complex)):
            raise _unsupported(dtype)  # np.dtype(<any class>) silently returns the object dtype
    return _from_numpy(dtype)


def to_triton_datatype(dtype: Any) -> str:
    """Return the name of the Triton data type for a dtype in any spelling that `normalise_dtype` accepts.

    Raises:
        PyTritonBadParameterError: Triton does not support the type

    Example:
        >>> to_triton_datatype(np.float32), to_triton_datatype(bytes), to_triton_datatype("<i8")
        ('FP32', 'BYTES', 'INT64')
    """
    scalar = normalise_dtype(dtype)
    if scalar in _BYTES_TYPES:
        return "BYTES"
    if scalar.__name__ == "bfloat16":
        return "BF16"
    layout = np.dtype(scalar)
    return _BY_LAYOUT[(layout.kind, layout.itemsize)][0]


def to_config_datatype(dtype: Any) -> str:
    """Return the name of the Triton data type in the spelling of model configurations, such as "TYPE_FP32"."""
    datatype = to_triton_datatype(dtype)
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def to_numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype of arrays of a Triton data type. BYTES are stored in object arrays.

    Args:
        datatype: name such as "FP32" or "TYPE_FP32", in upper or lower case

    Raises:
        PyTritonBadParameterError: the data type is unknown, or it is BF16 and ml_dtypes is not installed

    Example:
        >>> to_numpy_dtype("FP32"), to_numpy_dtype("TYPE_STRING")
        (dtype('float32'), dtype('O'))
    """
    name = _triton_name(datatype)
    if name == "BYTES":
        return np.dtype(np.object_)
    if name == "BF16":
        return np.dtype(_bfloat16())
    if name not in _NUMERIC:
        raise PyTritonBadParameterError(
            f"Unknown Triton data type {datatype!r}. Known: {', '.join(_NUMERIC)}, BF16, BYTES."
        )
    return np.dtype(_NUMERIC[name])


def _triton_name(word: str) -> str:
    name = word.strip().upper()
    if name.startswith("TYPE_"):
        name = name[len("TYPE_") :]
    return "BYTES" if name == "STRING" else name


def _from_word(word: str) -> type:
    plain = word.strip().lower()
    if plain in _BYTES_WORDS:
        return _BYTES_WORDS[plain]
    name = _triton_name(word)
    if name in _NUMERIC:
        return _NUMERIC[name]
    if name in ("BF16", "BFLOAT16"):
        return _bfloat16()
    if name == "BYTES":
        return np.bytes_
    try:
        parsed = np.dtype(word.strip())
    except (TypeError, ValueError, SyntaxError):
        raise _unsupported(word) from None
    return _from_numpy(parsed, shown=word)


def _from_numpy(dtype: Any, *, shown: Any = None) -> type:
    shown = dtype if shown is None else shown
    if dtype is None:  # np.dtype(None) silently returns float64
        raise _unsupported(shown)
    try:
        parsed: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise _unsupported(shown) from None
    if parsed.name == "bfloat16":
        return cast(type, parsed.type)
    if parsed.kind in "SUO" and parsed.subdtype is None:
        return cast(type, parsed.type)
    known = _BY_LAYOUT.get((parsed.kind, parsed.itemsize))
    if known is None:
        raise _unsupported(shown)
    return known[1]


def _bfloat16() -> type:
    try:
        return cast(type, importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise PyTritonBadParameterError(
            "bfloat16 is not a numpy type and requires the package ml_dtypes: pip install ml_dtypes"
        ) from None


def _unsupported(dtype: Any) -> PyTritonBadParameterError:
    import difflib  # imported here because it takes 2 ms in each worker

    shown = repr(dtype)
    nearest = difflib.get_close_matches(str(dtype), _KNOWN_WORDS, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return PyTritonBadParameterError(
        f"Triton has no data type for dtype {shown}.{hint} Use bool, (u)int8 to (u)int64, float16, "
        "float32, float64 or bfloat16, as a numpy dtype, a numpy type, a string or Triton's name "
        "(np.float32, 'float32', 'FP32'). For byte strings, use bytes, np.bytes_ or object."
    )
