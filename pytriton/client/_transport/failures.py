"""Classifies failed calls to a server, and creates the exceptions that users get for them."""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientTlsError,
)

__all__ = [
    "NOT_BEGUN",
    "SERVER_ERROR",
    "CallFailed",
    "FailureKind",
    "Problem",
    "call_error",
    "describe",
    "waiting_error",
]


class FailureKind(enum.Enum):
    """Classification of a failed call, independent of the protocol."""

    TIMEOUT = "timeout"  #: no response in time
    UNREACHABLE = "unreachable"  #: no connection; nothing was sent
    BROKEN = "broken"  #: the connection ended before the response
    TLS = "tls"  #: no secure connection; a retry does not help
    NO_HTTP = "no http"  #: the server speaks another protocol; a retry does not help
    RESTRICTED = "restricted"  #: the endpoint requires the access token
    UNKNOWN_MODEL = "unknown model"  #: the server does not know the model, or not that version
    NOT_READY = "not ready"  #: the server knows the model, but it is not ready
    MISFIT = "misfit"  #: the request does not match the model, which may have been replaced
    REFUSED = "refused"  #: any other error response


#: Kinds after which another server may be tried, because this one has not started to process the request.
NOT_BEGUN = frozenset({FailureKind.UNREACHABLE, FailureKind.UNKNOWN_MODEL, FailureKind.NOT_READY})


class CallFailed(Exception):
    """Raised when a call to a server fails.

    Args:
        kind: classification of the failure
        text: the error message
    """

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


#: Triton's message -> its kind. Messages of Triton 2.51; the status differs between the protocols.
_SERVER_TEXTS: Mapping[str, FailureKind] = {
    "unknown model": FailureKind.UNKNOWN_MODEL,
    "is not at ready state": FailureKind.NOT_READY,
    "is restricted, expecting header": FailureKind.RESTRICTED,
}
#: Statuses of both protocols for a request that does not match the model.
_MISFITS = ("400", "501", "INVALID_ARGUMENT", "UNIMPLEMENTED")
#: gRPC's own messages with the status UNAVAILABLE, which Triton also uses (for a full queue).
_GRPC_TEXTS: Mapping[str, FailureKind] = {
    "certificate_verify_failed": FailureKind.TLS,
    "handshake": FailureKind.TLS,
    "ssl_error": FailureKind.TLS,
    "verification check failed": FailureKind.TLS,
    "failed to connect": FailureKind.UNREACHABLE,
    "dns resolution failed": FailureKind.UNREACHABLE,
    "name resolution": FailureKind.UNREACHABLE,
    "connection refused": FailureKind.UNREACHABLE,
    "socket closed": FailureKind.BROKEN,
    "connection reset": FailureKind.BROKEN,
    "broken pipe": FailureKind.BROKEN,
    "recvmsg": FailureKind.BROKEN,
    "goaway": FailureKind.BROKEN,
    "endpoint closing": FailureKind.BROKEN,
    "transport": FailureKind.BROKEN,
}
#: Packages whose exceptions are connection failures, like OSErrors.
_TRANSPORTS = frozenset({"aiohttp", "geventhttpclient"})
#: Names of geventhttpclient's and aiohttp's exceptions for a response that is not HTTP.
_NO_HTTP = frozenset({"HTTPParseError", "ClientResponseError"})

#: Prefix of messages from the server. {doing} is, for example, "inference request".
SERVER_ERROR = "Error occurred during {doing}. Message: {text}"

_TOKEN_HINT = "Pass access_token= to the client (`pytriton-daemon access-token` shows a daemon's)."
_TLS_HINT = (
    "Pass tls=TlsOptions(ca_certificate=...) with the certificate of the authority that signed the server's "
    "certificate."
)


