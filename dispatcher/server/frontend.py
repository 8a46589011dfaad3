"""Interface between the daemon and the program that runs as tritonserver, called a *frontend*: it wraps Triton's core.

    tritonserver.py     what the daemon uses: load, unload, states, readiness; one object for the daemon's lifetime
      ▼
    server_process.py   one process: start, readiness, liveness probes, exit
      ▼
    Frontend, Admin     how such a program is started and administered
      ▼
    frontends/          the implementations: NVIDIA's executable (triton_frontend.py), our own program
                        (native_frontend.py)

services.py chooses the implementation. Nothing above this interface depends on the choice.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import structlog

from pytriton._host.install.server_runtime import ServerRuntime, python_link, server_environment
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import linux
from pytriton._protocol.calls.call_messages import KEY_VARIABLE
from pytriton._protocol.lanes.lane import ACTIVE_WAITS_VARIABLE
from pytriton.dispatcher.runtime.child import Child, OnLine
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.server.endpoints import Endpoints
from pytriton.dispatcher.server.preload_layout import GateModels
from pytriton.dispatcher.upgrade.snapshot import ServerSnapshot

_log = structlog.get_logger(__name__)

SHM = Path("/dev/shm")
#: Socket in the runtime directory on which tritonserver reports its clients' requests to load and unload models.
MODEL_CONTROL_SOCKET = "models.sock"
#: Environment variable whose value private_shm.py passes to tritonserver as LD_PRELOAD.
PRELOAD_VARIABLE = "PYTRITON_PRELOAD"

#: Settings of glibc's allocator for frontends, which allocate memory for each large response. With glibc's defaults,
#: large freed blocks go back to the kernel at once, until the thresholds have grown to these values. Setting them from
#: the start avoids 500 page faults for each response of 6 MB, and a sixth of the CPU time. A user's own values take
#: precedence.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


@dataclass(frozen=True)
class ServerPlace:
    """Directories and callbacks that every frontend needs.

    Attributes:
        runtime: installation of Triton
        models: model repository to serve
        backends: directory of the backends; see `lay_out_backends`
        shm_prefix: prefix of the names of the frontend's regions in /dev/shm
        kill_on_death: kills the process and its descendants if the daemon is killed
        on_line: called with each line that the process prints, without secrets
    """

    runtime: ServerRuntime
    models: Path
    backends: Path
    shm_prefix: str
    kill_on_death: KillOnDeath
    on_line: OnLine

    def sweep_shared_memory(self) -> None:
        """Remove the shared memory that an exited process left behind."""
        _remove_regions(f"{self.shm_prefix}*")


class ServerRefused(Exception):
    """Raised if the server rejected a request. The message says why."""


class Unreached(Exception):
    """Raised if the server did not answer, because the connection failed or was closed."""


class ClientWork(NamedTuple):
    """The client work that a server process has in progress.

    Attributes:
        connections: open connections
        requests: requests in Triton's core
        sequences: sequences that have started but not ended
    """

    connections: int
    requests: int
    sequences: int


class Admin(Protocol):
    """Connection over which the daemon administers a server process.

    All methods raise ServerRefused or Unreached on failure.
    """

    async def is_live(self) -> bool:
        """Probe liveness. Any answer, even False, shows that the process is running."""

    async def version(self) -> str:
        """Return the version of Triton's core, for example "2.51.0"."""

    async def load(self, name: str, config: str | None) -> None:
        """Load a model. `config` is its configuration in JSON; None for the one in its directory."""

    async def unload(self, name: str) -> None:
        """Start unloading a model, without waiting until it is unloaded."""

    async def repository_states(self) -> dict[str, str]:
        """Return the state of each model in all repositories, by name; "" for a model that was never loaded."""

    async def close(self) -> None:
        """Close the connection. Pending requests raise Unreached."""


class ReadinessGate(Protocol):
    """Gate that keeps a server from reporting ready until the daemon opens it.

    Attributes:
        in_repository: whether the gate is a model in the repository
    """

    @property
    def in_repository(self) -> bool: ...

    async def open(self, server: GateModels) -> None:
        """Let the server report ready as soon as all its models are ready. Raises RemoteFailure on failure."""

    async def close(self, server: GateModels) -> None:
        """Make the server report not ready, if it is up."""


class PendingModels(NamedTuple):
    """Models that tritonserver has not loaded yet. Requests for them wait instead of failing.

    A waiting request resumes when its model is loaded, when `forget_pending` is called, or after `resume_timeout_s`.

    Attributes:
        lazy: models to load on the first request; readiness probes report them ready, as they do suspended models
        loading: models that are loaded without a request; readiness probes report them not ready
    """

    lazy: Sequence[str] = ()
    loading: Sequence[str] = ()

    def without(self, others: Collection[str]) -> PendingModels:
        """Return a copy without the models in `others`."""
        return PendingModels(*([name for name in names if name not in others] for names in self))


