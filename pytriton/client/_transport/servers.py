"""The servers of one client: load balancing between them, and waiting until one is ready.

With several URLs, requests go to the servers in turn. A server that cannot be reached, or does not have the model, is
skipped for a few seconds. After that, it must pass a readiness check before it gets requests again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytriton.client._transport.connections import ServerConnection
from pytriton.client._transport.failures import (
    CallFailed,
    FailureKind,
    Problem,
    call_error,
    waiting_error,
)
from pytriton.client._transport.steps import CallStep, Pause, Steps
from pytriton.client.exceptions import PyTritonClientError
from pytriton.exceptions import PyTritonModelConfigError
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = [
    "MAX_CALL_S",
    "Servers",
    "TritonEndpoint",
    "read_config",
    "wait_for_model",
    "wait_for_server",
]

#: How long a failed server is skipped.
_SKIP_S = 3.0

# Triton does not announce when a model becomes ready, so poll it with increasing intervals.
_INITIAL_DELAY_S = 0.02
_MAX_DELAY_S = 0.5
_GROWTH = 1.5

#: Maximum timeout of a call. gRPC treats timeouts of centuries (or `math.inf`) as expired, and the locks of some
#: systems accept at most 49 days.
MAX_CALL_S = 30 * 24 * 3600.0

#: Failures that waiting does not fix.
_PERMANENT = frozenset({FailureKind.TLS, FailureKind.NO_HTTP, FailureKind.RESTRICTED})


@dataclass
class TritonEndpoint:
    """A server, with its connection and last known state."""

    connection: ServerConnection
    ready: bool = True  #: last known state
    skipped_until: float = 0.0  #: on time.monotonic

    @property
    def url(self) -> str:
        """The server's URL, for messages."""
        return self.connection.url.with_scheme


class Servers:
    """The servers of a client, which all serve the same model.

    Args:
        servers: the servers, at least one
        model_name: name of the model
        version: version of the model, "" for the latest
        headers: headers of every call, with the access token
    """

    def __init__(
        self,
        servers: Sequence[TritonEndpoint],
        model_name: str,
        version: str,
        headers: dict[str, str],
    ) -> None:
        self.model_name = model_name
        self.version = version
        self._servers = list(servers)
        self._headers = headers
        self._turns = itertools.count()

    def __iter__(self) -> Iterator[TritonEndpoint]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def module(self) -> Any:
        """tritonclient's module with the classes for inputs and outputs."""
        return self._servers[0].connection.module

    @property
    def label(self) -> str:
        """Name and version of the model, for messages."""
        return f"model {self.model_name}/{self.version or '<latest>'}"

    def in_turn(self) -> Iterator[tuple[TritonEndpoint, bool]]:
        """Iterate over all servers once, starting with the next one in turn.

        Servers that are currently skipped come last.

        Each item is a server and whether it is the last one.
        """
        count = len(self._servers)
        first = next(self._turns) % count
        turned = self._servers[first:] + self._servers[:first]
        now = time.monotonic()
        turned.sort(key=lambda server: server.skipped_until > now)
        return ((server, number == count) for number, server in enumerate(turned, start=1))

    def skip(self, server: TritonEndpoint) -> None:
        """Skip a server for a few seconds, unless it is the only one."""
        if len(self._servers) > 1:
            server.ready = False
            server.skipped_until = time.monotonic() + _SKIP_S

    def call(
        self, server: TritonEndpoint, method: str, timeout_s: float, **arguments: Any
    ) -> Steps[Any]:
        """Call a method of one server with the access token."""
        return (yield CallStep(server.connection, method, timeout_s, arguments, self._headers))

    def check(self, server: TritonEndpoint, timeout_s: float) -> Steps[None]:
        """Check that the model is ready on a server.

        Raises:
            CallFailed: the model is not ready; the text gives the reason
        """
        model = {"model_name": self.model_name, "model_version": self.version}
        if not (yield from self.call(server, "is_model_ready", timeout_s, **model)):
            # The server does not say why. The response to a configuration request shows the reason.
            yield from self.call(server, "get_model_config", timeout_s, **model)
            if not (yield from self.call(server, "is_server_live", timeout_s)):
                raise CallFailed(
                    FailureKind.RESTRICTED,
                    "it knows the model, but restricts access to its readiness endpoint",
                )
            raise CallFailed(FailureKind.NOT_READY, "it has the model, but the model is not ready")
        server.ready = True
        server.skipped_until = 0.0