def describe(error: BaseException) -> CallFailed | None:
    """Convert an exception of tritonclient or its transport to `CallFailed`; return None for any other exception."""
    if isinstance(error, CallFailed):
        return error
    if type(error).__name__ in _NO_HTTP:
        return CallFailed(FailureKind.NO_HTTP, "the server there does not speak HTTP")
    message = getattr(error, "message", None)
    if callable(message) and hasattr(error, "status"):  # InferenceServerException
        return _classify_response(str(message()), str(error.status() or ""))
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):
        # gRPC's own exceptions, which tritonclient does not always wrap.
        return _classify_response(str(details()), str(code()))
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, (asyncio.TimeoutError, TimeoutError, socket.timeout)):
        return CallFailed(FailureKind.TIMEOUT, text)
    if isinstance(error, ssl.SSLError) or _certificate_refused(error):
        return CallFailed(FailureKind.TLS, text)
    if isinstance(error, (ConnectionRefusedError, socket.gaierror)) or _never_connected(error):
        return CallFailed(FailureKind.UNREACHABLE, text)
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _TRANSPORTS:
        return CallFailed(FailureKind.BROKEN, text)
    return None


def _classify_response(text: str, status: str) -> CallFailed:
    lowered = text.lower()
    if status.endswith("DEADLINE_EXCEEDED"):
        return CallFailed(FailureKind.TIMEOUT, text)
    kind = _first(_SERVER_TEXTS, lowered)
    if kind is None and status.endswith("UNAVAILABLE"):
        kind = _first(_GRPC_TEXTS, lowered)
    if kind is None and status.endswith(_MISFITS):
        kind = FailureKind.MISFIT
    return CallFailed(kind or FailureKind.REFUSED, text)


def _first(kinds: Mapping[str, FailureKind], text: str) -> FailureKind | None:
    return next((kind for words, kind in kinds.items() if words in text), None)


def _certificate_refused(error: Any) -> bool:
    # aiohttp wraps them in `os_error` or `certificate_error`.
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
    return isinstance(inner, (ssl.SSLError, ssl.CertificateError))


def _never_connected(error: BaseException) -> bool:
    return type(error).__name__.startswith("ClientConnector")  # aiohttp has one class per reason


#: A server's URL, and why it is not ready.
Problem = tuple[str, CallFailed]


def call_error(
    failure: CallFailed, url: str, doing: str, timeout_s: float, template: str = SERVER_ERROR
) -> PyTritonClientError:
    """Return the exception that the user gets for a failed call.

    Args:
        failure: the call's failure
        url: URL of the server
        doing: name of the operation for the message, such as "inference request"
        timeout_s: timeout of the operation, in seconds
        template: prefix of messages from the server
    """
    text = failure.text
    if failure.kind is FailureKind.TLS:
        return PyTritonClientTlsError(f"No secure connection to {url}: {text}. {_TLS_HINT}")
    if failure.kind is FailureKind.NO_HTTP:
        return PyTritonClientInvalidUrlError(
            f"No HTTP response from {url}: {text}. If that is the gRPC port, write grpc{url[len('http') :]}. "
            f"Otherwise use the HTTP port, which is 8000 by default."
        )
    late = {
        FailureKind.TIMEOUT: f"{url} did not respond in time ({text})",
        FailureKind.UNREACHABLE: f"cannot connect to {url}: {text}",
        FailureKind.BROKEN: f"the connection to {url} ended before the response arrived: {text}",
    }.get(failure.kind)
    if late is not None:
        return PyTritonClientTimeoutError(
            f"Timeout occurred during {doing}. Timeout: {timeout_s:g} s. Message: {late}"
        )
    if failure.kind is FailureKind.RESTRICTED:
        text = f"{text}. {_TOKEN_HINT}"
    return PyTritonClientInferenceServerError(template.format(doing=doing, text=text))


def waiting_error(
    what: str, problems: Sequence[Problem], waited_s: float, advice: str = ""
) -> PyTritonClientError:
    """Return the exception that the user gets if servers or a model do not become ready in time.

    Args:
        what: what was waited for: "server", or "model NAME/VERSION"
        problems: why each server is not ready
        waited_s: time waited, in seconds
        advice: what the user can do
    """
    reasons = "; ".join(f"{url}: {problem.text}" for url, problem in problems)
    message = f"Waiting for {what} to be ready timed out. After {waited_s:.3g} s: {reasons}."
    answered = any(
        problem.kind
        in (
            FailureKind.UNKNOWN_MODEL,
            FailureKind.NOT_READY,
            FailureKind.REFUSED,
            FailureKind.MISFIT,
        )
        for _, problem in problems
    )
    kind = PyTritonClientTimeoutError
    if answered and what != "server":
        kind = PyTritonClientModelUnavailableError
    return kind(f"{message} {advice}".rstrip())
