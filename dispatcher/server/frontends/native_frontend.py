"""The native frontend: our own program, which loads Triton's core and implements its protocols.

The daemon opens the listening sockets and passes them to each process. While no process runs, connections wait in the
backlog instead of being refused. The daemon administers a process over a private unix socket in the runtime directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Optional
from urllib.parse import quote

from pytriton._host.install.compiled_frontend import NativeProgram
from pytriton._host.ports import listening, listening_at, reachable_path
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import linux, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.server import cloud_frontends
from pytriton.dispatcher.server.endpoints import Endpoints
from pytriton.dispatcher.server.frontend import (
    ClientWork,
    PendingModels,
    ServerPlace,
    ServerRefused,
    Unreached,
    environment,
    privately,
)
from pytriton.dispatcher.server.frontends import native_settings
from pytriton.dispatcher.server.frontends.native_settings import Listening, Tls
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.preload_layout import GateModels
from pytriton.dispatcher.upgrade.snapshot import ListenerState, ServerSnapshot

#: Maximum number of connections waiting to be accepted; the kernel may allow fewer (net.core.somaxconn).
_BACKLOG = 4096
#: Private socket for administration, one per process.
_ADMIN_SOCKET = "frontend-{}.sock"
#: Socket on which a process receives the connections of the process that it replaces.
_HANDOVER_SOCKET = "handover-{}.sock"
#: Timeout for each step of `switch_over`, in seconds. No step waits for a client.
_STEP_S = 20.0
#: HTTP socket for the daemon's own processes, which have the same rights as clients but need no TLS.
_HTTP_SOCKET = "http.sock"


class _Process(NamedTuple):
    """A process of the native frontend.

    Attributes:
        place: its directories and callbacks
        admin: its private socket for administration
        child: the process
        accepting: done when it accepts connections
        handover: path of the socket on which it receives other processes' connections
        protocol: protocol version of its proxies
        on_demand: reads the names of models that requests wait for; None if no request can wait
        is_encrypted: whether its HTTP endpoint uses TLS
    """

    place: ServerPlace
    admin: Listening
    child: Child
    accepting: asyncio.Future[None]
    handover: Path
    protocol: int
    on_demand: Optional[OnDemandLoads]
    is_encrypted: bool

    def connect(self) -> NativeAdmin:
        assert self.admin.path is not None
        return NativeAdmin(self.admin.path, self.child.exited, self.accepting)


class NativeFrontend:
    """The native frontend; see `Frontend` for the methods."""

    replaces = queues_requests = True
    vertex_needs_model = False

    def __init__(
        self,
        config: DaemonConfig,
        place: ServerPlace,
        program: NativeProgram,
        *,
        pending_models: Callable[[], PendingModels],
        on_request: Callable[[str], None],
    ) -> None:
        self._config = config
        self._place = place
        self._http_path = place.models.parent / _HTTP_SOCKET
        self._program = program
        #: Descriptor of the table of clients' shared memory regions, which all processes share; -1 before the first
        #: start.
        self._regions = -1
        self._is_gated = False
        self._gate: NativeGate | None = None
        self._starts = 0
        self._listening: list[Listening] = []
        self._processes: dict[int, _Process] = {}  #: by pid, until `forget`
        self._pending_models = pending_models
        self._on_request = on_request
        self._routes: dict[str, Any] | None = None  #: for processes that are started later
        self.program = program.program
        self.endpoints = Endpoints(config)

    def use(self, config: DaemonConfig) -> None:
        """Use new settings for the next process. The listening addresses stay the same."""
        self._config = config

    @property
    def http_socket(self) -> Path | None:
        """HTTP socket for the daemon's own processes; None until `choose_ports` is called."""
        for one in self._listening:
            if one.path == self._http_path:
                return one.path
        return None

    def choose_ports(self) -> None:
        """Listen on all endpoints until `close`. Raises PortError."""
        config = self._config
        self.close()
        tls = native_settings.tls(config)
        self._listening = [
            Listening(name, listener, tls.get(name))
            for name, listener in self.endpoints.listen(_BACKLOG).items()
        ]
        for name, path in (("http", config.http_unix_socket), ("grpc", config.grpc_unix_socket)):
            if path is not None:
                listener = listening_at(Path(path), f"{name}_unix_socket", backlog=_BACKLOG)
                self._listening.append(Listening(name, listener, None, Path(path)))
        own = listening_at(self._http_path, backlog=_BACKLOG)
        # First, because tools that read the log use the last address in it.
        self._listening.insert(0, Listening("http", own, None, self._http_path))
        for cloud in cloud_frontends.served(config.tritonserver_options, os.environ):
            listener = listening(
                cloud_frontends.ADDRESS, cloud.port, cloud.setting, backlog=_BACKLOG
            )
            self._listening.append(Listening(cloud.protocol, listener, None))

    async def forget_pending(self, name: str) -> None:
        """Stop letting requests wait for a model."""
        for process in list(self._processes.values()):
            if process.on_demand is not None and not process.child.exited.done():
                admin = process.connect()
                with contextlib.suppress(ServerRefused, Unreached):  # the process is exiting
                    await admin.forget(name)
                await admin.close()

    async def set_routes(self, document: dict[str, Any]) -> None:
        """Serve these routes in all processes, including those started later."""
        self._routes = document
        for process in list(self._processes.values()):
            if process.child.exited.done():
                continue
            admin = process.connect()
            try:
                await admin.set_routes(document)
            finally:
                await admin.close()

    def make_gate(self, backend: str) -> NativeGate:
        """Make all processes report not ready until the returned gate is opened."""
        self._is_gated = True
        self._gate = NativeGate(self._processes)
        return self._gate

    @property
    def _is_shown_ready(self) -> bool:
        """Whether the gate is open. If it is, a successor reports ready from its start."""
        return self._gate is not None and self._gate.is_open

    async def start(
        self, preload: Sequence[str], *, vertex: bool, as_successor: bool = False
    ) -> Child:
        """Start a process that accepts connections from the listening sockets."""
        self._starts += 1
        number = self._starts
        # Each process has its own prefix, since two may run side by side.
        place = replace(self._place, shm_prefix=f"{self._place.shm_prefix}{number}-")
        path = place.models.parent / _ADMIN_SOCKET.format(number)
        admin = Listening("admin", listening_at(path, backlog=_BACKLOG), None, path)
        handover_path = place.models.parent / _HANDOVER_SOCKET.format(number)
        handover = Listening(
            "handover", listening_at(handover_path, backlog=_BACKLOG), None, handover_path
        )
        tls = native_settings.tls(self._config)
        listening = [
            *(
                one._replace(relays=one.path == self._http_path)
                if one.path
                else one._replace(tls=tls.get(one.protocol))
                for one in self._listening
            ),
            admin,
            handover,
        ]
        reader, writer = os.pipe()
        names = self._pending_models().without(preload)
        on_demand, on_demand_fd = _on_demand_pipe(self._on_request) if any(names) else (None, -1)
        pending = (
            None
            if on_demand is None
            else native_settings.pending_models(self._config, names, on_demand_fd)
        )
        document = native_settings.document(
            self._config,
            place,
            self._program,
            listening,
            preload,
            gated=self._is_gated and not (as_successor and self._is_shown_ready),
            waiting=as_successor,
            pending=pending,
            ready_fd=writer,
            regions_fd=self._region_table(),
            routes=self._routes,
        )
        settings = _as_memfd(document)
        argv = [str(self.program), f"--settings={settings}"]
        try:
            child = await Child.start(
                privately(argv),
                env=environment(place),
                # The sys.path of Python stubs starts with "": elsewhere, they would import a user's numpy.py.
                cwd=str(place.backends / BACKEND),
                on_line=place.on_line,
                kill_on_death=place.kill_on_death,
                # Files in /dev/shm and in the cache are private to this user.
                umask=0o077,
                pass_fds=[
                    *(number for number in (settings, writer, on_demand_fd) if number >= 0),
                    self._region_table(),
                    *(one.listener.fileno() for one in listening),
                ],
            )
        except BaseException:
            os.close(reader)
            admin.close()
            handover.close()
            if on_demand is not None:
                on_demand.close()
            raise
        finally:
            os.close(settings)
            os.close(writer)
            if on_demand_fd >= 0:
                os.close(on_demand_fd)
        handover.listener.close()  # the process has its own copy
        self._processes[child.pid] = _Process(
            place,
            admin,
            child,
            _when_readable(reader),
            handover_path,
            messages.PROTOCOL,
            on_demand,
            is_encrypted=tls.get("http") is not None,
        )
        return child

    def _region_table(self) -> int:
        """Return the descriptor of the table of shared memory regions, an anonymous file that the first process
        initializes.
        """
        if self._regions < 0:
            self._regions = linux.memfd_create("regions")
        return self._regions

    def hand_over(self, pid: int, child: Child, restarts: Mapping[str, int]) -> ServerSnapshot:
        """Return the state of a process and its sockets for the next version of the daemon."""
        return ServerSnapshot(
            child.hand_over(),
            self._starts,
            _listener_state(self._processes[pid].admin),
            [_listener_state(one) for one in self._listening],
            self._processes[pid].protocol,
            self._region_table(),
            dict(restarts),
            -1 if (on_demand := self._processes[pid].on_demand) is None else on_demand.descriptor,
            logs.triton_log_settings() or logs.TritonLogSettings(),
        )

    def adopt(self, state: ServerSnapshot) -> Child:
        """Adopt the process and the sockets of the previous version of the daemon.

        Raises:
            OSError: the process is not a child of this one, or a socket is gone
        """
        config, place = self._config, self._place
        tls = native_settings.tls(config)
        self._starts = state.number
        self._regions = state.regions
        logs.set_triton_log_settings(state.log_settings)
        self._listening = [_adopt_listener(one, tls) for one in state.listeners]
        self.endpoints.adopt(
            {one.protocol: one.listener for one in self._listening if not one.path}
        )
        child = Child.adopt(state.child, place.on_line, place.kill_on_death)
        accepting = asyncio.get_running_loop().create_future()
        accepting.set_result(None)
        own = replace(place, shm_prefix=f"{place.shm_prefix}{state.number}-")
        admin = _adopt_listener(state.admin, {})
        on_demand = (
            None if state.on_demand < 0 else OnDemandLoads(state.on_demand, self._on_request)
        )
        self._processes[child.pid] = _Process(
            own,
            admin,
            child,
            accepting,
            place.models.parent / _HANDOVER_SOCKET.format(state.number),
            state.protocol,
            on_demand,
            is_encrypted=tls.get("http") is not None,
        )
        return child

    def connect(self, pid: int) -> NativeAdmin:
        """Return a connection to a process over its private socket."""
        return self._processes[pid].connect()

    def forget(self, pid: int) -> None:
        """Remove the private sockets and the shared memory of a process that has exited."""
        process = self._processes.pop(pid, None)
        if process is not None:
            process.admin.close()
            process.handover.unlink(missing_ok=True)
            if process.on_demand is not None:
                process.on_demand.close()
            process.place.sweep_shared_memory()

    async def switch_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Move the clients from `former` to `successor`."""
        old, new = self._processes[former], self._processes[successor]
        old_admin, new_admin = old.connect(), new.connect()
        try:
            await asyncio.wait_for(new_admin.accept(True), _STEP_S)
            try:
                await asyncio.wait_for(_unless_exited(old, old_admin.accept(False)), _STEP_S)
                await asyncio.wait_for(self._answers(new), _STEP_S)
                return await asyncio.wait_for(_retire(old, new, force=force), _STEP_S)
            except BaseException:
                # The process may be exiting.
                with contextlib.suppress(ServerRefused, Unreached, asyncio.TimeoutError):
                    await asyncio.wait_for(old_admin.accept(True), _STEP_S)
                raise
        finally:
            await old_admin.close()
            await new_admin.close()

    async def _answers(self, process: _Process) -> None:
        """Check that a process answers a client's request. No other process may be accepting on the shared sockets."""
        path = self.http_socket
        client = (
            process.connect()
            if path is None
            else NativeAdmin(path, process.child.exited, process.accepting)
        )
        try:
            await client.is_live()
        finally:
            await client.close()

    async def work(self, pid: int) -> ClientWork:
        """Return the client work that a process has in progress."""
        admin = self._processes[pid].connect()
        try:
            return await admin.work()
        finally:
            await admin.close()

    async def stop_accepting(self) -> None:
        """Make all processes stop accepting connections. Wait until existing ones have ended or the exit timeout has
        expired.
        """
        running = [one for one in self._processes.values() if not one.child.exited.done()]
        admins = [one.connect() for one in running]
        await asyncio.gather(*(one.stop_accepting() for one in admins), return_exceptions=True)
        for one in admins:
            await one.close()

    async def check_listening(self) -> None:
        """Do nothing: the daemon opens all sockets before it starts a process."""

    def hide_secrets(self, pid: int) -> None:
        """Do nothing: the command line contains no secret."""

    def close(self) -> None:
        """Stop listening. Connections in the backlog are reset."""
        for one in self._listening:
            one.close()
        self._listening = []
        if self._regions >= 0:
            os.close(self._regions)
            self._regions = -1


