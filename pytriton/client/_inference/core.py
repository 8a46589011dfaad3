"""`Core`: the servers, the model's configuration and the steps of each operation, common to all clients."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytriton._protocol.arguments import plain
from pytriton.client._inference.request import InferCall
from pytriton.client._inference.tensor_conversion import (
    Outputs,
    decode,
    encode,
    named_inputs,
    require_inputs,
    restore,
)
from pytriton.client._transport.connections import ServerConnection
from pytriton.client._transport.failures import (
    NOT_BEGUN,
    SERVER_ERROR,
    CallFailed,
    FailureKind,
    call_error,
    describe,
)
from pytriton.client._transport.servers import (
    MAX_CALL_S,
    Servers,
    TritonEndpoint,
    read_config,
    wait_for_model,
)
from pytriton.client._transport.steps import CallStep, Steps
from pytriton.client._transport.url import TritonUrl, Urls, parse_urls
from pytriton.client.auth import create_auth_headers
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientValueError,
)
from pytriton.client.options import as_metadata
from pytriton.client.tls import TlsOptions
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["ClientSettings", "Core", "Prepared"]

DEFAULT_INIT_TIMEOUT_S = 300.0
DEFAULT_INFERENCE_TIMEOUT_S = 60.0
#: Default maximum wait for a model that a running server does not know.
UNKNOWN_MODEL_GRACE_S = 10.0
#: Timeout of the readiness check of a server that has failed. An inference waits for this check.
_COMEBACK_S = 2.0


@dataclass(frozen=True)
class ClientSettings:
    """The arguments of a client, validated; `ModelClient` describes them."""

    url: Urls
    model_name: str
    model_version: str | int | None = None
    lazy_init: bool = True
    init_timeout_s: float | None = None
    inference_timeout_s: float | None = None
    model_config: TritonModelConfig | None = None
    ensure_model_is_ready: bool = True
    access_token: str | None = None
    tls: TlsOptions | None = None
    urls: tuple[TritonUrl, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", parse_urls(self.url))
        if not isinstance(self.model_name, str) or not self.model_name:
            raise PyTritonClientValueError(
                f"model_name must be the name of a model, got {self.model_name!r}."
            )
        version = self.model_version
        if version is not None and not (str(version).isdecimal() and int(version) > 0):
            raise PyTritonClientValueError(
                f"model_version must be a positive integer, or None for the latest; got {version!r}."
            )
        for name in ("init_timeout_s", "inference_timeout_s"):
            object.__setattr__(self, name, plain(getattr(self, name)))
            require_timeout(name, getattr(self, name))
        if self.tls is not None and not self.urls[0].is_secure:
            raise PyTritonClientValueError(
                f"tls= requires a url with https:// or grpcs://, got {self.urls[0].with_scheme}."
            )

    @property
    def version(self) -> str:
        """The version in tritonclient's form: "" is the latest."""
        return "" if self.model_version is None else str(self.model_version)

    @property
    def patience_s(self) -> float:
        """Maximum wait for the server and the model, in seconds."""
        if self.init_timeout_s is None:
            return DEFAULT_INIT_TIMEOUT_S
        return min(self.init_timeout_s, MAX_CALL_S)

    @property
    def deadline_s(self) -> float:
        """Maximum duration of one inference, in seconds."""
        if self.inference_timeout_s is None:
            return DEFAULT_INFERENCE_TIMEOUT_S
        return min(self.inference_timeout_s, MAX_CALL_S)


def require_timeout(name: str, seconds: float | None) -> None:
    """Raise `PyTritonClientValueError` unless the timeout is a number of seconds above 0, or None."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise PyTritonClientValueError(
            f"{name} must be a number of seconds above 0, or None; got {seconds!r}."
        )


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to be sent to any of the servers."""

    config: TritonModelConfig
    arguments: dict[str, Any]
    headers: dict[str, str]
    sample: bool


