"""Waiting until a server, or a model on it, is ready; reading the model's configuration."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytriton.client._transport.call_errors import Problem, call_error, waiting_error
from pytriton.client._transport.failures import CallFailed, Kind
from pytriton.client._transport.servers import Server, Servers
from pytriton.client._transport.steps import Pause, Steps
from pytriton.client.exceptions import PyTritonClientError
from pytriton.exceptions import PyTritonModelConfigError
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["LONGEST_CALL_S", "read_config", "wait_for_model", "wait_for_server"]

# Triton tells nobody when a model becomes ready: it has to be asked, less and less often.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_GROWTH = 1.5

#: The longest time-out of one call. gRPC takes one of centuries (or `math.inf`) for one that has passed,
#: and the locks of some systems take no more than 49 days.
LONGEST_CALL_S = 30 * 24 * 3600.0

#: Waiting longer does not mend these.
_HOPELESS = frozenset({Kind.TLS, Kind.NO_HTTP, Kind.RESTRICTED})


def wait_for_server(servers: Servers, timeout_s: float) -> Steps[None]:
    """Wait until one of the servers says that it is ready.

    Raises:
        PyTritonClientTimeoutError: none does within the time
        PyTritonClientTlsError, PyTritonClientInvalidUrlError, PyTritonClientInferenceServerError: none ever will
    """

    def check(server: Server, limit_s: float) -> Steps[None]:
        if not (yield from servers.call(server, "is_server_ready", limit_s)):
            raise CallFailed(
                Kind.NOT_READY,
                "it says that it is not ready (or, where the health endpoint is restricted, "
                "wants an access_token)",
            )

    yield from _wait(servers, "server", check, timeout_s, None)


def wait_for_model(servers: Servers, timeout_s: float, grace_s: float | None) -> Steps[None]:
    """Wait until one of the servers has the model ready; those that have not get to rest.

    Args:
        servers: to be asked
        timeout_s: longest wait in seconds
        grace_s: longest wait once all servers answer, and none knows the model; None is `timeout_s`

    Raises:
        PyTritonClientModelUnavailableError: a server answers, but does not have it ready
        PyTritonClientTimeoutError: no server answers
        PyTritonClientTlsError, PyTritonClientInvalidUrlError, PyTritonClientInferenceServerError: waiting
            longer cannot help
    """
    yield from _wait(servers, servers.label, servers.check, timeout_s, grace_s)


def _wait(
    servers: Servers,
    what: str,
    check: Callable[[Server, float], Steps[None]],
    timeout_s: float,
    grace_s: float | None,
) -> Steps[None]:
    begun = time.monotonic()
    unknown_since = None
    pause_s = _FIRST_PAUSE_S
    reasons: dict[str, CallFailed] = {}
    while True:
        problems: list[Problem] = []
        for server in servers:
            left_s = max(0.001, begun + timeout_s - time.monotonic())
            try:
                yield from check(server, min(left_s / len(servers), LONGEST_CALL_S))
            except CallFailed as failure:
                # The last look may have little time: what was said before tells more than that.
                if failure.kind is not Kind.TIMEOUT or server.url not in reasons:
                    reasons[server.url] = failure
                problems.append((server.url, reasons[server.url]))
                servers.rest(server)
        if len(problems) < len(servers):
            return
        _give_up_if_hopeless(what, problems, timeout_s)
        now = time.monotonic()
        unknown = all(problem.kind is Kind.UNKNOWN_MODEL for _, problem in problems)
        unknown_since = (unknown_since or now) if unknown else None
        if now >= begun + timeout_s:
            raise waiting_error(what, problems, now - begun)
        if grace_s is not None and unknown_since and now >= unknown_since + grace_s:
            advice = (
                "Check its name, or wait longer with init_timeout_s=... or wait_for_model(...)."
            )
            raise waiting_error(what, problems, now - begun, advice)
        yield Pause(min(pause_s, begun + timeout_s - now))
        pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)


def _give_up_if_hopeless(what: str, problems: list[Problem], timeout_s: float) -> None:
    if all(problem.kind in _HOPELESS for _, problem in problems):
        url, problem = problems[0]
        raise call_error(problem, url, f"waiting for {what}", timeout_s)


def read_config(servers: Servers, timeout_s: float) -> Steps[TritonModelConfig]:
    """Read the model's configuration from the first server that tells it.

    Raises:
        PyTritonClientTimeoutError, PyTritonClientInferenceServerError, PyTritonClientTlsError:
            none does
        PyTritonClientError: it cannot be understood
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
        document = document.get("config", document)  # gRPC's answer has it inside
        try:
            return TritonModelConfig.from_triton_config(document, int(servers.version or 1))
        except PyTritonModelConfigError as error:
            raise PyTritonClientError(
                f"The configuration of {servers.label} cannot be understood: {error}"
            ) from error
    raise AssertionError("a client has at least one server")
