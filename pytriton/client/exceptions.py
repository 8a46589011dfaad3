"""The exceptions of the inference clients, with PyTriton's names and meanings.

`PyTritonClientModelUnavailableError` is a subclass of `PyTritonClientTimeoutError`. If a model does not become ready,
PyTriton documents the former but raises the latter; here, `except` clauses for both match.
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
    """An argument to a client or to an inference call is invalid. Nothing was sent."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """A URL cannot be parsed, its scheme is unknown, or the server there does not speak that protocol."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server did not respond in time or could not be reached."""


class PyTritonClientModelUnavailableError(PyTritonClientTimeoutError):
    """The server responds, but the model (or the requested version) is missing or not ready."""


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