def wait_for_server(servers: Servers, timeout_s: float) -> Steps[None]:
    """Wait until one of the servers is ready.

    Raises:
        PyTritonClientTimeoutError: no server became ready in time
        PyTritonClientTlsError, PyTritonClientInvalidUrlError, PyTritonClientInferenceServerError: an error that
            waiting longer does not fix
    """

    def check(server: TritonEndpoint, limit_s: float) -> Steps[None]:
        if not (yield from servers.call(server, "is_server_ready", limit_s)):
            raise CallFailed(
                FailureKind.NOT_READY,
                "it is not ready, or its health endpoint is restricted and requires "
                "an access_token",
            )

    yield from _wait(servers, "server", check, timeout_s, None)


def wait_for_model(servers: Servers, timeout_s: float, grace_s: float | None) -> Steps[None]:
    """Wait until the model is ready on one of the servers. The others are skipped for a few seconds.

    Args:
        servers: the client's servers
        timeout_s: maximum wait in seconds
        grace_s: maximum wait while all servers respond that they do not know the model; None: `timeout_s`

    Raises:
        PyTritonClientModelUnavailableError: a server responds, but the model is not ready on it
        PyTritonClientTimeoutError: no server responds
        PyTritonClientTlsError, PyTritonClientInvalidUrlError, PyTritonClientInferenceServerError: an error that
            waiting longer does not fix
    """
    yield from _wait(servers, servers.label, servers.check, timeout_s, grace_s)


def _wait(
    servers: Servers,
    what: str,
    check: Callable[[TritonEndpoint, float], Steps[None]],
    timeout_s: float,
    grace_s: float | None,
) -> Steps[None]:
    begun = time.monotonic()
    unknown_since = None
    pause_s = _INITIAL_DELAY_S
    reasons: dict[str, CallFailed] = {}
    while True:
        problems: list[Problem] = []
        for server in servers:
            left_s = max(0.001, begun + timeout_s - time.monotonic())
            try:
                yield from check(server, min(left_s / len(servers), MAX_CALL_S))
            except CallFailed as failure:
                # The last check may have had little time, so the earlier reason is more informative.
                if failure.kind is not FailureKind.TIMEOUT or server.url not in reasons:
                    reasons[server.url] = failure
                problems.append((server.url, reasons[server.url]))
                servers.skip(server)
        if len(problems) < len(servers):
            return
        _raise_if_permanent(what, problems, timeout_s)
        now = time.monotonic()
        unknown = all(problem.kind is FailureKind.UNKNOWN_MODEL for _, problem in problems)
        unknown_since = (unknown_since or now) if unknown else None
        if now >= begun + timeout_s:
            raise waiting_error(what, problems, now - begun)
        if grace_s is not None and unknown_since and now >= unknown_since + grace_s:
            advice = (
                "Check its name, or wait longer with init_timeout_s=... or wait_for_model(...)."
            )
            raise waiting_error(what, problems, now - begun, advice)
        yield Pause(min(pause_s, begun + timeout_s - now))
        pause_s = min(pause_s * _GROWTH, _MAX_DELAY_S)


def _raise_if_permanent(what: str, problems: list[Problem], timeout_s: float) -> None:
    if all(problem.kind in _PERMANENT for _, problem in problems):
        url, problem = problems[0]
        raise call_error(problem, url, f"waiting for {what}", timeout_s)


def read_config(servers: Servers, timeout_s: float) -> Steps[TritonModelConfig]:
    """Read the model's configuration from the first server that returns it.

    Raises:
        PyTritonClientTimeoutError, PyTritonClientInferenceServerError, PyTritonClientTlsError: no server
            returned it
        PyTritonClientError: the configuration cannot be parsed
    """
    model = {"model_name": servers.model_name, "model_version": servers.version}
    doing = f"reading the configuration of {servers.label}"
    for server, is_last in servers.in_turn():
        try:
            document = yield from servers.call(server, "get_model_config", timeout_s, **model)
        except CallFailed as failure:
            if is_last:
                raise call_error(failure, server.url, doing, timeout_s) from failure
            continue
        document = document.get("config", document)  # gRPC's response contains it as a field
        try:
            return TritonModelConfig.from_triton_config(document, int(servers.version or 1))
        except PyTritonModelConfigError as error:
            raise PyTritonClientError(
                f"Cannot parse the configuration of {servers.label}: {error}"
            ) from error
    raise AssertionError("a client needs at least one server")
