"""Triton's datatypes and numpy's dtypes: the one table between them (KServe v2, "Tensor Data Types").

numpy has no BF16: a process with ml_dtypes uses its bfloat16. One without it (the proxy) treats such
a tensor as 16-bit words and does not interpret them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Triton's datatype -> numpy dtype, for all fixed-size types that numpy supports.
NUMERIC: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),
}

#: Triton's datatypes by their number in its C API (tritonserver.h, TRITONSERVER_DataType).
TRITON_CODES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
    "FP64", "BYTES", "BF16",
)  # fmt: skip


def element_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype in which a worker's callable receives a datatype; object for BYTES.

    Raises:
        ImportError: BF16 needs ml_dtypes, which is not installed in this environment.
        KeyError: unknown datatype.
    """
    if datatype == "BYTES":
        return np.dtype(object)
    if datatype == "BF16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                "a tensor of type BF16 needs the package ml_dtypes in the worker's environment: "
                "pip install ml_dtypes"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return NUMERIC[datatype]
