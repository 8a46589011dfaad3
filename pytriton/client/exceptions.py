"""The exceptions of the inference clients. Names and meanings are those of PyTriton.

`PyTritonClientModelUnavailableError` is a `PyTritonClientTimeoutError`: PyTriton documents the one and raises
the other when a model does not become ready; here both `except` clauses hold.
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
    """Base of all exceptions of the clients."""


class PyTritonClientValueError(PyTritonClientError):
    """An argument of a client or of an inference cannot be right; nothing was sent."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """A URL cannot be read, has a scheme that is none of ours, or one that what answers there does not speak."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server did not answer in time, or could not be reached at all."""


class PyTritonClientModelUnavailableError(PyTritonClientTimeoutError):
    """The server is there, but does not have the model, or not that version, ready."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client has been closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """`infer_batch` was called for a model that has no batch axis."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server answered with an error: the callable raised, or the request was refused."""


class PyTritonClientQueueFullError(PyTritonClientError):
    """A `FuturesModelClient` with ``non_blocking=True`` has as many requests waiting as it may."""


class PyTritonClientTlsError(PyTritonClientError):
    """No secure connection: a certificate is not trusted, missing, or made out to another name."""
