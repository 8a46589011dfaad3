"""The frontend for NVIDIA's executable, tritonserver. The daemon administers it over its public ports."""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._host.install.server_runtime import CLIENT_SHM
from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import REPOSITORY_POLL, Options
from pytriton._protocol.parameters import access_headers
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.server import admin_token, cloud_frontends, own_repository
from pytriton.dispatcher.server.endpoints import Endpoint, Endpoints, reachable
from pytriton.dispatcher.server.frontend import (
    ClientWork,
    ServerPlace,
    ServerRefused,
    Unreached,
    environment,
    privately,
)
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.preload_layout import Gate


class TritonFrontend:
    """Frontend for NVIDIA's executable; see `Frontend` for the methods."""

    replaces = queues_requests = False
    vertex_needs_model = True
    http_socket = None

    def __init__(self, config: DaemonConfig, place: ServerPlace) -> None:
        self._config = config
        self._place = place
        self.program = place.runtime.tree.program
        self.endpoints = Endpoints(config)

    def choose_ports(self) -> None:
        """Choose the ports for the next process. Raises PortError."""
        self.endpoints.choose_ports()

    def make_gate(self, backend: str) -> Gate:
        """Return a gate made of a model that cannot be loaded while the gate is closed."""
        return Gate(self._place.models, backend)

    async def start(
        self, preload: Sequence[str], *, vertex: bool, as_successor: bool = False
    ) -> Child:
        """Start a process that listens on the chosen ports."""
        place = self._place
        arguments = tritonserver_arguments(
            self._config, place, self.endpoints.served, preload, vertex=vertex
        )
        return await Child.start(
            privately([str(self.program), *arguments]),
            env=environment(place),
            # The sys.path of Python stubs starts with "": elsewhere, they would import a user's numpy.py.
            cwd=str(place.backends / BACKEND),
            on_line=self._log_line,
            kill_on_death=place.kill_on_death,
            # Files in /dev/shm and in the cache are private to this user.
            umask=0o077,
        )

    async def forget_pending(self, name: str) -> None:
        """Do nothing: no request waits for a model."""

    async def set_routes(self, document: dict[str, Any]) -> None:
        """Do nothing but warn: NVIDIA's frontend serves only Triton's protocols."""
        if document["routes"]:
            _log.warning(
                "not serving the HTTP routes of typed functions",
                reason="NVIDIA's frontend serves only Triton's protocols",
                fix="set frontend to native",
            )

    async def switch_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Raise ServerRefused: a process cannot be replaced (see `replaces`)."""
        raise ServerRefused("tritonserver cannot hand over its connections")

    async def work(self, pid: int) -> ClientWork:
        """Raise ServerRefused: NVIDIA's frontends do not report their work in progress."""
        raise ServerRefused("tritonserver does not report its requests in progress")

    async def stop_accepting(self) -> None:
        """Do nothing: NVIDIA's frontends accept connections until they exit."""

    def use(self, config: DaemonConfig) -> None:
        """Use new settings for the next process."""
        self._config = config

    def forget(self, pid: int) -> None:
        """Do nothing: only one process runs at a time, and `TritonServer` removes its shared memory."""

    def connect(self, pid: int) -> AdminClient:
        """Return a connection to the process, over HTTP or gRPC."""
        return AdminClient(self._config, self.endpoints.port("http"), self.endpoints.port("grpc"))

    async def check_listening(self) -> None:
        """Check that every port accepts connections, since the ports open one after another. Raises OSError."""
        for one in self.endpoints.served:
            address = reachable(one.address).strip("[]")
            _, writer = await asyncio.open_connection(address, one.port)
            writer.close()

    def hide_secrets(self, pid: int) -> None:
        """Overwrite the access token in the arguments of the process."""
        admin_token.blank_out(pid, self._config.access_token)

    def close(self) -> None:
        """Do nothing: tritonserver opens its own sockets."""

    def _log_line(self, pid: int, line: bytes) -> None:
        token = self._config.access_token
        self._place.on_line(pid, line if token is None else line.replace(token.encode(), b"***"))


# ── tritonserver's command line: options of Triton's core, of its frontends, and the user's own ──

_log = structlog.get_logger(__name__)

#: With this option, Triton's core retries a failed load immediately and forever: the load request is never answered,
#: the server cannot exit, and the log fills up. The daemon reports the failure instead.
_RETRIES = "model-load-retry-count"
#: Options that are not passed on. With "exit-on-error", a model that fails to load would end the server. The daemon
#: polls model repositories itself.
_NOT_PASSED_ON = frozenset({"exit-on-error", _RETRIES, REPOSITORY_POLL})
#: Backends whose models have a complete configuration, which Triton does not auto-complete.
_COMPLETE = frozenset({BACKEND, NATIVE_BACKEND, "python"})


