"""The daemon's own client of tritonserver: probes liveness, loads and unloads models.

It uses gRPC where that is served without TLS, because a load over HTTP occupies one of the few HTTP threads
(`http-thread-count`, 8) until the model is loaded and blocks the clients on that thread's connections; over gRPC a load
blocks no client (both observed with Triton 2.51). Otherwise it uses HTTP, or else gRPC with TLS. It always sends the
access token.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.access import access_headers
from pytriton.dispatcher.server.endpoints import reachable
from pytriton.dispatcher.server.frontend import ServerRefused, Unreached

#: Default number of tritonserver's HTTP threads (`http-thread-count`).
_HTTP_THREADS = 8


class AdminClient:
    """A connection to one tritonserver process; create and use it in a running event loop.

    All methods raise Refused if tritonserver answered with an error, or Unreached.
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
        self._pending: set[asyncio.Future[Any]] = set()
        threads = int(str(config.tritonserver_options.get("http-thread-count", _HTTP_THREADS)))
        # Over HTTP, leave half of the threads to clients' requests.
        self._loads = asyncio.Semaphore(1_000_000 if self._over_grpc else max(1, threads // 2))

    async def is_live(self) -> bool:
        """Probe liveness."""
        return bool(await self._ask(lambda client: client.is_server_live(headers=self._headers)))

    async def version(self) -> str:
        """Return the version of Triton's core."""
        metadata = await self._ask(lambda client: client.get_server_metadata(headers=self._headers))
        return str(metadata["version"])

    async def load(self, name: str, config: str | None) -> None:
        """Load a model with a configuration (JSON), or with its own if None."""
        async with self._loads:
            await self._ask(
                lambda client: client.load_model(name, headers=self._headers, config=config)
            )

    async def unload(self, name: str) -> None:
        """Start to unload a model."""
        await self._ask(lambda client: client.unload_model(name, headers=self._headers))

    async def repository_states(self) -> dict[str, str]:
        """Return the models in all repositories with their states.

        The state of a model that was never loaded is "". A version that is loaded or loading takes precedence over
        unavailable ones.
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
        """Close the connection. Pending requests raise Unreached."""
        for task in self._pending:
            task.cancel()
        if self._client is not None:
            await self._client.close()

    def _connected(self) -> Any:
        """Return the client (tritonclient's for HTTP). It connects on the first request."""
        if self._client is None and self._over_grpc:
            tls = grpc_tls.client_context(self._config) if self._tls else None
            self._client = _GrpcClient(self._host.strip("[]"), self._port, tls)
        elif self._client is None:
            module = importlib.import_module("tritonclient.http.aio")
            self._client = module.InferenceServerClient(f"{self._host}:{self._port}")
        return self._client

    async def _ask(self, question: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Await a call of the client and convert its exceptions; `close` ends it."""
        task = asyncio.ensure_future(question(self._connected()))
        self._pending.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._pending.discard(task)
            task.cancel()
        if task.cancelled():
            raise Unreached("the connection was closed, because tritonserver has ended")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, (ServerRefused, Unreached)):
            raise error
        message, status = getattr(error, "message", None), getattr(error, "status", None)
        text = str(message()) if callable(message) else f"{type(error).__name__}: {error}"
        code = status() if callable(status) else None  # of an InferenceServerException
        raise (Unreached if code is None else ServerRefused)(text) from error


class _GrpcClient:
    """The gRPC calls that the daemon makes, with the interface of tritonclient's HTTP client.

    It uses grpclib, which runs in the event loop: grpcio starts threads of its own and aborts the process when none can
    be had, so a daemon at its task limit would die of a question to tritonserver. The messages have few fields, so they
    are encoded by hand; tritonclient's classes would import grpcio.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._grpclib = importlib.import_module("grpclib")  # imported only for NVIDIA's frontend
        client = importlib.import_module("grpclib.client")
        self._unary = client.UnaryUnaryMethod
        self._channel: Any = client.Channel(host, port, ssl=tls, codec=_Bytes())

    async def is_server_live(self, *, headers: Mapping[str, str]) -> bool:
        """Send ServerLive. ServerLiveResponse: live = 1."""
        return dict(_fields(await self._call("ServerLive", b"", headers))).get(1) == 1

    async def get_server_metadata(self, *, headers: Mapping[str, str]) -> dict[str, str]:
        """Send ServerMetadata. ServerMetadataResponse: version = 2."""
        fields = dict(_fields(await self._call("ServerMetadata", b"", headers)))
        version = fields.get(2, b"")
        return {"version": version.decode() if isinstance(version, bytes) else ""}

    async def load_model(
        self, name: str, *, headers: Mapping[str, str], config: str | None
    ) -> None:
        """Send RepositoryModelLoad: model_name = 2, parameters = 3 (key = 1, value = 2: string_param = 3)."""
        request = _field(2, name.encode())
        if config is not None:
            value = _field(3, config.encode())
            request += _field(3, _field(1, b"config") + _field(2, value))
        await self._call("RepositoryModelLoad", request, headers)

    async def unload_model(self, name: str, *, headers: Mapping[str, str]) -> None:
        """Send RepositoryModelUnload: model_name = 2."""
        await self._call("RepositoryModelUnload", _field(2, name.encode()), headers)

    async def get_model_repository_index(
        self, *, headers: Mapping[str, str]
    ) -> list[dict[str, str]]:
        """Send RepositoryIndex. RepositoryIndexResponse: models = 1 (name = 1, state = 3)."""
        answer = await self._call("RepositoryIndex", b"", headers)
        models = [dict(_fields(value)) for number, value in _fields(answer) if number == 1]
        return [
            {"name": model[1].decode(), "state": model.get(3, b"").decode()} for model in models
        ]

    async def close(self) -> None:
        self._channel.close()

    async def _call(self, method: str, request: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the encoded response; raises Refused or Unreached."""
        path = f"/inference.GRPCInferenceService/{method}"
        call = self._unary(self._channel, path, bytes, bytes)
        try:
            answer: bytes = await call(request, metadata=headers)
            return answer
        except self._grpclib.GRPCError as error:
            ended = (self._grpclib.Status.UNAVAILABLE, self._grpclib.Status.CANCELLED)
            raise (Unreached if error.status in ended else ServerRefused)(
                str(error.message)
            ) from error


class _Bytes:
    """grpclib's codec for messages that are encoded already."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type) -> bytes:
        return message

    def decode(self, data: bytes, message_type: type) -> bytes:
        return data


def _field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + data


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value (bytes or an integer) of each field of a protobuf message.

    Raises:
        ValueError: the message is malformed or has fields of other wire types.
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
        raise ValueError("a message from tritonserver ends within a number")

    while at < len(message):
        number, kind = divmod(varint(), 8)
        value = varint()
        if kind == 0:
            yield number, value
            continue
        if kind != 2 or at + value > len(message):
            raise ValueError(f"field {number} of a message from tritonserver cannot be read")
        at += value
        yield number, message[at - value : at]
