"""The daemon's own client of tritonserver: asks whether it lives, loads and unloads models.

It goes over gRPC where that is served without TLS: a load takes one of the few threads of HTTP
(`http-thread-count`, 8) until the model is loaded, and clients whose connections that thread
serves wait as long; over gRPC a load keeps nobody waiting (both seen, Triton 2.51). Else over HTTP,
else over gRPC with TLS. It always shows the access token.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.access import access_headers
from pytriton.dispatcher.server.endpoints import reachable
from pytriton.dispatcher.server.frontend import Refused, Unreached

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
    # A configuration, and the list of a thousand models, have any size.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
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

    async def version(self) -> str:
        """Return the version of Triton's core."""
        metadata = await self._ask(lambda client: client.get_server_metadata(headers=self._headers))
        return str(metadata["version"])

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
        states: dict[str, str] = {}
        for version in index:
            if states.get(version["name"], "") in ("", "UNAVAILABLE"):
                states[version["name"]] = version.get("state", "")
        return states

    async def close(self) -> None:
        """Close the connection; questions under way raise Unreached."""
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> Any:
        """Return the client, for HTTP tritonclient's; it connects when it is first asked, but for TLS."""
        url = f"{self._host}:{self._port}"
        if self._client is None and not self._over_grpc:
            module = importlib.import_module("tritonclient.http.aio")
            self._client = module.InferenceServerClient(url)
        elif self._client is None:
            credentials: Any = None
            options: list[tuple[str, Any]] = []
            if self._tls:
                credentials, options = await grpc_tls.channel(self._config, self._host, self._port)
            self._client = _GrpcClient(url, credentials, [*_CHANNEL_OPTIONS, *options])
        return self._client

    async def _ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await a call of the client.

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
    """Turn what the client has raised, over HTTP an InferenceServerException, into Refused or Unreached."""
    if isinstance(error, (Refused, Unreached)):
        return error
    message, status = getattr(error, "message", None), getattr(error, "status", None)
    text = str(message()) if callable(message) else f"{type(error).__name__}: {error}"
    code = status() if callable(status) else None
    return Unreached(text) if code is None else Refused(text)


class _GrpcClient:
    """The calls over gRPC that the daemon makes, by the names and in the forms of tritonclient's client over HTTP.

    Their messages have few fields. tritonclient has classes for them, and imports numpy and its whole client besides:
    60 ms and 20 MB of each daemon's.
    """

    def __init__(self, url: str, credentials: Any, options: list[tuple[str, Any]]) -> None:
        self._grpc = importlib.import_module("grpc")  # which ships no types
        aio = importlib.import_module("grpc.aio")
        self._channel: Any = (
            aio.insecure_channel(url, options)
            if credentials is None
            else aio.secure_channel(url, credentials, options)
        )

    async def is_server_live(self, *, headers: Mapping[str, str]) -> bool:
        """ServerLiveResponse: live = 1."""
        return dict(_fields(await self._call("ServerLive", b"", headers))).get(1) == 1

    async def get_server_metadata(self, *, headers: Mapping[str, str]) -> dict[str, str]:
        """ServerMetadataResponse: version = 2."""
        fields = dict(_fields(await self._call("ServerMetadata", b"", headers)))
        version = fields.get(2, b"")
        return {"version": version.decode() if isinstance(version, bytes) else ""}

    async def load_model(
        self, name: str, *, headers: Mapping[str, str], config: str | None
    ) -> None:
        """RepositoryModelLoadRequest: model_name = 2, parameters = 3 (key = 1, value = 2: string_param = 3)."""
        request = _field(2, name.encode())
        if config is not None:
            value = _field(3, config.encode())
            request += _field(3, _field(1, b"config") + _field(2, value))
        await self._call("RepositoryModelLoad", request, headers)

    async def unload_model(self, name: str, *, headers: Mapping[str, str]) -> None:
        """RepositoryModelUnloadRequest: model_name = 2."""
        await self._call("RepositoryModelUnload", _field(2, name.encode()), headers)

    async def get_model_repository_index(
        self, *, headers: Mapping[str, str]
    ) -> list[dict[str, str]]:
        """RepositoryIndexResponse: models = 1 (name = 1, state = 3)."""
        answer = await self._call("RepositoryIndex", b"", headers)
        models = [dict(_fields(value)) for number, value in _fields(answer) if number == 1]
        return [
            {"name": model[1].decode(), "state": model.get(3, b"").decode()} for model in models
        ]

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, method: str, request: bytes, headers: Mapping[str, str]) -> bytes:
        """Raises Refused or Unreached."""
        call = self._channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        try:
            answer: bytes = await call(request, metadata=tuple(headers.items()))
            return answer
        except self._grpc.RpcError as error:
            ended = (self._grpc.StatusCode.UNAVAILABLE, self._grpc.StatusCode.CANCELLED)
            kind = Unreached if error.code() in ended else Refused
            raise kind(str(error.details())) from error


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes in protobuf's form."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + data


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield numbers and values of a message's fields: bytes, or an integer.

    Raises:
        ValueError: it is not in protobuf's form, or has fields of other kinds.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message):
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value
        raise ValueError("a message of tritonserver's ends within a number")

    while at < len(message):
        number, kind = divmod(varint(), 8)
        value = varint()
        if kind == 0:
            yield number, value
            continue
        if kind != 2 or at + value > len(message):
            raise ValueError(f"field {number} of a message of tritonserver's cannot be read")
        at += value
        yield number, message[at - value : at]