class Core:
    """State of one client, and the steps of its operations, which a blocking or an asyncio client runs.

    Args:
        owner: name of the client's class, for error messages
        settings: the client's arguments
        connect: function that creates the connection to a server
        decoupled: whether the client is for decoupled models
        server_error: prefix of error messages from the server
    """

    def __init__(
        self,
        owner: str,
        settings: ClientSettings,
        connect: Callable[[TritonUrl, TlsOptions | None], ServerConnection],
        *,
        decoupled: bool = False,
        server_error: str = SERVER_ERROR,
    ) -> None:
        self.settings = settings
        self.config = settings.model_config
        self.closed = False
        self._owner = owner
        self._decoupled = decoupled
        self._server_error = server_error
        self._ready = not settings.ensure_model_is_ready
        #: Set if the model may have been replaced since its configuration was read.
        self._stale = False
        self._ids = itertools.count()
        self._token_headers: dict[str, str] = {}
        if settings.access_token is not None:
            protocol = "grpc" if settings.urls[0].is_grpc else "http"
            self._token_headers = create_auth_headers(settings.access_token, protocol)
        self.servers = Servers(
            [TritonEndpoint(connect(url, settings.tls)) for url in settings.urls],
            settings.model_name,
            settings.version,
            self._token_headers,
        )

    @property
    def initialised(self) -> bool:
        """True if the model was ready before and its configuration is known."""
        return self._ready and self.config is not None and not self._stale

    @property
    def _is_closed(self) -> str:
        return f"{self._owner} is closed"

    def require_open(self) -> None:
        """Raise `PyTritonClientClosedError` if the client is closed."""
        if self.closed:
            raise PyTritonClientClosedError(self._is_closed)

    def initialise(self) -> Steps[TritonModelConfig]:
        """Wait up to `init_timeout_s` for the model, unless it was ready before, and read its configuration."""
        settings = self.settings
        if not self._ready:
            grace_s = UNKNOWN_MODEL_GRACE_S if settings.init_timeout_s is None else None
            yield from wait_for_model(self.servers, settings.patience_s, grace_s)
            self._ready = True
        if self.config is None or self._stale:
            self.config = yield from read_config(self.servers, settings.patience_s)
            self._stale = False
        return self.config

    def wait_for_model(self, timeout_s: float) -> Steps[None]:
        """Wait for the model, even if it was ready before."""
        yield from wait_for_model(self.servers, timeout_s, None)
        self._ready = True

    def load(
        self, config: str | Mapping[str, Any] | None, files: Mapping[str, Any] | None
    ) -> Steps[None]:
        """Load the model on every server."""
        text = config if config is None or isinstance(config, str) else json.dumps(config)
        arguments = {"config": text, "files": None if files is None else dict(files)}
        yield from self._on_all("load_model", "model load", arguments)

    def unload(self) -> Steps[None]:
        """Unload the model on every server."""
        yield from self._on_all("unload_model", "model unload", {})

    def _on_all(self, method: str, doing: str, arguments: dict[str, Any]) -> Steps[None]:
        self._ready = not self.settings.ensure_model_is_ready
        # The model may be replaced, so forget the configuration that was read.
        self.config = self.settings.model_config
        arguments = {"model_name": self.settings.model_name, **arguments}
        for server in self.servers:
            yield from self._call(server, method, doing, self.settings.patience_s, arguments)

    def _call(
        self,
        server: TritonEndpoint,
        method: str,
        doing: str,
        timeout_s: float,
        arguments: dict[str, Any],
    ) -> Steps[Any]:
        try:
            return (
                yield CallStep(server.connection, method, timeout_s, arguments, self._token_headers)
            )
        except CallFailed as failure:
            raise call_error(failure, server.url, doing, timeout_s) from failure

    def prepared(self, request: InferCall) -> Steps[Prepared]:
        """Validate a request.

        If it is invalid, reread the model's configuration, which may have changed, and validate again.

        Raises:
            PyTritonClientError, RuntimeError: see `prepare`
        """
        assert self.config is not None
        known = self.config
        try:
            return self.prepare(request)
        except (PyTritonClientError, RuntimeError):
            deadline = time.monotonic() + self.settings.deadline_s
            if not (yield from self._has_changed(known, deadline)):
                raise
        return self.prepare(request)

    def prepare(self, request: InferCall) -> Prepared:
        """Validate a request against the model's configuration, which must be cached, and convert it for tritonclient.

        Raises:
            PyTritonClientValueError: inputs are missing, or gRPC does not support a header
            PyTritonClientInferenceServerError: the model is decoupled but the client is not, or vice versa
            PyTritonClientValueError, PyTritonClientModelDoesntSupportBatchingError, RuntimeError:
                see `named_inputs`
        """
        config = self.config
        assert config is not None
        require_inputs(config, request.positional, request.named)
        self._check_coupling(config)
        arrays = named_inputs(config, request.positional, request.named, sample=request.sample)
        options, module = request.options, self.servers.module
        if options.sequence_id and len(self.servers) > 1:
            raise PyTritonClientValueError(
                "All requests of a sequence must reach the same server. Use a client with a single url."
            )
        wanted = options.requested_outputs
        arguments = {
            "model_name": self.settings.model_name,
            "model_version": self.settings.version,
            "inputs": encode(arrays, module),
            "outputs": wanted and [module.InferRequestedOutput(name) for name in wanted],
            "parameters": request.parameters,
            **options.as_arguments(str(next(self._ids))),
        }
        headers = request.headers
        if self.settings.urls[0].is_grpc:
            headers = as_metadata(headers)
        return Prepared(config, arguments, {**self._token_headers, **headers}, request.sample)

    def _check_coupling(self, config: TritonModelConfig) -> None:
        if config.decoupled == self._decoupled:
            return
        state, other = ("coupled", "") if self._decoupled else ("decoupled", "Decoupled")
        kind = "Asyncio" if self._owner.startswith("Asyncio") else ""
        raise PyTritonClientInferenceServerError(
            f"Model config is {state}. Use {kind}{other}ModelClient instead."
        )

    def infer(self, request: InferCall) -> Steps[Outputs]:
        """Send a request to the next server in turn. If it is unavailable, try the others.

        If the server rejects the request as unsuitable for the model, and the model's configuration has changed since
        it was read, the request is sent once more. A request rejected in this way has not reached the callable.
        """
        prepared = yield from self.prepared(request)
        deadline = time.monotonic() + self.settings.deadline_s
        for server, is_last in self.servers.in_turn():
            left_s = max(0.001, deadline - time.monotonic())
            try:
                if not server.ready:
                    yield from self.servers.check(server, min(left_s / 2, _COMEBACK_S))
                result = yield self._inference(server, prepared, deadline)
            except CallFailed as failure:
                if failure.kind in NOT_BEGUN or not server.ready:
                    self.servers.skip(server)
                    if not is_last:
                        continue
                if failure.kind is FailureKind.MISFIT and (
                    yield from self._has_changed(prepared.config, deadline)
                ):
                    return (yield from self._infer_again(server, request, deadline))
                raise self.inference_error(failure, server) from failure
            return self.finish(decode(result), prepared)
        raise AssertionError("a client needs at least one server")

    def _inference(self, server: TritonEndpoint, prepared: Prepared, deadline: float) -> CallStep:
        left_s = max(0.001, deadline - time.monotonic())
        return CallStep(server.connection, "infer", left_s, prepared.arguments, prepared.headers)

    def _has_changed(self, known: TritonModelConfig, deadline: float) -> Steps[bool]:
        """Reread the model's configuration and return whether it has changed."""
        if self.settings.model_config is not None:  # set by the user
            return False
        try:
            config = yield from read_config(self.servers, max(0.001, deadline - time.monotonic()))
        except PyTritonClientError:
            return False  # the original failure is more informative
        self.config = config
        return known != config

    def _infer_again(
        self, server: TritonEndpoint, request: InferCall, deadline: float
    ) -> Steps[Outputs]:
        prepared = self.prepare(request)
        try:
            result = yield self._inference(server, prepared, deadline)
        except CallFailed as failure:
            raise self.inference_error(failure, server) from failure
        return self.finish(decode(result), prepared)

    def stream_failed(self, error: Exception, server: TritonEndpoint) -> Exception:
        """Return the exception for a failed stream, and make the next request reread the model's configuration.

        Errors in a stream have no status code, so the model may have been replaced.
        """
        failure = describe(error)
        if failure is None:
            return error
        if failure.kind in (FailureKind.MISFIT, FailureKind.REFUSED):
            self._stale = self.settings.model_config is None
        return self.inference_error(failure, server)

    def choose(self) -> Steps[TritonEndpoint]:
        """Choose the server for a stream: with several servers, the next one in turn on which the model is ready."""
        for server, is_last in self.servers.in_turn():
            if len(self.servers) == 1:
                return server
            try:
                yield from self.servers.check(server, min(self.settings.deadline_s, _COMEBACK_S))
            except CallFailed as failure:
                self.servers.skip(server)
                if is_last:
                    raise self.inference_error(failure, server) from failure
            else:
                return server
        raise AssertionError("a client needs at least one server")

    def inference_error(self, failure: CallFailed, server: TritonEndpoint) -> Exception:
        """Return the exception for a failed inference; PyTritonClientClosedError if the client has been closed."""
        if self.closed:
            return PyTritonClientClosedError(self._is_closed)
        return call_error(
            failure,
            server.url,
            "inference request",
            self.settings.deadline_s,
            self._server_error,
        )

    def finish(self, outputs: Outputs, prepared: Prepared) -> Outputs:
        """Convert outputs to the shapes that the user expects."""
        return restore(outputs, prepared.config, sample=prepared.sample)