class Frontend(Protocol):
    """Program around Triton's core. There is one object per daemon; `start` is called for each process."""

    @property
    def program(self) -> Path:
        """Path of the executable, as shown by `status`."""

    @property
    def endpoints(self) -> Endpoints:
        """Endpoints for clients."""

    @property
    def http_socket(self) -> Path | None:
        """Unix socket for HTTP from the daemon's own processes, independent of clients' endpoints; None if there is
        none.
        """

    def choose_ports(self) -> None:
        """Choose the ports to listen on.

        Raises:
            PortError: an address of the settings is in use or cannot be used
        """

    def make_gate(self, backend: str) -> ReadinessGate:
        """Return a gate that lets the daemon control when processes report ready.

        Args:
            backend: name of a backend that can load a placeholder model
        """

    async def start(
        self, preload: Sequence[str], *, vertex: bool, as_successor: bool = False
    ) -> Child:
        """Start a process, without waiting until it is ready.

        Args:
            preload: models of the repository to load before accepting requests; one that fails does not end the process
            vertex: whether NVIDIA's frontend for Vertex AI may start, because its model is in `preload`
            as_successor: whether another process is serving until `switch_over` (only if `replaces`)

        Raises:
            OSError: the process could not be started
        """

    @property
    def replaces(self) -> bool:
        """Whether a new process can replace a running process without losing a request."""

    @property
    def queues_requests(self) -> bool:
        """Whether requests can wait for models that are not loaded yet; see `PendingModels`."""

    async def forget_pending(self, name: str) -> None:
        """Stop letting requests wait for a model."""

    async def set_routes(self, document: dict[str, Any]) -> None:
        """Serve these routes and pages alongside Triton's API (proxy_backend/frontend/http/route_table.h), also in processes
        started later.

        Raises:
            ServerRefused, Unreached: a process does not accept them.
        """

    @property
    def vertex_needs_model(self) -> bool:
        """Whether the endpoint for Vertex AI can only start once its model is loaded."""

    async def switch_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Move the clients from one process to its successor.

        When this returns, the successor has answered a request. The former process hands over its idle connections,
        finishes requests in progress, and exits with its last connection.

        Args:
            former: pid of the process that is serving
            successor: pid of a process started with `as_successor`
            force: whether to switch even if sequences are in progress

        Returns:
            False if sequences are in progress and `force` is not set. The successor then retires instead.

        Raises:
            ServerRefused, Unreached, TimeoutError: the successor is not serving; the former process still is
        """

    async def work(self, pid: int) -> ClientWork:
        """Return the client work that a process has in progress. Raises ServerRefused or Unreached."""

    async def stop_accepting(self) -> None:
        """Stop accepting connections; wait until the open ones have ended or the grace period has expired.

        Connections in the backlog of a service manager's socket are left to the next daemon.
        """

    def use(self, config: DaemonConfig) -> None:
        """Use new settings for the next process. The listening addresses stay the same."""

    def connect(self, pid: int) -> Admin:
        """Return a new connection to a process that has been started, but may not be listening yet."""

    def forget(self, pid: int) -> None:
        """Clean up after a process that has exited."""

    async def check_listening(self) -> None:
        """Check that every endpoint accepts connections.

        Raises:
            OSError: an endpoint does not accept connections
        """

    def hide_secrets(self, pid: int) -> None:
        """Remove secrets from a process's arguments, which other users can see.

        The process must have read its arguments already.
        """

    def close(self) -> None:
        """Stop listening for good. Processes may still be running."""


@runtime_checkable
class SupportsHandover(Protocol):
    """Frontend whose process keeps running while the daemon is upgraded in place."""

    def hand_over(self, pid: int, child: Child, restarts: Mapping[str, int]) -> ServerSnapshot:
        """Return the state of a process and its sockets for the next version of the daemon."""

    def adopt(self, state: ServerSnapshot) -> Child:
        """Adopt the state from the previous version. Raises OSError if the process or a socket is gone."""


def environment(place: ServerPlace) -> dict[str, str]:
    """Return the environment variables to start a frontend with."""
    return {
        **MEMORY,
        **server_environment(place.runtime, os.environ, python_link(place.backends)),
        **_model_control(place),
        KEY_VARIABLE: secrets.token_hex(16),
        ACTIVE_WAITS_VARIABLE: str(linux.max_active_waits()),
    }


def _model_control(place: ServerPlace) -> dict[str, str]:
    """Return environment variables that make tritonserver ask the daemon when a client wants to load or unload a model.

    `privately` turns one of them into LD_PRELOAD for tritonserver alone, not for the Python launcher that starts it.
    """
    library = place.runtime.interposer
    if library is None:
        return {}
    former = os.environ.get("LD_PRELOAD")
    return {
        PRELOAD_VARIABLE: f"{library}:{former}" if former else str(library),
        "PYTRITON_MODEL_CONTROL": str(place.models.parent / MODEL_CONTROL_SOCKET),
    }


def claim_shm_prefix(lock: os.stat_result) -> str:
    """Return a unique prefix for the names of this daemon's regions in /dev/shm. Remove the regions of its predecessors.

    The cleanup helper (kill_on_death.py) removes a killed daemon's regions, unless it was killed as well: systemd kills
    all processes of a service. Therefore the names identify the file that locks the state directory, by the device and
    inode in `lock`. This daemon holds that lock, so the regions of all others that name the file are stale. The file is
    open, so no other file can get its inode.
    """
    file = f"{lock.st_dev:x}.{lock.st_ino:x}"
    _remove_regions(f"pytriton-*-{file}-*")
    return f"pytriton-{os.getpid()}-{file}-{secrets.token_hex(4)}-"


def _remove_regions(pattern: str) -> None:
    """Remove the regions whose names match. Other users' regions cannot be removed, and are only logged."""
    try:
        regions = list(SHM.glob(pattern))
    except OSError as error:  # for example, too many open files
        _log.warning("could not list tritonserver's shared memory regions", reason=str(error))
        return
    for region in regions:
        try:
            region.unlink(missing_ok=True)
        except OSError as error:  # noqa: PERF203, continue with the others
            _log.warning(
                "could not remove a shared memory region of tritonserver", reason=str(error)
            )


def privately(argv: Sequence[str]) -> list[str]:
    """Return a command that runs `argv` with private shared memory. Its process is killed when this process exits."""
    launcher = str(Path(__file__).with_name("private_shm.py"))
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), *argv]
