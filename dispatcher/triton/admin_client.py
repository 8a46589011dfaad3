"""The daemon's own client of tritonserver: asks whether it lives, loads and unloads models.

It goes over gRPC where that is served without TLS: a load takes one of the few threads of HTTP
(`http-thread-count`, 8) until the model is loaded, and clients whose connections that thread
serves wait as long; over gRPC a load keeps nobody waiting (both seen, Triton 2.51). Else over HTTP,
else over gRPC with TLS. It always shows the access token.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

from pytriton.dispatcher.settings import grpc_tls
from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton.endpoints import reachable
from pytriton.dispatcher.triton.front import Refused, Unreached
from pytriton.ipc.access import access_headers

#: Threads that tritonserver answers HTTP with, unless `http-thread-count` says otherwise.
_HTTP_THREADS = 8
_CHANNEL_OPTIONS = (
    # tritonserver is started a moment ago: look again soon.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    # A connection of this client's own, so that another one is another connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # it is on this machine, whatever $http_proxy says
)


class AdminClient:
    """A connection to one tritonserver process; to be made and used in a running event loop.

    All of its questions raise Refused, when tritonserver has answered with an error, or Unreached.
    """

    def __init__(self, config: DaemonConfig, http_port: int, grpc_port: int) -> None:
        self._config = config
        self._tls = grpc_tls.uses_tls(config)
        self._over_grpc = config.allow_grpc and not (config.allow_http and self._tls)
        address = config.grpc_address if self._over_grpc else config.http_address
        self._host = reachable(address)
        self._port = grpc_port if self._over_grpc else http_port
        self._headers = access_headers(config.access_token, grpc=self._over_grpc)
        self._client: Any = None
        threads = int(str(config.tritonserver_options.get("http-thread-count", _HTTP_THREADS)))
        # Over HTTP leave half of the threads to those who have requests.
        self._loads = asyncio.Semaphore(1_000_000 if self._over_grpc else max(1, threads // 2))

    async def is_live(self) -> bool:
        """Ask whether the server lives."""
        return bool(await self._ask(lambda client: client.is_server_live(headers=self._headers)))

    async def load(self, name: str, config: str | None) -> None:
        """Load a model with a configuration (JSON; None: its own)."""
        async with self._loads:
            await self._ask(
                lambda client: client.load_model(name, headers=self._headers, config=config)
            )

    async def unload(self, name: str) -> None:
        """Begin to unload a model."""
        await self._ask(lambda client: client.unload_model(name, headers=self._headers))

    async def repository_states(self) -> dict[str, str]:
        """Return the models in all repositories with their states.

        Of a model that was never loaded the state is empty. Versions that are left behind do not hide one that is not.
        """
        index = await self._ask(
            lambda client: client.get_model_repository_index(headers=self._headers)
        )
        versions = (
            [(model.name, model.state) for model in index.models]
            if self._over_grpc
            else [(model["name"], model.get("state", "")) for model in index]
        )
        states: dict[str, str] = {}
        for name, state in versions:
            if states.get(name, "") in ("", "UNAVAILABLE"):
                states[name] = state
        return states

    async def close(self) -> None:
        """Close the connection; questions under way raise Unreached."""
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> Any:
        """Return tritonclient's client; it connects when it is first asked, but for TLS."""
        url = f"{self._host}:{self._port}"
        if self._client is None and not self._over_grpc:
            module = importlib.import_module("tritonclient.http.aio")
            self._client = module.InferenceServerClient(url)
        elif self._client is None:
            credentials: Any = None
            options: list[tuple[str, Any]] = []
            if self._tls:
                credentials, options = await grpc_tls.channel(self._config, self._host, self._port)
            module = importlib.import_module("tritonclient.grpc.aio")
            self._client = module.InferenceServerClient(
                url, creds=credentials, channel_args=[*_CHANNEL_OPTIONS, *options]
            )
        return self._client

    async def _ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await a call of tritonclient.

        A channel of grpc.aio that is closed answers its calls with CancelledError, as if our task had
        been cancelled: whoever awaits that ends without a word.
        """

        async def answer() -> Any:
            return await question(await self._connected())

        task = asyncio.ensure_future(answer())
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            raise Unreached("the connection was closed, because tritonserver has ended")
        error = task.exception()
        if error is not None:
            raise _told(error) from error
        return task.result()


def _told(error: BaseException) -> Refused | Unreached:
    """Turn an InferenceServerException, or an error of its transport, into Refused or Unreached."""
    message, status = getattr(error, "message", None), getattr(error, "status", None)
    text = str(message()) if callable(message) else f"{type(error).__name__}: {error}"
    code = status() if callable(status) else None
    if code in (None, "StatusCode.UNAVAILABLE", "StatusCode.CANCELLED"):
        return Unreached(text)
    return Refused(text)
