"""The front that is pytriton-daemon's own: a program that loads Triton's core and serves its protocols itself.

The daemon listens, and hands its sockets to each process in turn: while there is none, connections wait in the
backlog instead of being refused. What the daemon asks goes over a unix socket of its own, in the runtime directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from pytriton.dispatcher.base.child import Child, bound_to_us
from pytriton.dispatcher.base.ports import listening, listening_at
from pytriton.dispatcher.install.compiled_front import NativeProgram
from pytriton.dispatcher.install.server_runtime import python_link, server_environment
from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton import clouds, native_settings
from pytriton.dispatcher.triton.endpoints import Endpoints
from pytriton.dispatcher.triton.front import PRIVATELY, Refused, ServerPlace, Unreached
from pytriton.dispatcher.triton.gate import Models
from pytriton.dispatcher.triton.native_admin import NativeAdmin
from pytriton.dispatcher.triton.native_settings import Listening
from pytriton.dispatcher.triton.own_repository import BACKEND
from pytriton.ipc import linux
from pytriton.ipc.calls.call_chain import KEY_VARIABLE
from pytriton.ipc.errors import ErrorKind, RemoteFailure

#: Connections that wait until somebody accepts them; the kernel may allow fewer (net.core.somaxconn).
_BACKLOG = 4096
#: For the dispatcher alone, one for each process.
_ADMIN_SOCKET = "front-{}.sock"


class NativeFront:
    """Our own program; see `Front` for what the methods do."""

    replaces = True
    vertex_needs_model = False

    def __init__(self, config: DaemonConfig, place: ServerPlace, program: NativeProgram) -> None:
        self._config = config
        self._place = place
        self._program = program
        self._held = False
        self._starts = 0
        self._admin: Listening | None = None  #: of the process that was started last
        self._listening: list[Listening] = []
        self._child: Child | None = None
        self._accepting: asyncio.Future[None] | None = None
        self.program = program.program
        self.endpoints = Endpoints(config)

    def settle(self) -> None:
        """Listen on everything, from now on until `close`; raises PortError."""
        config = self._config
        self.close()
        tls = native_settings.tls(config)
        self._listening = [
            Listening(name, listener, tls.get(name))
            for name, listener in self.endpoints.listen(_BACKLOG).items()
        ]
        for name, path in (("http", config.http_unix), ("grpc", config.grpc_unix)):
            if path is not None:
                listener = listening_at(Path(path), f"{name}_unix", backlog=_BACKLOG)
                self._listening.append(Listening(name, listener, None, Path(path)))
        for cloud in clouds.served(config.tritonserver_options, os.environ):
            listener = listening(clouds.ADDRESS, cloud.port, cloud.setting, backlog=_BACKLOG)
            self._listening.append(Listening(cloud.protocol, listener, None))

    def make_gate(self, backend: str) -> NativeGate:
        """Have the front say from its start that it is not ready, until the gate is opened."""
        self._held = True
        return NativeGate(self.connect)

    async def start(self, preload: Sequence[str], *, vertex: bool, beside: bool = False) -> Child:
        """Start a process that accepts from the sockets, which connections may be waiting on already."""
        place = self._place
        self._close_admin()
        self._starts += 1
        path = place.models.parent / _ADMIN_SOCKET.format(self._starts)
        self._admin = Listening("admin", listening_at(path, backlog=_BACKLOG), None, path)
        listening = [*self._listening, self._admin]
        reader, writer = os.pipe()
        document = native_settings.document(
            self._config,
            place,
            self._program,
            listening,
            preload,
            held=self._held,
            waiting=beside,
            ready_fd=writer,
        )
        settings = _readable(document)
        environment = server_environment(place.runtime, os.environ, python_link(place.backends))
        environment[KEY_VARIABLE] = secrets.token_hex(16)
        argv = [str(self.program), f"--settings={settings}"]
        try:
            self._child = await Child.start(
                bound_to_us([*PRIVATELY, *argv]),
                env=environment,
                # The stub's sys.path begins with "": in any other folder a user's numpy.py would run in the proxy.
                cwd=str(place.backends / BACKEND),
                on_line=place.on_line,
                kill_on_death=place.kill_on_death,
                # The files that it creates in /dev/shm and in its cache are for this user alone.
                umask=0o077,
                pass_fds=[settings, writer, *(one.listener.fileno() for one in listening)],
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(settings)
            os.close(writer)
        self._accepting = _until_readable(reader)
        return self._child

    def connect(self) -> NativeAdmin:
        """Return a connection over the private socket."""
        assert self._child is not None  # it has been started
        assert self._accepting is not None
        assert self._admin is not None
        assert self._admin.path is not None
        return NativeAdmin(self._admin.path, self._child.exited, self._accepting)

    def let_in(self, pid: int) -> None:
        """Have it accept what clients send; see main.c."""
        os.kill(pid, signal.SIGUSR1)

    async def check_open(self) -> None:
        """Do nothing: the daemon opened all sockets before it started the process."""

    def conceal(self, pid: int) -> None:
        """Do nothing: its command line holds no secret."""

    def close(self) -> None:
        """Listen no more: what waits in the backlog is reset."""
        for one in self._listening:
            one.close()
        self._listening = []
        self._close_admin()

    def _close_admin(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


class NativeGate:
    """The native front's gate, which the front keeps itself; compare `Gate`."""

    in_repository = False

    def __init__(self, connect: Callable[[], NativeAdmin]) -> None:
        self._connect = connect

    async def open(self, server: Models) -> None:
        """Have it say that it is ready, if all models are; raises RemoteFailure."""
        try:
            await self._show(ready=True)
        except (Refused, Unreached) as error:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, f"tritonserver: {error}") from error

    async def close(self, server: Models) -> None:
        """Have it say that it is not ready; nothing happens when it is not up."""
        with contextlib.suppress(Refused, Unreached):
            await self._show(ready=False)

    async def _show(self, *, ready: bool) -> None:
        admin = self._connect()
        try:
            await admin.show_ready(ready)
        finally:
            await admin.close()


def _readable(document: object) -> int:
    """Return a descriptor of a file without a name, which holds a document as JSON."""
    descriptor = linux.memfd_create("settings")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(document).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _until_readable(descriptor: int) -> asyncio.Future[None]:
    """Return what is done when a pipe has something to read, or has ended; the descriptor is closed then."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        loop.remove_reader(descriptor)
        told = os.read(descriptor, 1)
        os.close(descriptor)
        if told and not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, tell)
    return readable
