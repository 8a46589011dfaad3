"""Requests from models and tritonserver's clients to load and unload repository models.

Models may load, unload and query others, as in Triton's python backend; clients use Triton's model-control API. Both
may load models of the daemon's repositories, and models whose files they send. A registered model belongs to its
registrant: others may query its readiness, but neither reload nor unload it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from pytriton._host.ports import listening_at
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: "No particular version", as written by `InferenceRequest`.
_ANY_VERSIONS = ("", "-1")

# For clients' requests, which arrive from proxy_backend/interposer/interposer.c:
_BACKLOG = 128
#: Maximum number of requests in progress or waiting: each occupies a thread of the server, and so do those it causes.
_MAX_REQUESTS = 24
_MAX_STRINGS = 2100
#: Maximum total size of one model's files.
_MAX_BYTES = 4 << 30
_NUMBER = struct.Struct("=Q")
_CREDENTIALS = struct.Struct("3i")
#: Error codes of Triton's API (TRITONSERVER_ErrorCode).
_INTERNAL = 1
_CODES = {
    ErrorKind.NOT_FOUND: 2,
    ErrorKind.INVALID: 3,
    ErrorKind.UNAVAILABLE: 4,
    ErrorKind.EXISTS: 6,
}


class ModelControl:
    """Executes models' requests to load, unload and query other models."""

    def __init__(self, served: ServedModels, repository: RepositoryModels) -> None:
        self._served = served
        self._repository = repository
        self._unloading: set[asyncio.Task[None]] = set()

    async def load(self, message: messages.LoadOther, payloads: Sequence[bytes]) -> None:
        """Load a model, and return once it is served. Do nothing for a registered model that is ready.

        Raises:
            RemoteFailure: the model does not exist, cannot be served, or is a registered one that must not change.
        """
        asker = self._served.worker(message.worker)[0].spec.name
        config = _read_config(message.name, message.config or None)
        files = _files_of(message, payloads)
        registered = _registered(message.name, self._served, self._repository)
        if registered is not None:
            self._refuse_changes(registered, changes=config is not None or bool(files))
            return
        _log.info("loading a model at another model's request", asker=asker, model=message.name)
        await self._repository.load(message.name, config, files)

    async def unload(self, message: messages.UnloadOther) -> None:
        """Start unloading a model. Do nothing if it is not loaded, as in tritonserver.

        Do not wait until it is unloaded, because its last batch may be waiting for the caller.

        Raises:
            RemoteFailure: the model is a registered one.
        """
        asker = self._served.worker(message.worker)[0].spec.name
        if _registered(message.name, self._served, self._repository) is not None:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {message.name!r} is registered, so other models cannot unload it: "
                f"use `pytriton-daemon unregister {message.name}`, or call unregister() in a client",
            )
        names = [message.name]
        if message.dependents:
            names += self._repository.records.parts(message.name)
        for name in names:
            if self._repository.records.serves(name):
                _log.info("unloading a model at another model's request", asker=asker, model=name)
                task = asyncio.get_running_loop().create_task(self._unload(name))
                self._unloading.add(task)
                task.add_done_callback(self._unloading.discard)
        await asyncio.sleep(0)  # let the tasks start, so that the models are no longer ready

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model is ready in this version. "" and "-1" stand for any version.

        Raises:
            RemoteFailure: the version is not a number.
        """
        if version not in _ANY_VERSIONS and not version.isdecimal():
            raise RemoteFailure(
                ErrorKind.INVALID, f"{version!r} is not a valid model version: it must be a number"
            )
        wanted = None if version in _ANY_VERSIONS else int(version)
        versions = self._repository.records.versions_in_tritonserver(name)
        if versions is not None:
            return wanted is None or not versions or wanted in versions
        for registration in self._served:
            spec = registration.spec
            if spec.name == name:
                versions = spec.versions or [spec.version]
                return registration.state in messages.SERVED_STATES and (
                    wanted is None or wanted in versions
                )
        return False

    def _refuse_changes(self, registered: Registration, *, changes: bool) -> None:
        name = registered.spec.name
        if changes:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is registered, so no other model can give it a configuration or files: "
                "unregister it first, or register it again with replace=True",
            )
        if registered.state not in messages.SERVED_STATES:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"model {name!r} is registered, but not ready ({registered.state}): `pytriton-daemon status` and "
                f"`pytriton-daemon logs {name}` show details",
            )

    async def _unload(self, name: str) -> None:
        try:
            await self._repository.unload(name)
        except RemoteFailure as failure:
            _log.error("could not unload a model", model=name, reason=failure.text)


def _files_of(message: messages.LoadOther, payloads: Sequence[bytes]) -> dict[str, bytes] | None:
    if len(payloads) != len(message.files):
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"load_model sent {len(message.files)} file names but the contents of {len(payloads)} files",
        )
    if message.files and not message.config:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"load_model({message.name!r}): files= requires config=, the model's whole configuration as JSON",
        )
    return dict(zip(message.files, payloads)) or None


class BadRequest(ValueError):
    """A message from tritonserver is not a valid request from the interposer."""


class ClientRequest(NamedTuple):
    """A request from a client of tritonserver.

    Attributes:
        action: "load" or "unload"
        model: name of the model
        dependents: also unload the steps that were loaded only for this ensemble
        config: the model's configuration as JSON; None for the one in its folder
        files: the complete content of the model's folder, by name ("file:1/model.onnx")
    """

    action: str
    model: str
    dependents: bool = False
    config: str | None = None
    files: Mapping[str, bytes] = {}


class ClientRequests:
    """Server of the socket to which tritonserver's processes forward clients' requests.

    Args:
        path: path of the socket
        server: the tritonserver whose processes may connect
        served: the registrations
        repository: the models of repositories

    Attributes:
        passed_on: signals each request that Triton's core carries out, including the daemon's own
    """

    def __init__(
        self, path: Path, server: TritonServer, served: ServedModels, repository: RepositoryModels
    ) -> None:
        self._path = path
        self._server = server
        self._served = served
        self._repository = repository
        self._listening: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.passed_on = ChangeSignal()

    async def start(self) -> None:
        """Start listening. Raises PortError."""
        listener = listening_at(self._path, backlog=_BACKLOG)
        # From Python 3.13 on, asyncio would look for the socket's file at the path that it was bound with. That path names a
        # descriptor, which by now may be another file.
        options: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._listening = await asyncio.start_unix_server(self._accept, sock=listener, **options)

    async def close(self) -> None:
        """Stop listening and cancel requests in progress."""
        if self._listening is not None:
            self._listening.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection: socket.socket = writer.get_extra_info("socket")
            sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if not self._server.check_proxy(_CREDENTIALS.unpack(sent)[0]):
                raise BadRequest("it was not sent by tritonserver")
            status, text = await self._answer(await read_request(reader))
            writer.write(b"".join(_framed([status.encode(), text.encode()])))
            await writer.drain()
        except (BadRequest, RemoteFailure, OSError, EOFError) as error:
            _log.warning("invalid request from tritonserver", reason=str(error))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, request: ClientRequest) -> tuple[str, str]:
        try:
            if await self.carry_out(request):
                return "done", ""
            self.passed_on.notify()
            return "core", ""
        except RemoteFailure as failure:
            return str(_CODES.get(failure.kind, _INTERNAL)), failure.text
        except Exception as error:
            _log.exception("internal error: a client's request to load or unload a model failed")
            return str(_INTERNAL), f"internal error: {error!r}"

    async def carry_out(self, request: ClientRequest) -> bool:
        """Execute a request. Return False if Triton's core must handle it.

        Raises:
            RemoteFailure: the request failed; the text says why.
        """
        name = request.model
        if self._server.is_changing(name):  # the daemon's own request
            return False
        if _registered(name, self._served, self._repository) is not None:
            return False
        if request.action == "unload":
            return await self._unload(name, dependents=request.dependents)
        if not request.files and name not in await self._repository.names():
            return False
        if len(self._tasks) > _MAX_REQUESTS:
            text = (
                f"model {name} was not loaded: {_MAX_REQUESTS} loads are in progress; retry later"
            )
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        if request.files and request.config is None:
            text = f"model {name}: files require a `config`, as in Triton"
            raise RemoteFailure(ErrorKind.INVALID, text)
        config = _read_config(name, request.config)
        _log.info("loading a model at the request of a tritonserver client", model=name)
        await self._repository.load(name, config, request.files or None)
        return True

    async def _unload(self, name: str, *, dependents: bool) -> bool:
        records = self._repository.records
        if not records.serves(name):
            return False
        # As in Triton, a step that was also loaded on its own stays loaded.
        steps = (
            [one for one in records.parts(name) if records.of(one).as_step] if dependents else []
        )
        _log.info("unloading a model at the request of a tritonserver client", model=name)
        await self._repository.unload(name)
        for step in steps:
            if records.serves(step):
                await self._repository.unload(step)
        return True


async def read_request(reader: asyncio.StreamReader) -> ClientRequest:
    """Read a request from a connection.

    Raises:
        BadRequest, EOFError: the message is invalid.
    """
    count = await _number(reader)
    if not 3 <= count <= _MAX_STRINGS or count % 2 == 0:
        raise BadRequest(f"it has {count} parts")
    strings: list[bytes] = []
    left = _MAX_BYTES
    for _ in range(count):
        size = await _number(reader)
        left -= size
        if left < 0:
            raise BadRequest(f"it has more than {_MAX_BYTES} bytes")
        strings.append(await reader.readexactly(size))
    try:
        action, model, which = (one.decode() for one in strings[:3])
        names = [one.decode() for one in strings[3::2]]
    except UnicodeDecodeError as error:
        raise BadRequest(f"a name in it is not UTF-8: {error}") from error
    if action not in ("load", "unload"):
        raise BadRequest(f"it asks for {action[:100]!r}")
    config, files = None, {}
    for name, value in zip(names, strings[4::2]):
        if name == "config":
            config = value.decode(errors="replace")
        else:
            files[name] = value
    return ClientRequest(action, model, which == "dependents", config, files)


async def _number(reader: asyncio.StreamReader) -> int:
    return int(_NUMBER.unpack(await reader.readexactly(_NUMBER.size))[0])


def _framed(strings: Sequence[bytes]) -> list[bytes]:
    parts = [_NUMBER.pack(len(strings))]
    for one in strings:
        parts += [_NUMBER.pack(len(one)), one]
    return parts


# ── used by both ─────────────────────────────────────────────────────────────────────────────────


def _registered(
    name: str, served: ServedModels, repository: RepositoryModels
) -> Registration | None:
    """Return the registration with this name; None if there is none, or if it serves a repository model."""
    if repository.records.serves(name):
        return None
    return next((one for one in served if one.spec.name == name), None)


def _read_config(model: str, text: str | None) -> Mapping[str, Any] | None:
    """Parse a model's configuration from JSON. Return None if there is none."""
    if text is None:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise RemoteFailure(
            ErrorKind.INVALID, f"the configuration for model {model!r} is not JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"the configuration for model {model!r} is a JSON {type(config).__name__}, not an object",
        )
    return config
