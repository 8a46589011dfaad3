"""A runner's connections to tritonserver: one for threads, one for each event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, Protocol

from pytriton.client._transport.connections import ServerConnection, aconnect, connect
from pytriton.client._transport.failures import CallFailed, FailureKind, call_error
from pytriton.client._transport.url import TritonUrl
from pytriton.client.exceptions import PyTritonClientError
from pytriton.daemon import DaemonClient
from pytriton.exceptions import ModelNotFoundError, PyTritonDaemonError
from pytriton.runner.errors import RunnerArgumentError
from pytriton.runner.signature import Signature

__all__ = ["ConnectionProvider", "DaemonConnection"]

_NOT_SERVED = (FailureKind.UNKNOWN_MODEL, FailureKind.NOT_READY)


class ConnectionProvider(Protocol):
    """Provider of the connection to a daemon. It starts the daemon first if necessary."""

    def link(self) -> DaemonConnection:
        """Return the connection. May block while a daemon starts."""

    async def async_link(self) -> DaemonConnection:
        """Return the connection without blocking the event loop."""


class DaemonConnection:
    """Connections to a daemon's tritonserver over one protocol.

    Args:
        client: client of the daemon
        protocol: "grpc" or "http"
        timeout_s: timeout of a call, in seconds

    Raises:
        RunnerArgumentError: the daemon does not serve this protocol.
    """

    def __init__(self, client: DaemonClient, protocol: str, timeout_s: float) -> None:
        self.client = client
        self.timeout_s = timeout_s
        server = client.status().server
        url = server.grpc_url if protocol == "grpc" else server.http_url
        if not url:
            raise RunnerArgumentError(
                f"The daemon does not serve {protocol} (allow_{protocol} is off). Choose the "
                f"other tritonserver_type, or start the daemon with allow_{protocol} on"
            )
        self.url = TritonUrl.from_url(url)
        try:
            self.headers = client.access_headers(grpc=self.url.is_grpc)
        except PyTritonDaemonError:  # another user's daemon, which will reject restricted calls
            self.headers = {}
        self.sync = connect(self.url, None)
        self._by_loop: weakref.WeakKeyDictionary[Any, _LoopConnection] = weakref.WeakKeyDictionary()
        self._signatures: dict[tuple[str, str], Signature] = {}
        self._lock = threading.Lock()

    async def asynchronous(self) -> ServerConnection:
        """Return the connection for the running event loop. It is closed when the loop shuts down normally."""
        loop = asyncio.get_running_loop()
        with self._lock:
            opened = self._by_loop.get(loop)
        if opened is None:
            keeper = _open_connection(self.url)
            opened = _LoopConnection(await keeper.__anext__(), keeper)
            with self._lock:
                self._by_loop[loop] = opened
        return opened.connection

    def call(self, method: str, arguments: dict[str, Any], headers: dict[str, str]) -> Any:
        """Call a method of tritonclient's client and return its result.

        Raises:
            PyTritonClientError: the call timed out, or the server responded with an error.
        """
        try:
            return self.sync.call(method, self.timeout_s, arguments, {**self.headers, **headers})
        except CallFailed as failure:
            raise self.error(failure, method) from failure

    async def acall(self, method: str, arguments: dict[str, Any], headers: dict[str, str]) -> Any:
        """Call a method of tritonclient's asyncio client; see `call`."""
        try:
            connection = await self.asynchronous()
            return await connection.call(
                method, self.timeout_s, arguments, {**self.headers, **headers}
            )
        except CallFailed as failure:
            raise self.error(failure, method) from failure

    def infer(self, arguments: dict[str, Any], headers: dict[str, str]) -> Any:
        """Call a model. If the model is no longer served, the error says why.

        Raises:
            ModelNotFoundError, PyTritonClientError: see `signature` and `call`.
        """
        try:
            return self.call("infer", arguments, headers)
        except PyTritonClientError as error:
            raise self._explain(error, arguments["model_name"]) from error

    async def ainfer(self, arguments: dict[str, Any], headers: dict[str, str]) -> Any:
        """Like `infer`, but without blocking the event loop."""
        try:
            return await self.acall("infer", arguments, headers)
        except PyTritonClientError as error:
            name = arguments["model_name"]
            raise await asyncio.to_thread(self._explain, error, name) from error

    def error(self, failure: CallFailed, doing: str) -> PyTritonClientError:
        """Return the exception for a failed call. Discard cached signatures, which may be the cause."""
        if failure.kind in (
            FailureKind.REFUSED,
            FailureKind.MISFIT,
            FailureKind.UNKNOWN_MODEL,
            FailureKind.NOT_READY,
        ):
            self.forget()
        return call_error(failure, self.url.with_scheme, doing, self.timeout_s)

    def signature(self, model: str, version: str) -> Signature:
        """Return the inputs and outputs of a model. They are cached after the first query.

        Raises:
            ModelNotFoundError: the model is not served; the message gives the reason if the daemon knows it.
        """
        known = self._signatures.get((model, version))
        if known is None:
            try:
                answer = self.call("get_model_config", _config_of(model, version), {})
            except PyTritonClientError as error:
                raise self._explain(error, model) from error
            known = self._keep(answer, model, version)
        return known

    async def asignature(self, model: str, version: str) -> Signature:
        """Like `signature`, but without blocking the event loop."""
        known = self._signatures.get((model, version))
        if known is None:
            try:
                answer = await self.acall("get_model_config", _config_of(model, version), {})
            except PyTritonClientError as error:
                raise await asyncio.to_thread(self._explain, error, model) from error
            known = self._keep(answer, model, version)
        return known

    def forget(self) -> None:
        """Discard cached signatures."""
        self._signatures.clear()

    def close(self) -> None:
        """Close the connection for threads, and the connections of running event loops."""
        self.sync.close()
        with self._lock:
            by_loop, self._by_loop = dict(self._by_loop), weakref.WeakKeyDictionary()
        for loop, opened in by_loop.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(opened.keeper.aclose(), loop)

    def _keep(self, answer: Any, model: str, version: str) -> Signature:
        # gRPC wraps the configuration.
        signature = Signature(answer.get("config", answer))
        self._signatures[(model, version)] = signature
        return signature

    def _explain(self, error: PyTritonClientError, model: str) -> Exception:
        """Return a ModelNotFoundError with the daemon's reason if the model is not served, otherwise `error`."""
        cause = error.__cause__
        if not isinstance(cause, CallFailed) or cause.kind not in _NOT_SERVED:
            return error
        try:
            found = {one.name: one for one in self.client.repository()}
            served = [one.name for one in self.client.models()]
        except PyTritonDaemonError:
            return error
        there = found.get(model)
        if model in served if there is None else there.state == "ready":
            return error
        if there is not None:
            why = f": {there.reason}" if there.reason else ""
            return ModelNotFoundError(f"Model {model!r} is {there.state}{why}", model_name=model)
        names = ", ".join(sorted({*found, *served})) or "none"
        return ModelNotFoundError(f"There is no model {model!r}; models: {names}", model_name=model)


def _config_of(model: str, version: str) -> dict[str, Any]:
    return {"model_name": model, "model_version": version}


class _LoopConnection(NamedTuple):
    connection: ServerConnection
    keeper: AsyncGenerator[ServerConnection, None]


async def _open_connection(url: TritonUrl) -> AsyncGenerator[ServerConnection, None]:
    """Yield a connection, and close it when the generator is closed.

    Before an event loop ends, it closes the generators that were started in it (`shutdown_asyncgens`, called by
    `asyncio.run`). This is the only hook into the shutdown of a loop.
    """
    connection = aconnect(url, None)
    try:
        yield connection
    finally:
        await connection.close()