async def _retire(old: _Process, new: _Process, *, force: bool) -> bool:
    """Make `old` hand its connections over to `new` and exit. If sequences prevent that, do the reverse and return
    False.
    """
    # Connections are handed over as descriptors, so both processes must agree on TLS.
    can_take = old.is_encrypted == new.is_encrypted
    old_admin, new_admin = old.connect(), new.connect()
    try:
        await _unless_exited(
            old, old_admin.retire(str(new.handover) if can_take else None, force=force)
        )
    except InProgress:
        await old_admin.accept(True)
        await new_admin.retire(str(old.handover) if can_take else None, force=True)
        return False
    finally:
        await old_admin.close()
        await new_admin.close()
    return True


async def _unless_exited(process: _Process, request: Awaitable[None]) -> None:
    """Await a request to a process. Ignore a failure if the process has exited."""
    try:
        await request
    except Unreached:
        if not process.child.exited.done():
            raise


def _on_demand_pipe(on_request: Callable[[str], None]) -> tuple[OnDemandLoads, int]:
    """Create the pipe for on-demand loads; return the daemon's end, and the descriptor for the process."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # the process writes from its event loop, which must not block
    return OnDemandLoads(reader, on_request), writer


def _listener_state(one: Listening) -> ListenerState:
    path = None if one.path is None else str(one.path)
    return ListenerState(one.protocol, one.listener.fileno(), path)


def _adopt_listener(state: ListenerState, tls: Mapping[str, Tls]) -> Listening:
    path = None if state.path is None else Path(state.path)
    listener = socket.socket(fileno=state.descriptor)
    return Listening(state.protocol, listener, None if path else tls.get(state.protocol), path)


class NativeGate:
    """Readiness gate of the native frontend. It is built into each process, so unlike `Gate`, it needs no model."""

    in_repository = False

    def __init__(self, processes: Mapping[int, _Process]) -> None:
        self._processes = processes
        self.is_open = False  #: the state that the daemon last requested

    async def open(self, server: GateModels) -> None:
        """Let each process report ready as soon as its models are ready. Raises RemoteFailure on failure."""
        try:
            await self._show(ready=True)
        except (ServerRefused, Unreached) as error:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, f"tritonserver: {error}") from error

    async def close(self, server: GateModels) -> None:
        """Make all processes report not ready. Does nothing if none is running."""
        with contextlib.suppress(ServerRefused, Unreached):
            await self._show(ready=False)

    async def _show(self, *, ready: bool) -> None:
        self.is_open = ready
        running = [one for one in self._processes.values() if not one.child.exited.done()]
        if not running:
            raise Unreached("tritonserver is not running")
        shown = await asyncio.gather(
            *(self._show_in(one, ready=ready) for one in running), return_exceptions=True
        )
        for one, error in zip(running, shown):
            if isinstance(error, BaseException) and not (
                len(running) > 1 and one.child.exited.done()
            ):
                raise error

    async def _show_in(self, process: _Process, *, ready: bool) -> None:
        admin = process.connect()
        try:
            await admin.set_ready(ready)
        finally:
            await admin.close()


def _as_memfd(document: object) -> int:
    """Write a document as JSON to an anonymous file; return its descriptor."""
    descriptor = linux.memfd_create("settings")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(document).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _when_readable(descriptor: int) -> asyncio.Future[None]:
    """Return a future that is done once the pipe has data. The descriptor is closed at that point, or at end-of-file."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        data = os.read(descriptor, 1)
        os.close(descriptor)
        if data and not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, on_readable)
    return readable


