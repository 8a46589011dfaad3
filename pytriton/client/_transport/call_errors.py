"""The exception raised for a failed call: of PyTriton's type, with a one-line message."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton.client._transport.failures import CallFailed, FailureKind
from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientTlsError,
)

__all__ = ["SERVER_ERROR", "Problem", "call_error", "waiting_error"]

#: Prefix of messages from the server. {doing} is "inference request" or the like.
SERVER_ERROR = "Error occurred during {doing}. Message: {text}"

#: A server's URL, and why it is not ready.
Problem = tuple[str, CallFailed]

_TOKEN_HINT = "Pass access_token= to the client (`pytriton-daemon access-token` shows a daemon's)."
_TLS_HINT = (
    "Pass tls=TlsOptions(ca_certificate=...) with the authority that signed its certificate."
)


def call_error(
    failure: CallFailed, url: str, doing: str, timeout_s: float, template: str = SERVER_ERROR
) -> PyTritonClientError:
    """Return the exception for a call that failed.

    Args:
        failure: the call's failure
        url: URL of the server
        doing: the operation, for the message
        timeout_s: timeout of the operation, in seconds
        template: prefix of messages from the server
    """
    text = failure.text
    if failure.kind is FailureKind.TLS:
        return PyTritonClientTlsError(f"No secure connection to {url}: {text}. {_TLS_HINT}")
    if failure.kind is FailureKind.NO_HTTP:
        return PyTritonClientInvalidUrlError(
            f"No HTTP answer at {url}: {text}. Is that the gRPC port? Then write grpc{url[len('http') :]}; otherwise "
            "the port of HTTP, 8000 where no other was chosen."
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
    """Return the exception for a wait that ended without success.

    Args:
        what: "server", or "model NAME/VERSION"
        problems: why each server is not ready
        waited_s: time waited, in seconds
        advice: what the user can do
    """
    said = "; ".join(f"{url}: {problem.text}" for url, problem in problems)
    message = f"Waiting for {what} to be ready timed out. After {waited_s:.3g} s: {said}."
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