def tritonserver_arguments(
    config: DaemonConfig,
    place: ServerPlace,
    endpoints: Iterable[Endpoint],
    preload: Sequence[str],
    *,
    vertex: bool,
) -> list[str]:
    """Return the command-line arguments of NVIDIA's executable.

    Args:
        config: the daemon's settings; `tritonserver_options` override our options or are added to them
        place: directories and callbacks
        endpoints: endpoints to serve, with the chosen ports
        preload: names of models to load before the ports open
        vertex: whether the frontend for Vertex AI may start if the options enable it
    """
    options = core_options(config, place, preload)
    options.update(_frontend_options(config, endpoints))
    if CLIENT_SHM in place.runtime.options:
        options[CLIENT_SHM] = "true" if config.allow_client_shm else "false"
    no_vertex = cloud_frontends.vertex_model(config.tritonserver_options) is not None and not vertex
    if no_vertex:
        options["allow-vertex-ai"] = "false"  # on Vertex AI ($AIP_MODE), the default is true
    merge(
        options,
        {
            name: value
            for name, value in users_options(config).items()
            if not (no_vertex and "vertex-ai" in name)
        },
    )
    return [
        f"--{name}={value}" if value else f"--{name}"
        for name, values in options.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def users_options(config: DaemonConfig) -> Options:
    """Return the `tritonserver_options` to pass on to tritonserver."""
    options = config.tritonserver_options
    if str(options.get(_RETRIES, "0")) != "0":
        _log.warning(
            "option not passed on to tritonserver: the daemon handles failed loads", option=_RETRIES
        )
    return {name: value for name, value in options.items() if name not in _NOT_PASSED_ON}


def merge(options: Options, users: Options) -> None:
    """Add the user's options to `options`. They take precedence; repeatable ones are appended."""
    for name, value in users.items():
        former = options.get(name)
        added = value if isinstance(value, list) else [value]
        options[name] = [*former, *added] if isinstance(former, list) else value


def core_options(config: DaemonConfig, place: ServerPlace, preload: Sequence[str]) -> Options:
    """Return the options of Triton's core by their command-line names; see `tritonserver_arguments`."""
    options: Options = {
        "model-repository": [
            str(place.models),
            *own_repository.cloud_repositories(config.model_repository),
        ],
        "model-control-mode": "explicit",
        "backend-directory": str(place.backends),
        "backend-config": [f"python,shm-region-prefix-name={place.shm_prefix}"],
        "exit-timeout-secs": str(max(1, round(config.grace_period_s))),
    }
    # Configurations of registered models are complete. Auto-completion would start each Python stub twice.
    if not config.model_repository or _COMPLETE.issuperset(os.listdir(place.backends)):
        options["disable-auto-complete-config"] = ""
    if preload:
        options["load-model"] = list(preload)
        # Otherwise tritonserver would exit if a model cannot be loaded, such as the gate.
        options["exit-on-error"] = "false"
    caches = place.runtime.tree.caches
    if caches is not None:
        options["cache-directory"] = str(caches)
    return options


def _frontend_options(config: DaemonConfig, endpoints: Iterable[Endpoint]) -> Options:
    """Return the options of NVIDIA's frontends: their addresses, and the endpoints that require the access token."""
    options: Options = {f"allow-{name}": "false" for name in ("http", "grpc", "metrics")}
    for name, address, port in endpoints:
        options[f"allow-{name}"] = "true"
        options[f"{name}-address"] = address
        options[f"{name}-port"] = str(port)
    options.update(admin_token.restrictions(config))
    return options


# ── Administration of a process over HTTP or gRPC: liveness probes, loading and unloading of models ──

#: Default number of tritonserver's HTTP threads (`http-thread-count`).
_HTTP_THREADS = 8


class AdminClient:
    """Connection to a tritonserver process, for use in a running event loop.

    All methods raise ServerRefused if tritonserver answers with an error, or Unreached if it does not answer.
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
        # Leave half of tritonserver's HTTP threads to clients.
        self._loads = asyncio.Semaphore(1_000_000 if self._over_grpc else max(1, threads // 2))

    async def is_live(self) -> bool:
        """Probe liveness; return whether tritonserver reports that it is live."""
        return bool(await self._ask(lambda client: client.is_server_live(headers=self._headers)))

    async def version(self) -> str:
        """Return the version of Triton's core."""
        metadata = await self._ask(lambda client: client.get_server_metadata(headers=self._headers))
        return str(metadata["version"])

    async def load(self, name: str, config: str | None) -> None:
        """Load a model. `config` is its configuration in JSON; None for the one in its directory."""
        async with self._loads:
            await self._ask(
                lambda client: client.load_model(name, headers=self._headers, config=config)
            )

    async def unload(self, name: str) -> None:
        """Start unloading a model, without waiting until it is unloaded."""
        await self._ask(lambda client: client.unload_model(name, headers=self._headers))

    async def repository_states(self) -> dict[str, str]:
        """Return the state of each model in all repositories, by name; "" for a model that was never loaded.

        The state of a version that is loaded or loading takes precedence over that of unavailable versions.
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
        """Return the client. It connects when it sends its first request. For HTTP, this is tritonclient's client."""
        if self._client is None and self._over_grpc:
            tls = grpc_tls.client_context(self._config) if self._tls else None
            self._client = _GrpcClient(self._host.strip("[]"), self._port, tls)
        elif self._client is None:
            module = importlib.import_module("tritonclient.http.aio")
            # Loading a model may take hours. `conn_timeout` limits whole requests, and is a minute by default.
            self._client = module.InferenceServerClient(
                f"{self._host}:{self._port}", conn_timeout=None
            )
        return self._client

    async def _ask(self, call: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Await a coroutine of the client, and convert its exceptions. `close` cancels the call."""
        task = asyncio.ensure_future(call(self._connected()))
        self._pending.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._pending.discard(task)
            task.cancel()
        if task.cancelled():
            raise Unreached("the connection was closed, because tritonserver has exited")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, (ServerRefused, Unreached)):
            raise error
        message, status = getattr(error, "message", None), getattr(error, "status", None)
        text = str(message()) if callable(message) else f"{type(error).__name__}: {error}"
        code = status() if callable(status) else None  # the message of an InferenceServerException
        raise (Unreached if code is None else ServerRefused)(text) from error


class _GrpcClient:
    """gRPC client with the interface of tritonclient's HTTP client, limited to the calls that the daemon makes.

    It uses grpclib, which runs in the event loop. grpcio starts its own threads, and aborts the process if it cannot.
    That would kill a daemon that has reached its task limit. The few fields are encoded here, because tritonclient's
    message classes import grpcio.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._grpclib = importlib.import_module("grpclib")  # imported only for NVIDIA's frontend
        client = importlib.import_module("grpclib.client")
        self._unary = client.UnaryUnaryMethod
        self._channel: Any = client.Channel(host, port, ssl=tls, codec=_Bytes())

    async def is_server_live(self, *, headers: Mapping[str, str]) -> bool:
        """Send ServerLive; return field 1 (live) of the response."""
        return dict(_fields(await self._call("ServerLive", b"", headers))).get(1) == 1

    async def get_server_metadata(self, *, headers: Mapping[str, str]) -> dict[str, str]:
        """Send ServerMetadata; return field 2 (version) of the response."""
        fields = dict(_fields(await self._call("ServerMetadata", b"", headers)))
        version = fields.get(2, b"")
        return {"version": version.decode() if isinstance(version, bytes) else ""}

    async def load_model(
        self, name: str, *, headers: Mapping[str, str], config: str | None
    ) -> None:
        """Send RepositoryModelLoad, whose fields are model_name = 2 and parameters = 3 (key = 1, value = 2:
        string_param = 3).
        """
        request = _field(2, name.encode())
        if config is not None:
            value = _field(3, config.encode())
            request += _field(3, _field(1, b"config") + _field(2, value))
        await self._call("RepositoryModelLoad", request, headers)

    async def unload_model(self, name: str, *, headers: Mapping[str, str]) -> None:
        """Send RepositoryModelUnload, whose field is model_name = 2."""
        await self._call("RepositoryModelUnload", _field(2, name.encode()), headers)

    async def get_model_repository_index(
        self, *, headers: Mapping[str, str]
    ) -> list[dict[str, str]]:
        """Send RepositoryIndex; return field 1 (models, with name = 1 and state = 3) of the response."""
        answer = await self._call("RepositoryIndex", b"", headers)
        models = [dict(_fields(value)) for number, value in _fields(answer) if number == 1]
        return [
            {"name": model[1].decode(), "state": model.get(3, b"").decode()} for model in models
        ]

    async def close(self) -> None:
        self._channel.close()

    async def _call(self, method: str, request: bytes, headers: Mapping[str, str]) -> bytes:
        """Send an encoded request, and return the encoded response. Raises ServerRefused or Unreached."""
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
    """Codec for grpclib that passes encoded messages through."""

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
    """Yield the number and value (bytes or int) of each field of a protobuf message.

    Raises:
        ValueError: the message is malformed or has a field of another wire type
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
        raise ValueError("truncated number in a message from tritonserver")

    while at < len(message):
        number, kind = divmod(varint(), 8)
        value = varint()
        if kind == 0:
            yield number, value
            continue
        if kind != 2 or at + value > len(message):
            raise ValueError(f"cannot decode field {number} of a message from tritonserver")
        at += value
        yield number, message[at - value : at]