# ── On-demand loads: a pipe on which a process reports the models that requests wait for, one per line ──

_MAX_BYTES = 1 << 16


class OnDemandLoads:
    """Reads the names of the models for which requests are waiting.

    Args:
        descriptor: read end of the pipe
        on_request: called with the name of each model
    """

    def __init__(self, descriptor: int, on_request: Callable[[str], None]) -> None:
        self.descriptor = descriptor
        self._on_request = on_request
        self._rest = b""
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.descriptor, _MAX_BYTES)
            if not data:  # the process has exited
                asyncio.get_running_loop().remove_reader(self.descriptor)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._on_request(line.decode(errors="replace"))

    def close(self) -> None:
        """Stop reading and close the pipe."""
        if self.descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1


# ── Administration of a process: HTTP over its private unix socket, where no endpoint is restricted ──

#: How long a liveness probe waits for the process to accept connections, in seconds.
_ACCEPTING_S = 1.0
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")
_LENGTH = re.compile(rb"\r\nContent-Length: *([0-9]+)\r\n", re.IGNORECASE)
#: struct ucred of SO_PEERCRED, see unix(7): pid, user and group.
_CREDENTIALS = struct.Struct("3i")


class InProgress(ServerRefused):
    """Raised if a request would interrupt sequences in progress (status 409)."""


