"""The exceptions of the inference clients, with PyTriton's names and meanings.

`PyTritonClientModelUnavailableError` is a `PyTritonClientTimeoutError`: PyTriton documents the former and raises
the latter when a model does not become ready; here both `except` clauses match.
"""

from __future__ import annotations

from pytriton.exceptions import PyTritonError

__all__ = [
    "PyTritonClientClosedError",
    "PyTritonClientError",
    "PyTritonClientInferenceServerError",
    "PyTritonClientInvalidUrlError",
    "PyTritonClientModelDoesntSupportBatchingError",
    "PyTritonClientModelUnavailableError",
    "PyTritonClientQueueFullError",
    "PyTritonClientTimeoutError",
    "PyTritonClientTlsError",
    "PyTritonClientValueError",
]


class PyTritonClientError(PyTritonError):
    """Base class of all client exceptions."""


class PyTritonClientValueError(PyTritonClientError):
    """An argument of a client or of an inference is invalid; nothing was sent."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """A URL cannot be parsed, its scheme is unknown, or the server there does not speak that protocol."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server did not respond in time, or could not be reached at all."""


class PyTritonClientModelUnavailableError(PyTritonClientTimeoutError):
    """The server responds, but the model, or that version of it, is missing or not ready."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client has been closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """`infer_batch` was called for a model that has no batch axis."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server responded with an error: the callable raised, or the request was rejected."""


class PyTritonClientQueueFullError(PyTritonClientError):
    """The queue of a `FuturesModelClient` with ``non_blocking=True`` is full."""


class PyTritonClientTlsError(PyTritonClientError):
    """TLS failed: a certificate is untrusted, missing, or issued for another name."""
