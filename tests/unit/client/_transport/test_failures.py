"""From a transport's exceptions to failures, and from those to the users' exceptions."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

from pytriton.client._transport.failures import (
    CallFailed,
    FailureKind,
    call_error,
    describe,
    waiting_error,
)
from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientTlsError,
)


class ServerSaid(Exception):
    """A stand-in for tritonclient's InferenceServerException."""

    def __init__(self, text: str, status: str = "") -> None:
        super().__init__(text)
        self._status = status

    def message(self) -> str:
        return str(self)

    def status(self) -> str:
        return self._status


class GrpcSaid(Exception):
    """A stand-in for grpc's error."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self._code = code

    def details(self) -> str:
        return str(self)

    def code(self) -> str:
        return self._code


class ClientConnectorError(OSError):
    """A stand-in for aiohttp's error of a failed connection attempt."""

    os_error: Any = None


UNAVAILABLE = "StatusCode.UNAVAILABLE"
REFUSED_CERTIFICATE = ClientConnectorError()
REFUSED_CERTIFICATE.os_error = ssl.SSLCertVerificationError()

MEANINGS: list[tuple[BaseException, FailureKind]] = [
    (ServerSaid("Request for unknown model: 'm' is not found"), FailureKind.UNKNOWN_MODEL),
    (ServerSaid("Model 'm' version 1 is not at ready state"), FailureKind.NOT_READY),
    (ServerSaid("This protocol is restricted, expecting header 'x'"), FailureKind.RESTRICTED),
    (ServerSaid("out of range", "400"), FailureKind.MISFIT),
    (ServerSaid("unexpected shape", "StatusCode.INVALID_ARGUMENT"), FailureKind.MISFIT),
    (ServerSaid("decoupled", "StatusCode.UNIMPLEMENTED"), FailureKind.MISFIT),
    (ServerSaid("ValueError: no", "500"), FailureKind.REFUSED),
    (ServerSaid("Deadline", "StatusCode.DEADLINE_EXCEEDED"), FailureKind.TIMEOUT),
    (ServerSaid("failed to connect to all addresses", UNAVAILABLE), FailureKind.UNREACHABLE),
    (ServerSaid("Socket closed", UNAVAILABLE), FailureKind.BROKEN),
    (ServerSaid("Ssl handshake failed: CERTIFICATE_VERIFY_FAILED", UNAVAILABLE), FailureKind.TLS),
    (
        ServerSaid("Exceeds maximum queue size", UNAVAILABLE),
        FailureKind.REFUSED,
    ),  # Triton's own word
    (ServerSaid("connection refused by the model", "400"), FailureKind.MISFIT),
    (GrpcSaid("recvmsg: it is gone", UNAVAILABLE), FailureKind.BROKEN),
    (socket.timeout("timed out"), FailureKind.TIMEOUT),
    (asyncio.TimeoutError(), FailureKind.TIMEOUT),
    (ssl.SSLError("wrong version"), FailureKind.TLS),
    (REFUSED_CERTIFICATE, FailureKind.TLS),
    (ConnectionRefusedError(), FailureKind.UNREACHABLE),
    (socket.gaierror(-2, "no such host"), FailureKind.UNREACHABLE),
    (ClientConnectorError("no route"), FailureKind.UNREACHABLE),
    (ConnectionResetError(), FailureKind.BROKEN),
]


@pytest.mark.parametrize(("error", "kind"), MEANINGS, ids=lambda one: str(one)[:40])
def test_exceptions_map_to_failures(error: BaseException, kind: FailureKind) -> None:
    found = describe(error)
    assert found is not None
    assert found.kind is kind
    assert str(error) in found.text


def test_unrelated_exceptions_are_reraised() -> None:
    assert describe(ValueError("a fault")) is None
    failure = CallFailed(FailureKind.TLS, "known already")
    assert describe(failure) is failure


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (FailureKind.TIMEOUT, PyTritonClientTimeoutError, "u did not respond in time (x)"),
        (FailureKind.UNREACHABLE, PyTritonClientTimeoutError, "cannot connect to u: x"),
        (
            FailureKind.BROKEN,
            PyTritonClientTimeoutError,
            "the connection to u ended before the response",
        ),
        (FailureKind.TLS, PyTritonClientTlsError, "No secure connection to u: x. Pass tls="),
        (
            FailureKind.RESTRICTED,
            PyTritonClientInferenceServerError,
            "Message: x. Pass access_token=",
        ),
        (
            FailureKind.REFUSED,
            PyTritonClientInferenceServerError,
            "Error occurred during asking. Message: x",
        ),
    ],
)
def test_the_exception_of_a_call(
    kind: FailureKind, error: type[PyTritonClientError], words: str
) -> None:
    made = call_error(CallFailed(kind, "x"), "u", "asking", 1.5)
    assert type(made) is error
    assert words in made.message
    assert ("Timeout occurred during asking. Timeout: 1.5 s." in made.message) == (
        error is PyTritonClientTimeoutError
    )


@pytest.mark.parametrize(
    ("what", "kinds", "error"),
    [
        ("model m", [FailureKind.UNREACHABLE], PyTritonClientTimeoutError),
        (
            "model m",
            [FailureKind.UNREACHABLE, FailureKind.NOT_READY],
            PyTritonClientModelUnavailableError,
        ),
        ("model m", [FailureKind.REFUSED], PyTritonClientModelUnavailableError),
        ("server", [FailureKind.NOT_READY], PyTritonClientTimeoutError),
    ],
)
def test_the_exception_of_a_wait(
    what: str, kinds: list[FailureKind], error: type[PyTritonClientError]
) -> None:
    problems = [(f"u{number}", CallFailed(kind, "x")) for number, kind in enumerate(kinds)]
    made = waiting_error(what, problems, 2.0, "Do this.")
    assert type(made) is error
    said = "; ".join(f"u{number}: x" for number in range(len(kinds)))
    assert made.message == f"Waiting for {what} to be ready timed out. After 2 s: {said}. Do this."
