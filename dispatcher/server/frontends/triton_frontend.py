"""The front that is NVIDIA's own executable, tritonserver, administered over its public ports."""

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
    Refused,
    ServerPlace,
    Work,
    model_control,
    privately,
)
from pytriton.dispatcher.server.frontends import command_line
from pytriton.dispatcher.server.frontends.admin_client import AdminClient
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.readiness_gate import Gate


class TritonFrontend:
    """NVIDIA's executable; see `Front` for what the methods do."""

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
        """Make the gate: a model in the repository that cannot be loaded while it is closed."""
        return Gate(self._place.models, backend)

    async def start(self, preload: Sequence[str], *, vertex: bool, beside: bool = False) -> Child:
        """Start a process that listens on the settled ports."""
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
            # The stub's sys.path begins with "": in any other folder a user's numpy.py would run in the proxy.
            cwd=str(place.backends / BACKEND),
            on_line=self._say,
            kill_on_death=place.kill_on_death,
            # The files that it creates in /dev/shm and in its cache are for this user alone.
            umask=0o077,
        )

    def await_models(self, names: Callable[[], Awaited], asked: Callable[[str], None]) -> None:
        """Do nothing: tritonserver tells clients that it does not know a model that it does not have."""

    async def forget_awaited(self, name: str) -> None:
        """Do nothing: nobody waits."""

    async def change_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Refuse: this front does not replace a process (`replaces`)."""
        raise Refused("tritonserver cannot hand its connections over")

    async def work(self, pid: int) -> Work:
        """Refuse: tritonserver does not tell."""
        raise Refused("tritonserver does not tell what it has under way")

    async def leave(self) -> None:
        """Do nothing: tritonserver accepts until it ends."""

    def use(self, config: DaemonConfig) -> None:
        """Take other settings for the next process."""
        self._config = config

    def forget(self, pid: int) -> None:
        """Do nothing: the daemon sweeps the shared memory of all its processes, of which there is one at a time."""

    def connect(self, pid: int) -> AdminClient:
        """Return a connection over HTTP or gRPC."""
        return AdminClient(self._config, self.endpoints.port("http"), self.endpoints.port("grpc"))

    async def check_open(self) -> None:
        """Connect to each port: they come up one after another; raises OSError."""
        for one in self.endpoints.served:
            address = reachable(one.address).strip("[]")
            _, writer = await asyncio.open_connection(address, one.port)
            writer.close()

    def conceal(self, pid: int) -> None:
        """Blank the access token out of its arguments."""
        admin_token.blank_out(pid, self._config.access_token)

    def close(self) -> None:
        """Do nothing: tritonserver opens and closes its own sockets."""

    def _say(self, pid: int, line: bytes) -> None:
        token = self._config.access_token
        self._place.on_line(pid, line if token is None else line.replace(token.encode(), b"***"))
