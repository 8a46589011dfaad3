"""The frontend that runs NVIDIA's own executable, tritonserver, administered over its public ports."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence

from pytriton._host.install.server_runtime import python_link, server_environment
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.calls.call_chain import KEY_VARIABLE
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.server import admin_token
from pytriton.dispatcher.server.endpoints import Endpoints, reachable
from pytriton.dispatcher.server.frontend import (
    MEMORY,
    Awaited,
    ClientWork,
    ServerPlace,
    ServerRefused,
    model_control,
    privately,
)
from pytriton.dispatcher.server.frontends import command_line
from pytriton.dispatcher.server.frontends.admin_client import AdminClient
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.readiness_gate import Gate


class TritonFrontend:
    """NVIDIA's executable; see `Front` for the methods."""

    replaces = awaits = False
    vertex_needs_model = True
    http_socket = None

    def __init__(self, config: DaemonConfig, place: ServerPlace) -> None:
        self._config = config
        self._place = place
        self.program = place.runtime.tree.program
        self.endpoints = Endpoints(config)

    def settle(self) -> None:
        """Choose the ports; raises PortError."""
        self.endpoints.settle()

    def make_gate(self, backend: str) -> Gate:
        """Create the gate: a model in the repository that cannot be loaded while the gate is closed."""
        return Gate(self._place.models, backend)

    async def start(self, preload: Sequence[str], *, vertex: bool, beside: bool = False) -> Child:
        """Start a process that listens on the resolved ports."""
        place = self._place
        arguments = command_line.arguments(
            self._config, place, self.endpoints.served, preload, vertex=vertex
        )
        python = python_link(place.backends)
        env = {
            **MEMORY,
            **server_environment(place.runtime, os.environ, python),
            **model_control(place),
        }
        env[KEY_VARIABLE] = secrets.token_hex(16)
        return await Child.start(
            privately([str(self.program), *arguments]),
            env=env,
            # The stub's sys.path starts with "": in any other directory, a user's numpy.py would run in the proxy.
            cwd=str(place.backends / BACKEND),
            on_line=self._say,
            kill_on_death=place.kill_on_death,
            # The files that it creates in /dev/shm and in its cache are private to this user.
            umask=0o077,
        )

    def await_models(self, names: Callable[[], Awaited], asked: Callable[[str], None]) -> None:
        """Do nothing: tritonserver rejects requests for models that it has not loaded."""

    async def forget_awaited(self, name: str) -> None:
        """Do nothing: no request waits."""

    async def change_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Raise Refused: this frontend cannot replace a process (`replaces`)."""
        raise ServerRefused("tritonserver cannot hand over its connections")

    async def work(self, pid: int) -> ClientWork:
        """Raise Refused: tritonserver does not report this."""
        raise ServerRefused("tritonserver does not report what it has in progress")

    async def leave(self) -> None:
        """Do nothing: tritonserver accepts connections until it exits."""

    def use(self, config: DaemonConfig) -> None:
        """Use these settings for the next process."""
        self._config = config

    def forget(self, pid: int) -> None:
        """Do nothing: only one process runs at a time, and the daemon removes its shared memory."""

    def connect(self, pid: int) -> AdminClient:
        """Return a connection over HTTP or gRPC."""
        return AdminClient(self._config, self.endpoints.port("http"), self.endpoints.port("grpc"))

    async def check_open(self) -> None:
        """Connect to each port, since they open one after another; raises OSError."""
        for one in self.endpoints.served:
            address = reachable(one.address).strip("[]")
            _, writer = await asyncio.open_connection(address, one.port)
            writer.close()

    def conceal(self, pid: int) -> None:
        """Blank out the access token in the process's arguments."""
        admin_token.blank_out(pid, self._config.access_token)

    def close(self) -> None:
        """Do nothing: tritonserver opens and closes its own sockets."""

    def _say(self, pid: int, line: bytes) -> None:
        token = self._config.access_token
        self._place.on_line(pid, line if token is None else line.replace(token.encode(), b"***"))
