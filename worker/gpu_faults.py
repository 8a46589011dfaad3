"""Recognizes exceptions of GPU frameworks after which a worker should be replaced.

- Out of memory: the request fails, and memory that the framework has cached or fragmented may make later ones fail.
- Errors of CUDA itself, such as an illegal address in a kernel: CUDA refuses all further calls by the process, so that
  every request would fail until the process is replaced.

No framework is imported here. Exceptions are recognized by the names of their types and, where a framework has one type
for everything, by their texts.
"""

from __future__ import annotations

import re

_FRAMEWORKS = frozenset(
    {"cupy", "cupy_backends", "jax", "jaxlib", "numba", "onnxruntime", "tensorflow", "torch"}
)
_MEMORY_TYPES = frozenset({"OutOfMemoryError", "ResourceExhaustedError"})
_CUDA_TYPES = frozenset({"AcceleratorError", "CUDARuntimeError", "CudaAPIError"})
#: Types of errors about a request's data, which their texts may quote.
_DATA_TYPES = frozenset(
    {
        "InvalidArgument",
        "InvalidArgumentError",
        "NotFoundError",
        "OutOfRangeError",
        "UnimplementedError",
    }
)
_MEMORY_TEXT = re.compile(
    r"CUDA out of memory|CUDA (error|failure)[^:]*: out of memory|RESOURCE_EXHAUSTED"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)
_CUDA_TEXT = re.compile(
    r"CUDA (error|failure)|cuDNN error|CUDA_ERROR_\w|cudaError\w|(CUDNN|CUBLAS)_STATUS_\w"
)
#: Maximum number of characters of a text that are examined.
_MAX_TEXT = 2_000
#: Maximum number of causes that are followed.
_MAX_CAUSES = 8
#: The first fault of this process.
_noted: list[str] = []


def note(error: BaseException) -> None:
    """Remember an exception if it is a reason to replace this process."""
    if not _noted:
        fault = fault_of(error)
        if fault is not None:
            _noted.append(fault)


def noted() -> str | None:
    """Return why this process should be replaced; None if no GPU has failed."""
    return _noted[0] if _noted else None


def fault_of(error: BaseException) -> str | None:
    """Return why the process should be replaced after an exception; None if it may continue."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        found = _fault_of_one(cause)
        if found is not None:
            return found
        cause = cause.__cause__
    return None


def _fault_of_one(error: BaseException) -> str | None:
    types = [one for one in type(error).__mro__ if _package(one) in _FRAMEWORKS]
    if not types and type(error) is not RuntimeError:
        return None
    names = {one.__name__ for one in types}
    if names & _DATA_TYPES:
        return None
    try:
        text = str(error)[:_MAX_TEXT]
    except Exception:  # from the exception's own method
        text = ""
    # torch raises plain RuntimeErrors, too. Those of other code may quote a client, so only the beginning of their texts counts.
    look = re.Pattern.search if types else re.Pattern.match
    if names & _MEMORY_TYPES or look(_MEMORY_TEXT, text):
        return f"a batch ran out of GPU memory ({_name(error)})"
    if names & _CUDA_TYPES or look(_CUDA_TEXT, text):
        return f"CUDA failed, and may refuse all further calls of this process ({_name(error)})"
    return None


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind is RuntimeError else f"{kind.__module__}.{kind.__qualname__}"