class NativeAdmin:
    """Connection to a process of the native frontend; see `Admin` for the methods.

    Args:
        path: path of the socket. The daemon itself opened it, so a request to an exited process is never answered
        exited: done when the process has exited
        accepting: done when the process accepts connections
    """

    def __init__(
        self, path: Path, exited: asyncio.Future[int], accepting: asyncio.Future[None]
    ) -> None:
        self._path = path
        self._exited = exited
        self._accepting = accepting
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def is_live(self) -> bool:
        """Probe liveness. Raises Unreached if the process does not accept connections within a second."""
        if not self._accepting.done():
            signs: set[asyncio.Future[Any]] = {self._accepting, self._exited}
            await asyncio.wait(signs, timeout=_ACCEPTING_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._accepting.done():
                raise Unreached("it is not accepting connections yet")
        await self._ask("GET", "/v2/health/live")
        return True

    async def version(self) -> str:
        """Return the version of Triton's core."""
        return str((await self._ask("GET", "/v2"))["version"])

    async def load(self, name: str, config: str | None) -> None:
        """Load a model. `config` is its configuration in JSON, or None to use the one in its directory."""
        body = {} if config is None else {"parameters": {"config": config}}
        await self._ask("POST", f"/v2/repository/models/{quote(name, safe='')}/load", body)

    async def unload(self, name: str) -> None:
        """Start unloading a model, without waiting until it is unloaded."""
        await self._ask("POST", f"/v2/repository/models/{quote(name, safe='')}/unload", {})

    async def repository_states(self) -> dict[str, str]:
        """Return the state of each model in all repositories, by name; "" for a model that was never loaded."""
        states: dict[str, str] = {}
        for model in await self._ask("POST", "/v2/repository/index", {}):
            if states.get(model["name"], "") in ("", "UNAVAILABLE"):
                states[model["name"]] = model.get("state", "")
        return states

    async def set_ready(self, ready: bool) -> None:
        """Set whether the process may report ready."""
        await self._ask("POST", "/admin/ready", {"ready": ready})

    async def set_routes(self, document: dict[str, Any]) -> None:
        """Replace the routes that are served alongside Triton's API."""
        await self._ask("POST", "/admin/routes", document)

    async def forget(self, name: str) -> None:
        """Stop letting requests wait for a model."""
        await self._ask("POST", "/admin/forget", {"model": name})

    async def accept(self, accept: bool) -> None:
        """Make the process start or stop accepting connections. Open connections stay open."""
        await self._ask("POST", "/admin/accept", {"accept": accept})

    async def retire(self, successor: str | None, *, force: bool) -> None:
        """Make the process hand over its idle connections, finish its requests, and exit when its last connection has
        closed.

        Args:
            successor: path of the socket that takes over the connections; None to close them
            force: whether to retire even if sequences are in progress

        Raises:
            InProgress: sequences are in progress and `force` is not set
        """
        where = {} if successor is None else {"successor": successor}
        await self._ask("POST", "/admin/retire", {**where, "force": force})

    async def stop_accepting(self) -> None:
        """Make the process stop accepting connections. Wait until existing ones have ended or the exit timeout has
        expired.
        """
        await self._ask("POST", "/admin/leave", {})

    async def work(self) -> ClientWork:
        """Return the client work that the process has in progress."""
        answer = await self._ask("GET", "/admin/work")
        return ClientWork(answer["connections"], answer["requests"], answer["sequences"])

    async def close(self) -> None:
        """Close the connection. Pending requests raise Unreached."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = asyncio.ensure_future(self._answer(method, path, body))
        ends: set[asyncio.Future[Any]] = {self._exited, self._closed}
        try:
            await asyncio.wait({answer, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Unreached("the process has exited, or the connection was closed")
            return answer.result()
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait([answer])

    async def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: frontend\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            status, text = await self._exchange(head.encode() + content)
            if status >= 400:
                raise (InProgress if status == 409 else ServerRefused)(_error_message(text))
            return json.loads(text) if text else None
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            raise Unreached(f"{type(error).__name__}: {error}") from error

    async def _exchange(self, request: bytes) -> tuple[int, str]:
        """Send a request on a new connection; return the status and body of the response.

        There is no timeout, because loading a model can take arbitrarily long. Connections are not reused, because the frontend
        might close one at that very moment.
        """
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            path = reachable_path(folder, self._path.name)
            reader, writer = await asyncio.open_unix_connection(path)
        finally:
            os.close(folder)
        try:
            _check_own_socket(writer.get_extra_info("socket"))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status, length = _STATUS.match(head), _LENGTH.search(head)
            if status is None or length is None:
                raise ValueError(f"not a response from the frontend: {head[:100]!r}")
            return int(status[1]), (await reader.readexactly(int(length[1]))).decode()
        finally:
            writer.transport.abort()  # the response is complete, so no orderly close is needed


def _check_own_socket(connection: socket.socket) -> None:
    """Raise ConnectionError if the socket belongs to another daemon, which may have recreated a deleted runtime
    directory.

    The kernel reports the process that called listen(), which for our own frontends is this process.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(credentials)[0]
    if pid != os.getpid():
        raise ConnectionError(f"the socket belongs to another daemon (pid {pid})")


def _error_message(text: str) -> str:
    """Return the message of an error response. If the response has another format, return its body."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        return text
